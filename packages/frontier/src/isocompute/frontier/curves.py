"""A curve: the evaluations of one (n, B_p), over seeds, in one unit of compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .records import records, smoothed

Array = NDArray[np.float64]
UNITS = {"rollouts": "rollouts", "tokens": "tokens", "update_steps": "step", "gpu_hours": "gpu_hours"}
"""Units of compute, and the column that holds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The evaluations of all runs of one setting, sorted by seed and compute.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        compute: Compute of each evaluation, in the unit of the fit.
        reward: Its metric.
        standard_error: Its standard error within the run.
        seed: Which run it belongs to, as 0, 1, …
        seed_names: The seeds as the table names them, in that order; 0, 1, … when left out.
        group: Value of the grouping column, or empty without one.
        error_is_known: Whether the standard error is that of sampling responses, below which no noise can be; else
            only the ratio of one point's to another's means something.
        answers: Each question's contribution to each point, shape ``(points, questions)``; None without pass rates.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    compute: Array
    reward: Array
    standard_error: Array
    seed: NDArray[np.int64]
    seed_names: tuple[int, ...] = ()
    group: str = ""
    error_is_known: bool = True
    answers: Array | None = None

    @property
    def names(self) -> tuple[int, ...]:
        """What each seed is called: the same name on two curves is the same seed."""
        return self.seed_names or tuple(range(self.seeds))

    @property
    def label(self) -> str:
        """Who it is, for people."""
        return f"n = {self.rollouts_per_problem}" + (f", {self.group}" if self.group else "")

    @property
    def seeds(self) -> int:
        """How many runs the curve has."""
        return int(self.seed.max()) + 1

    @property
    def support(self) -> tuple[float, float]:
        """Compute of the first evaluation after the start, and of the last that every seed reached."""
        positive = self.compute[self.compute > 0]
        if not len(positive):
            return (0.0, 0.0)
        last = min(float(self.compute[self.seed == s].max()) for s in range(self.seeds))
        return float(positive.min()), last


def of_records(curve: Curve, *, bin_width: float, window: int = 1) -> Curve:
    """The record-breaking points of each run, and those at zero compute.

    With a window they are records of the running mean, and carry it: a smoothed curve has less noise to break
    records with.
    """
    rewards = curve.reward.copy()
    kept = [np.flatnonzero(curve.compute == 0)]
    for s in range(curve.seeds):
        own = np.flatnonzero((curve.seed == s) & (curve.compute > 0))
        rewards[own] = smoothed(curve.reward[own], window)
        kept.append(own[records(curve.compute[own], rewards[own], bin_width=bin_width)])
    chosen = np.unique(np.concatenate(kept))
    return replace(
        curve, compute=curve.compute[chosen], reward=rewards[chosen],
        standard_error=curve.standard_error[chosen], seed=curve.seed[chosen],
        answers=None if curve.answers is None else curve.answers[chosen],
    )  # fmt: skip
