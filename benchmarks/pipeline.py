"""Time whole runs with vLLM in a process of its own: sampling and updates in turn, and side by side.

    python -m benchmarks.pipeline [--cuda] [--blocks 2] [--steps 24] [--lags 1 8]

The project's own loop trains a Llama of random weights on sums, with coin flips for rewards, and as many passes over a
batch as take about as long as sampling it. In each block the same number of steps is taken with every lag, 0 among
them, from the base model and with the same engine; starting and emptying the pipe count. Times are by the clock on the
wall, so that nothing else may run: on CPU engine and learner have a core each. It ends with an error where the largest
lag has less than 1.3 times the steps of alternation there.

With ``--cuda`` the model has Qwen2.5-0.5B's shape, in bfloat16, and both share one GPU, so that each slows the other
down; nothing is asked of the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
from isocompute.learner import Learner, LearnerConfig, Progress, RunConfig, StepRecord, UpdateSteps, train
from isocompute.learner.config import ObjectiveConfig, OptimizerConfig, PipelineConfig, SyncConfig
from isocompute.rollout import EngineConfig, Prompting, Sampling, open_pipe, open_sampler

from benchmarks.learner import cuda
from benchmarks.learner.steps import CoinFlips, problems_table
from benchmarks.learner.theirs import LEARNING_RATE, PROMPT, coin_flips
from benchmarks.sampler import SIZES, save_model

GROUPS, SAMPLES, NEW_TOKENS = 16, 8, 96
SIZE = "3M"
LEAST = 1.3
"""Steps with the largest lag, as a multiple of those of alternation."""
ON_CPU = LearnerConfig(
    learning_rate=LEARNING_RATE, optimizer=OptimizerConfig(warmup_steps=0), sync=SyncConfig(tolerance=1e-3)
)
ON_CUDA = replace(cuda.CONFIG, optimizer=OptimizerConfig(warmup_steps=0))
ENGINE_SHARE = 0.3
"""Of the GPU's memory, beside a learner."""


class Flipped:
    """A pipe whose rewards are coin flips."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def take(self, step: int) -> pl.DataFrame:
        """Return a step's responses with other rewards."""
        rollouts: pl.DataFrame = self._pipe.take(step)
        flips = coin_flips(step, GROUPS, SAMPLES).reshape(-1)
        return rollouts.with_columns(pl.Series("reward", flips, dtype=rollouts.schema["reward"]))


def run(sampler: Any, learner: Learner, config: LearnerConfig, steps: int) -> tuple[float, list[StepRecord]]:
    """Train for some steps from the base model; returns the seconds and what was recorded."""
    learner.reset(config)
    sampler.sync(learner.weights(), 0)
    records: list[Any] = []
    with closing(open_pipe(sampler, "in_flight")) if config.pipeline.lag else nullcontext() as pipe:
        began = perf_counter()
        train(
            run=RunConfig(rollouts_per_problem=SAMPLES, problems_per_batch=GROUPS),
            problems=problems_table(4 * GROUPS),
            sampler=CoinFlips(sampler),
            learner=learner,
            meter=UpdateSteps(limit=steps),
            progress=Progress(step=0, rollouts=0, tokens=0, evals=[]),
            pipe=None if pipe is None else Flipped(pipe),
            watch=records.append,
        )
        return perf_counter() - began, records


def phases(records: Sequence[StepRecord]) -> tuple[float, float]:
    """Seconds of sampling and of an update, the medians over steps."""
    sampling, updating = ([getattr(r, f"{name}_seconds") for r in records] for name in ("sample", "update"))
    return statistics.median(sampling), statistics.median(updating)


def said(records: Sequence[StepRecord]) -> str:
    """Return what is to be told of a run with a lag."""
    lags = [record.lag for record in records if record.lag is not None]
    if not lags:
        return ""
    mean, mixed, engines, trainer = (
        statistics.mean(getattr(lag, name) or 0.0 for lag in lags)
        for name in ("lag_mean", "mixed_share", "engines_idle_share", "trainer_idle_share")
    )
    return (
        f"; tokens {mean:.1f} versions behind, {mixed:.0%} of the responses of several; idle: engine {engines:.0%}, "
        f"learner {trainer:.0%}"
    )


@contextmanager
def opened(device: str) -> Iterator[tuple[Any, Learner]]:
    """Give an engine in a process of its own, and a learner of the same model.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    import torch

    engine, replicas = EngineConfig(max_concurrent=GROUPS * SAMPLES), dict[str, Any](replicas=1)
    with tempfile.TemporaryDirectory() as folder:
        if device == "cpu":
            torch.set_num_threads(1)
            save_model(Path(folder), **SIZES[SIZE])
        else:
            cuda.save(Path(folder), cuda.SMALL)
            engine = replace(engine, memory_share=ENGINE_SHARE, dtype="bfloat16")
            replicas["num_gpus"] = 0.5
        sampling, plain = Sampling(max_new_tokens=NEW_TOKENS, max_prompt_tokens=PROMPT), Prompting(template="plain")
        with closing(
            open_sampler("vllm", folder, sampling, prompting=plain, engine=engine, replicas=replicas)
        ) as sampler:
            yield sampler, Learner(folder, ON_CPU if device == "cpu" else ON_CUDA, device=device)


def compare(sampler: Any, learner: Learner, *, blocks: int, steps: int, lags: Sequence[int]) -> float:
    """Print the seconds of a step; returns the gain of the largest lag."""
    _, records = run(sampler, learner, learner.config, 4)
    sampling, updating = phases(records[1:])
    epochs = max(1, round(sampling / updating))
    config = replace(learner.config, objective=ObjectiveConfig(epochs=epochs))
    configs = {lag: replace(config, pipeline=PipelineConfig(lag=lag)) for lag in (0, *lags)}
    seconds: dict[int, list[float]] = {lag: [] for lag in configs}
    for lag in [*configs] * blocks:
        took, records = run(sampler, learner, configs[lag], steps)
        seconds[lag].append(took / steps)
        parts = "; sampling {:.2f} s, update {:.2f} s".format(*phases(records[1:])) if not lag else said(records)
        print(f"k = {lag}: {took / steps:.2f} s a step{parts}", flush=True)
    means = {lag: statistics.mean(each) for lag, each in seconds.items()}
    for lag in lags:
        print(f"k = {lag}: {means[0] / means[lag]:.2f} times the steps of alternation")
    return means[0] / means[max(lags)]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="0.5 billion parameters on a GPU")
    parser.add_argument("--blocks", type=int, default=2, help="blocks of each lag (default 2)")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run (default 24)")
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 8], help="lags beside 0 (default 1 8)")
    arguments = parser.parse_args()
    with opened("cuda" if arguments.cuda else "cpu") as (sampler, learner):
        gain = compare(sampler, learner, blocks=arguments.blocks, steps=arguments.steps, lags=arguments.lags)
    if not arguments.cuda and gain < LEAST:
        print(f"the largest lag has {gain:.2f} times the steps of alternation, and not {LEAST:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
