"""Cells: the single runs that sweeps, pilots and tests of a prescription are made of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from isocompute.budget import Allocation
from isocompute.learner import LearnerConfig

from .config import SweepConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One ``(B_p, n, seed)`` run and all that its result depends on.

    Attributes:
        purpose: ``sweep``, ``pilot`` or ``prescribe``.
        problem_set: Problem set trained on and evaluated.
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        seed: Seed of the run.
        rollouts: Budget, C.
        evaluate_every: Cumulative rollouts between evaluations.
        evaluation_samples: Responses per validation problem.
        learner: The learner's settings.
        base: Content hash of the base model.
        problems: Content hash of the problem set.
        sampling: Sampling settings.
        sampler: Kind of sampler.
    """

    purpose: str
    problem_set: str
    rollouts_per_problem: int
    problems_per_batch: int
    seed: int
    rollouts: int
    evaluate_every: int
    learner: LearnerConfig
    base: str
    problems: str
    sampling: dict[str, Any]
    sampler: str
    evaluation_samples: int = 4

    @property
    def run_id(self) -> str:
        """Hash of the configuration."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def name(self) -> str:
        """Name shown to people."""
        rate = f" lr={self.learner.learning_rate:.3g}" if self.purpose == "pilot" else ""
        return f"n={self.rollouts_per_problem} Bp={self.problems_per_batch} seed={self.seed}{rate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What all cells of a problem set share."""

    problem_set: str
    base: str
    problems: str
    sampling: dict[str, Any]
    sampler: str


def sweep_cells(sweep: SweepConfig, origin: Origin, *, anchor: float, anchor_batch: int) -> list[Cell]:
    """Cells of a sweep, the learning rate of each scaled from the anchor by the root of its batch."""
    return [
        cell(
            sweep, origin, "sweep", n=n, size=size, seed=seed, rollouts=sweep.rollouts,
            evaluate_every=sweep.evaluate_every, anchor=anchor, anchor_batch=anchor_batch,
        )
        for n in sweep.rollouts_per_problem
        for size in sweep.problems_per_batch
        for seed in sweep.seeds
    ]  # fmt: skip


def pilot_cells(sweep: SweepConfig, origin: Origin) -> list[Cell]:
    """Cells of the pilot: the largest batch at each learning rate of the grid."""
    n, size = max(sweep.rollouts_per_problem), max(sweep.problems_per_batch)
    every = _pilot_grid(sweep.pilot.rollouts, n * size)
    return [
        cell(
            sweep, origin, "pilot", n=n, size=size, seed=sweep.pilot.seed, rollouts=sweep.pilot.rollouts,
            evaluate_every=every, anchor=rate, anchor_batch=n * size,
        )
        for rate in sweep.pilot.learning_rates
    ]  # fmt: skip


def _pilot_grid(rollouts: int, batch: int) -> int:
    """About four evaluations, on whole batches, the last at the end."""
    steps = max(1, rollouts // batch)
    return batch * max(1, steps // 4)


def cell(
    sweep: SweepConfig,
    origin: Origin,
    purpose: str,
    *,
    n: int,
    size: int,
    seed: int,
    rollouts: int,
    evaluate_every: int,
    anchor: float,
    anchor_batch: int,
) -> Cell:
    """Make one cell with √B learning-rate scaling from the anchor."""
    allocation = Allocation.within(rollouts, problems_per_batch=size, rollouts_per_problem=n)
    rate = allocation.learning_rate(anchor=anchor, anchor_batch=anchor_batch)
    return Cell(
        purpose=purpose,
        problem_set=origin.problem_set,
        rollouts_per_problem=n,
        problems_per_batch=size,
        seed=seed,
        rollouts=rollouts,
        evaluate_every=evaluate_every,
        learner=LearnerConfig(learning_rate=rate, temperature=origin.sampling["temperature"], **sweep.learner),
        base=origin.base,
        problems=origin.problems,
        sampling=origin.sampling,
        sampler=origin.sampler,
    )


def content_hash(path: Path) -> str:
    """Hash of a file, or of a folder's file names and contents."""
    digest = sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(file.name.encode() + b"\0" + sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
