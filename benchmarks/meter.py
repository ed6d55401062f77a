"""Time the ledger in the real training loop: the same steps with it and without it, interleaved.

    python -m benchmarks.meter [--blocks 12] [--steps 20]

Each block trains the same few steps from the base model twice, in alternating order: once with the ledger's meter,
once with one that only counts steps. Seeds are the same, so tokens and updates are, too; only the meter differs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
from isocompute.budget import Ledger, Limits, Meter
from isocompute.learner import (
    Checkpoints,
    Learner,
    LearnerConfig,
    Progress,
    RunConfig,
    Sampler,
    UpdateSteps,
    protocols,
    train,
)
from isocompute.learner.config import EntropyConfig, KLConfig
from isocompute.rollout import Sampling, load_problems, open_sampler, source_from

from .sampler import BASE

CONFIG = LearnerConfig(learning_rate=5e-4, kl=KLConfig(coefficient=0.001), entropy=EntropyConfig(coefficient=0.001))
BATCH = 8 * 4


def seconds(learner: Learner, sampler: Sampler, problems: pl.DataFrame, meter: protocols.Meter, folder: Path) -> float:
    """Seconds of the steps that the meter admits, from the base model on."""
    learner.reset(CONFIG)
    sampler.sync(learner.weights(), learner.version)
    run = RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=8, seed=1, evaluate_every=2**20 * BATCH)
    # No evaluation: the row of step 0 is taken as there.
    progress = Progress(step=0, rollouts=0, tokens=0, evals=[{}])
    began = perf_counter()
    train(
        run=run,
        problems=problems,
        sampler=sampler,
        learner=learner,
        evaluator=_no_evaluation,
        meter=meter,
        checkpoints=Checkpoints(folder),
        progress=progress,
        watch=lambda record: None,
    )
    return perf_counter() - began


def _no_evaluation(**at: int) -> Any:
    raise RuntimeError(f"no evaluation is to be made within the steps of a block, and one was at {at}")


def ratio(pairs: list[tuple[float, float]]) -> float:
    """Time with the ledger over time without it."""
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


def main() -> None:
    """Run the benchmark."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        terms = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}
        source = {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "settings": terms}
        problems = load_problems(source_from({**source, "train": 64, "validation": 8}))
        problems = problems.filter(pl.col("split") == "train")
        sampler = open_sampler("vllm", str(BASE), Sampling(max_new_tokens=12, max_prompt_tokens=8))
        learner = Learner(BASE, CONFIG)

        def metered(block: int) -> float:
            with Ledger.open(home / f"{block}.bin", run_id="r") as ledger:
                meter = Meter(ledger, Limits(rollouts=arguments.steps * BATCH))
                return seconds(learner, sampler, problems, meter, home / "checkpoints")

        def free() -> float:
            return seconds(learner, sampler, problems, UpdateSteps(limit=arguments.steps), home / "checkpoints")

        free()
        pairs = []
        for block in range(arguments.blocks):
            if block % 2:
                without, within = free(), metered(block)
            else:
                within, without = metered(block), free()
            pairs.append((within, without))
            print(
                f"block {block}: {within / arguments.steps * 1e3:.1f} ms a step with, "
                f"{without / arguments.steps * 1e3:.1f} ms without"
            )
    generator = random.Random(0)
    draws = sorted(ratio(generator.choices(pairs, k=len(pairs))) for _ in range(2000))
    print(f"with the ledger over without: {ratio(pairs):.3f} (95 %: {draws[50]:.3f} to {draws[1949]:.3f})")


if __name__ == "__main__":
    main()
