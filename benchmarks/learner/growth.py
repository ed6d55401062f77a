"""Measure whether the cost of an update is linear in its tokens, and memory the same after a thousand steps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import polars as pl
from isocompute.learner import Learner

from benchmarks.sampler import save_model

from .recorded import CONFIG, Recorded, batch, responses
from .steps import Steps, problems_table

SIZES = (256, 1024, 4096, 16384)
"""Rollouts of an update."""
LEAST_ROLLOUTS = 4096
"""Smaller updates are repeated until they have as many."""
MOST_PER_TOKEN = 1.15
"""Cost of a token in the largest update, as a multiple of that in one of 1,024 rollouts."""
PROMPT, LENGTHS = 4, (8, 24)
STEPS, WARM = 1000, 200
"""Steps in all, and those after which memory is first looked at."""
MOST_MIB = 16.0
"""By how much the process may have grown since."""


def one_update(learner: Learner, rollouts: pl.DataFrame) -> float:
    """Return the CPU-seconds from a step's responses to new weights."""
    rollouts = rollouts.with_columns(weights_version=pl.lit(learner.version, dtype=pl.Int64))
    began = process_time()
    learner.update(batch(rollouts))
    return process_time() - began


def linear(sizes: Sequence[int] = SIZES) -> list[str]:
    """Print what a token costs in updates of several sizes; return what grows faster than it may.

    Args:
        sizes: Rollouts of each update.
    """
    costs: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        save_model(Path(name))
        learner = Learner(name, CONFIG)
        tables = {size: responses(size, prompt=PROMPT, lengths=LENGTHS) for size in sizes}
        one_update(learner, tables[sizes[0]])
        print("updates from recorded responses, 0.85M parameters:")
        for size, table in tables.items():
            tokens = int(table["response_ids"].list.len().sum())
            repeats = max(1, LEAST_ROLLOUTS // size)
            seconds = sum(one_update(learner, table) for _ in range(repeats)) / repeats
            costs[size] = seconds / tokens
            print(
                f"  {size:6,} rollouts, {tokens:8,} tokens: {seconds:8.3f} CPU-seconds, "
                f"{costs[size] * 1e6:6.1f} µs a token",
                flush=True,
            )
    largest, start = max(sizes), min(size for size in sizes if size >= min(1024, max(sizes)))
    growth = costs[largest] / costs[start]
    print(f"  a token of {largest:,} rollouts costs {growth:.2f} times one of {start:,}")
    if growth <= MOST_PER_TOKEN:
        return []
    return [
        f"a token of {largest:,} rollouts costs {growth:.2f} times one of {start:,}, and it must be at most "
        f"{MOST_PER_TOKEN:g} times"
    ]


def flat(steps: int = STEPS) -> list[str]:
    """Print the memory of the process over many steps of the loop; return what grows.

    Every step has other responses, of other lengths, so that allocators are given the chance to fragment.

    Args:
        steps: How many.
    """
    seen: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, hidden=64, layers=2, intermediate=192)
        taken = Steps(
            Learner(folder, CONFIG),
            Recorded(prompt=PROMPT, lengths=(1, 24)),
            problems_table(64),
            groups=8,
            samples=8,
            folder=folder,
        )
        print(f"memory of the process over {steps:,} steps of 64 recorded responses:")
        while taken.progress.step < steps:
            taken.take(min(WARM, steps - taken.progress.step))
            taken.records.clear()
            seen[taken.progress.step] = resident_mib()
            print(f"  after {taken.progress.step:5,} steps: {seen[taken.progress.step]:8.1f} MiB", flush=True)
    grown = seen[steps] - seen[min(seen)]
    print(f"  from step {min(seen):,} to {steps:,} it grew by {grown:.1f} MiB")
    return [] if grown <= MOST_MIB else [f"memory grew by {grown:.1f} MiB, and it may by {MOST_MIB:g}"]


def resident_mib() -> float:
    """Return what this process holds in main memory (MiB)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
