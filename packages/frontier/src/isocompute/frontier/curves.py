"""From an ``evals`` table to curves: the evaluations of one (n, B_p), over seeds, in one unit of compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .errors import FrontierError

Array = NDArray[np.float64]
UNITS = {"rollouts": "rollouts", "tokens": "tokens", "update_steps": "step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The evaluations of all runs of one setting, sorted by seed and compute.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        compute: Compute of each evaluation, in the unit of the fit.
        reward: Its metric.
        standard_error: Its binomial standard error.
        seed: Which run it belongs to, as 0, 1, …
    """

    rollouts_per_problem: int
    problems_per_batch: int
    compute: Array
    reward: Array
    standard_error: Array
    seed: NDArray[np.int64]

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


def curves(evals: pl.DataFrame, *, metric: str, unit: str, split: str, problem_set: str | None = None) -> list[Curve]:
    """Group an ``evals`` table into curves, sorted by B_p and n.

    Raises:
        FrontierError: The metric, unit, split or problem set is not there, or several problem sets are mixed.
    """
    if unit not in UNITS:
        raise FrontierError(f"the unit {unit!r} is unknown; it has to be one of {', '.join(UNITS)}")
    if metric not in evals.columns:
        known = ", ".join(c for c in evals.columns if "_at_" in c)
        raise FrontierError(f"there is no metric {metric!r}; there are {known}")
    rows = evals.filter(pl.col("split") == split)
    sets = rows["problem_set"].unique().sort().to_list()
    if problem_set is not None:
        rows = rows.filter(pl.col("problem_set") == problem_set)
    elif len(sets) > 1:
        raise FrontierError(f"the evaluations mix the problem sets {', '.join(sets)}: choose one")
    if rows.is_empty():
        raise FrontierError(f"there is no evaluation of split {split!r} and problem set {problem_set or 'any'}")
    found = []
    for (size, n), group in rows.group_by("problems_per_batch", "rollouts_per_problem", maintain_order=True):
        group = group.sort("seed", UNITS[unit])
        reward = group[metric].to_numpy().astype(np.float64)
        trials = (group["questions"] * group["samples"]).to_numpy().astype(np.float64)
        # A reward of 0 or 1 still has an error: half a success is added to either side.
        rate = (reward * trials + 0.5) / (trials + 1.0)
        found.append(
            Curve(
                rollouts_per_problem=int(n),
                problems_per_batch=int(size),
                compute=group[UNITS[unit]].to_numpy().astype(np.float64),
                reward=reward,
                standard_error=np.sqrt(rate * (1 - rate) / trials),
                seed=(group["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
            )
        )
    return sorted(found, key=lambda c: (c.problems_per_batch, c.rollouts_per_problem))
