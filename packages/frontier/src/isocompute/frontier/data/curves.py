"""A curve: the evaluations of one (n, B_p), over seeds, in one unit of compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
UNITS = {"rollouts": "rollouts", "tokens": "tokens", "update_steps": "step", "gpu_hours": "gpu_hours"}
"""Units of compute, and the column that holds each."""
TOLERANCE = 1e-9
"""Relative error of rounding within which compute still counts as within the data."""


def not_beyond(compute: Array | float, last: Array | float) -> Mask:
    """Whether data that end at some compute reach another one; broadcasts over its arguments."""
    return np.asarray(compute <= last * (1 + TOLERANCE), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The evaluations of all runs of one setting, sorted by seed and compute.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        compute: Compute of each evaluation, in the unit of the fit.
        reward: Its metric.
        seed: Which run it belongs to, as 0, 1, …
        group: Value of the grouping column, or empty without one.
        whole: Support of the runs where the points are only some of theirs, as records are; else None.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    compute: Array
    reward: Array
    seed: NDArray[np.int64]
    group: str = ""
    whole: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        """Its name to be printed: n, and the group where there is one."""
        return f"n = {self.rollouts_per_problem}" + (f", {self.group}" if self.group else "")

    @property
    def seeds(self) -> int:
        """How many runs the curve has."""
        return int(self.seed.max()) + 1

    @property
    def support(self) -> tuple[float, float]:
        """Compute of the first evaluation after the start, and of the last that every seed reached."""
        if self.whole is not None:
            return self.whole
        positive = self.compute[self.compute > 0]
        if not len(positive):
            return (0.0, 0.0)
        last = min(float(self.compute[self.seed == s].max()) for s in range(self.seeds))
        return float(positive.min()), last
