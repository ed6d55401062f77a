"""Time vLLM on CPU in a process of its own beside a learner: in turn, and with updates beside sampling.

    python -m benchmarks.pipeline [--blocks 2] [--steps 20] [--lags 1 8]

A Llama of random weights answers sums, and is updated on its answers, in as many micro-batches as take about as long as
sampling a batch. In each block the same number of steps is taken in turn (sample, update, sync), and with the pipe in
flight for each lag, with the same engine. Times are by the clock on the wall, so that nothing else may run; engine and
learner have a core each. It ends with an error where the largest lag has less than 1.3 times the steps of alternation.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
from isocompute.rollout import EngineConfig, Sampling, open_pipe, open_sampler

from benchmarks.sampler import SIZES, problems_table, save_model

PROBLEMS, SAMPLES, NEW_TOKENS = 16, 8, 96
SIZE = "3M"
MICRO_BATCH = 8
LEAST = 1.3
"""Steps with the largest lag, as a multiple of those of alternation."""


class Learner:
    """A policy that is updated on responses, in one thread.

    Attributes:
        micro_batches: Forward and backward passes of an update.
    """

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self._policy.parameters(), lr=1e-6)
        self.micro_batches, self.version = 8, 0

    def update(self, rollouts: pl.DataFrame) -> None:
        """Learn from a batch, or a part of it, or from some of it again."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        rows = [torch.tensor(p + r) for p, r in rollouts.select("prompt_ids", "response_ids").iter_rows()]
        parts = [pad_sequence(rows[i : i + MICRO_BATCH], batch_first=True) for i in range(0, len(rows), MICRO_BATCH)]
        for tokens in islice(cycle(parts), self.micro_batches):
            logits = self._policy(input_ids=tokens[:, :-1]).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.version += 1

    def weights(self) -> dict[str, Any]:
        """The weights by name."""
        weights: dict[str, Any] = self._policy.state_dict()
        return weights


def in_turn(sampler: Any, learner: Learner, first: int, steps: int) -> str:
    """Sample, update and sync in turn."""
    for step in range(first, first + steps):
        rollouts = sampler.sample(problems_table(PROBLEMS), samples=SAMPLES, seed=1, step=step)
        learner.update(rollouts)
        sampler.sync(learner.weights(), learner.version)
    return ""


def beside(sampler: Any, learner: Learner, first: int, steps: int, *, lag: int) -> str:
    """Update while the engine samples ahead; returns what to say of it."""
    begun, behind, mixed = first - 1, [], []
    pipe = open_pipe(sampler, "in_flight")
    pipe.idle()
    for step in range(first, first + steps):
        while begun < min(first + steps - 1, step + lag):
            begun += 1
            pipe.begin(problems_table(PROBLEMS), samples=SAMPLES, seed=1, step=begun, run_id="")
        rollouts = pipe.take(step)
        behind.append(learner.version - float(rollouts["weights_version"].to_numpy().mean()))
        mixed.append(float((rollouts["versions"].list.len() > 1).to_numpy().mean()))
        learner.update(rollouts)
        pipe.push(learner.weights(), learner.version)
    shares = pipe.idle()
    pipe.close()
    return (
        f"; first tokens {statistics.mean(behind):.1f} versions behind, {statistics.mean(mixed):.0%} of the responses "
        f"mixed; idle: engine {shares['engines']:.0%}, learner {shares['trainer']:.0%}"
    )


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and what it returns."""
    began = perf_counter()
    found = run()
    return perf_counter() - began, found


def compare(blocks: int, steps: int, lags: Sequence[int]) -> float:
    """Print the seconds of a step; returns the gain of the largest lag."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), **SIZES[SIZE])
        sampling = Sampling(max_new_tokens=NEW_TOKENS, max_prompt_tokens=8)
        engine = EngineConfig(max_concurrent=PROBLEMS * SAMPLES)
        sampler = open_sampler("vllm", folder, sampling, engine=engine, replicas={"replicas": 1})
        learner, sampling_seconds, update_seconds = Learner(folder), 0.0, 0.0
        for step in range(1, 4):
            # Of the last time: the first one imports and compiles.
            sample = partial(sampler.sample, problems_table(PROBLEMS), samples=SAMPLES, seed=1, step=step)
            sampling_seconds, rollouts = timed(sample)
            update_seconds, _ = timed(partial(learner.update, rollouts))
        learner.micro_batches = max(1, round(learner.micro_batches * sampling_seconds / update_seconds))
        tokens = rollouts["response_ids"].list.len().to_numpy().mean()
        print(
            f"{len(rollouts)} responses of {tokens:.0f} tokens are sampled in {sampling_seconds:.2f} s; an update has "
            f"{learner.micro_batches} micro-batches of {MICRO_BATCH}",
            flush=True,
        )
        ways: dict[str, Callable[..., str]] = {"in turn": in_turn}
        ways |= {f"k = {lag}": partial(beside, lag=lag) for lag in lags}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        first = 4
        for way, take in [*ways.items()] * blocks:
            took, said = timed(partial(take, sampler, learner, first, steps))
            seconds[way].append(took / steps)
            first += steps
            print(f"{way}: {took / steps:.2f} s a step{said}", flush=True)
        sampler.close()
    means = {way: statistics.mean(each) for way, each in seconds.items()}
    for way in ways:
        print(f"{way}: {means['in turn'] / means[way]:.2f} times the steps of alternation")
    return means["in turn"] / means[f"k = {max(lags)}"]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    gain = compare(arguments.blocks, arguments.steps, arguments.lags)
    if gain < LEAST:
        raise SystemExit(
            f"the largest lag has {gain:.2f} times the steps of alternation; it must be {LEAST:g} at least"
        )


if __name__ == "__main__":
    main()
