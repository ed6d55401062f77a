"""From an ``evals`` table to curves: the evaluations of one (n, B_p), over seeds, in one unit of compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .errors import FrontierError
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
        standard_error: Its binomial standard error.
        seed: Which run it belongs to, as 0, 1, …
        seed_names: The seeds as the table names them, in that order; 0, 1, … when left out.
        group: Value of the grouping column, or empty without one.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    compute: Array
    reward: Array
    standard_error: Array
    seed: NDArray[np.int64]
    seed_names: tuple[int, ...] = ()
    group: str = ""

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


def curves(
    evals: pl.DataFrame, *, metric: str, unit: str, split: str, problem_set: str | None = None,
    group: str | None = None,
) -> list[Curve]:  # fmt: skip
    """Group an ``evals`` table into curves, sorted by B_p and n, and by the grouping column where there is one.

    Args:
        evals: The table.
        metric: Metric column.
        unit: Unit of compute.
        split: Split evaluated.
        problem_set: Problem set, needed when there are several.
        group: A further column, such as the recipe: runs that differ in it are curves of their own.

    Raises:
        FrontierError: The metric, unit, split, problem set or grouping column is not there, several problem sets
            are mixed, or a reward lies outside 0 to 1.
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
    if group is not None and group not in rows.columns:
        raise FrontierError(f"there is no column {group!r} to group by; there are {', '.join(rows.columns)}")
    _possible(rows, metric, UNITS[unit])
    keys = ["problems_per_batch", "rollouts_per_problem", *([group] if group else [])]
    found = []
    for key, part in rows.group_by(keys, maintain_order=True):
        # The metric last, so that even points of equal compute have one order.
        own = part.sort("seed", UNITS[unit], metric)
        reward = own[metric].to_numpy().astype(np.float64)
        found.append(
            Curve(
                rollouts_per_problem=int(key[1]),
                problems_per_batch=int(key[0]),
                compute=own[UNITS[unit]].to_numpy().astype(np.float64),
                reward=reward,
                standard_error=_standard_error(own, reward),
                seed=(own["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
                seed_names=tuple(own["seed"].unique().sort().to_list()),
                group=f"{group} = {key[2]}" if group else "",
            )
        )
    return sorted(found, key=lambda c: (c.problems_per_batch, c.rollouts_per_problem, c.group))


def _possible(rows: pl.DataFrame, metric: str, column: str) -> None:
    """Refuse rewards and compute that cannot be.

    Raises:
        FrontierError: Says which value, and of which run where the table says so.
    """
    reward, compute = pl.col(metric), pl.col(column)
    wrong = {
        f"{metric} lies outside 0 to 1": ~reward.is_between(0, 1),
        f"{metric} is not a finite number": reward.is_null() | ~reward.is_finite(),
        f"{column} is negative": compute < 0,
        f"{column} is not a finite number": compute.is_null() | ~compute.cast(pl.Float64).is_finite(),
    }
    for what, bad in reversed(wrong.items()):
        found = rows.filter(bad)
        if not found.is_empty():
            row = found.row(0, named=True)
            raise FrontierError(
                f"{what} at n = {row['rollouts_per_problem']}, B_p = {row['problems_per_batch']}, seed {row['seed']}: "
                f"{metric} {row[metric]}, {column} {row[column]}"
            )


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
    )  # fmt: skip
