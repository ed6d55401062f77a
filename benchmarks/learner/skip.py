"""Time an update where nine groups of ten have equal rewards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from isocompute.learner import Learner

from benchmarks.sampler import cpu_seconds, save_model

from .steps import CONFIG, CoinFlips, Steps, open_engine, problems_table, sampling

EQUAL = 0.9
GROUPS = 20
"""Problems per batch: two of them teach something."""
MOST_SECONDS = 1.25
"""Time of whole steps, as a multiple of that of sampling alone."""
BLOCK_ROLLOUTS = 2560


def skip(*, samples: list[int], new_tokens: list[int], blocks: int) -> list[str]:
    """Print the time of whole steps over that of sampling alone, interleaved; return what is slower than it may be.

    Args:
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
    """
    slow: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        engine = open_engine(folder, max(new_tokens), responses=GROUPS * max(samples))
        learner = Learner(folder, CONFIG)
        for length in new_tokens:
            engine.use(sampling(length))
            for n in samples:
                slow += _one(engine, learner, folder, samples=n, length=length, blocks=blocks)
        engine.close()
    return slow


def _one(engine: Any, learner: Learner, folder: Path, *, samples: int, length: int, blocks: int) -> list[str]:
    learner.reset(CONFIG)
    engine.sync(learner.weights(), learner.version)
    count = max(1, BLOCK_ROLLOUTS // (GROUPS * samples))
    problems = problems_table(GROUPS)
    steps = Steps(
        learner, CoinFlips(engine, equal=EQUAL), problems, groups=GROUPS, samples=samples, folder=folder / "none"
    )

    def whole() -> None:
        steps.take(count)

    def alone() -> None:
        for step in range(steps.progress.step + 1, steps.progress.step + count + 1):
            engine.sample(problems, samples=samples, seed=1, step=step, phase="train", run_id="r")

    seconds = {whole: 0.0, alone: 0.0}
    for work in (whole, alone):
        work()
    for block in range(blocks):
        for work in (whole, alone) if block % 2 == 0 else (alone, whole):
            began = cpu_seconds()
            work()
            seconds[work] += cpu_seconds() - began
    rollouts = blocks * count * GROUPS * samples
    ratio = seconds[whole] / seconds[alone]
    print(
        f"n = {samples}, {length} new tokens, {EQUAL:.0%} of groups with equal rewards: whole steps "
        f"{seconds[whole] / rollouts * 1e3:.2f} ms of CPU per rollout, sampling alone "
        f"{seconds[alone] / rollouts * 1e3:.2f}: {ratio:.2f} times",
        flush=True,
    )
    if ratio <= MOST_SECONDS:
        return []
    return [
        f"with n = {samples} and {length} new tokens whole steps take {ratio:.2f} times the time of sampling alone, "
        f"and it must be at most {MOST_SECONDS:g} times"
    ]
