"""From an ``evals`` table to curves: the evaluations of one (n, B_p), over seeds, in one unit of compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .errors import FrontierError
from .records import records

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
    if UNITS[unit] not in evals.columns:
        raise FrontierError(f"there is no column {UNITS[unit]!r}, which fits in {unit} need")
    # A table of one split is of that one, whatever it is called.
    rows = evals if evals["split"].n_unique() == 1 else evals.filter(pl.col("split") == split)
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
        found.append(
            Curve(
                rollouts_per_problem=int(n),
                problems_per_batch=int(size),
                compute=group[UNITS[unit]].to_numpy().astype(np.float64),
                reward=reward,
                standard_error=_standard_error(group, reward),
                seed=(group["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
            )
        )
    return sorted(found, key=lambda c: (c.problems_per_batch, c.rollouts_per_problem))


def _standard_error(group: pl.DataFrame, reward: Array) -> Array:
    """Binomial where the trials are known; else what neighbouring evaluations of a run differ by."""
    if {"questions", "samples"} <= set(group.columns):
        trials = (group["questions"] * group["samples"]).to_numpy().astype(np.float64)
        # A reward of 0 or 1 still has an error: half a success is added to either side.
        rate = (reward * trials + 0.5) / (trials + 1.0)
        return np.asarray(np.sqrt(rate * (1 - rate) / trials))
    steps = np.abs(np.diff(reward))[group["seed"].to_numpy()[1:] == group["seed"].to_numpy()[:-1]]
    # The median of |N(0, 2σ²)| is 0.954 σ.
    return np.full_like(reward, max(float(np.median(steps)) / 0.954 if len(steps) else 0.0, 1e-4))


def of_records(curve: Curve, *, bin_width: float) -> Curve:
    """The record-breaking points of each run, and those at zero compute."""
    kept = [np.flatnonzero(curve.compute == 0)]
    for s in range(curve.seeds):
        own = np.flatnonzero((curve.seed == s) & (curve.compute > 0))
        kept.append(own[records(curve.compute[own], curve.reward[own], bin_width=bin_width)])
    chosen = np.unique(np.concatenate(kept))
    return replace(
        curve, compute=curve.compute[chosen], reward=curve.reward[chosen],
        standard_error=curve.standard_error[chosen], seed=curve.seed[chosen],
    )  # fmt: skip
