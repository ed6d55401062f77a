"""From the tables of units to the shifts of n* at one rate and at the best rate, and which shifts can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from isocompute.frontier.fitting.intervals import t_quantile
from numpy.typing import NDArray

from ..panel import whole
from ..panel.statistics import Array, Estimate, over_units, vertex
from ..panel.study import UNITS as OF_THE_PANEL
from .cells import GRID, KEYS, SETTINGS

Key = tuple[str, int]
"""Of a unit: its problem set, and the seed of its base model."""
SETS = tuple(GRID)
RATES = tuple(sorted({rate for cells in GRID.values() for _, rate in cells}))
GROUP_SIZES = tuple(sorted({n for cells in GRID.values() for n, _ in cells}))
LOG_N = np.log2(GROUP_SIZES)
BOUNDS = (float(LOG_N[0]), float(LOG_N[-1]))
EARLY, LAST = BUDGETS = SETTINGS["early"], SETTINGS["sweep"]["rollouts"]
"""C_max/8 and C_max."""
FEWEST, MANY = 3, 4
"""Fewest n of which n* is read; how many n have learned at the rate that is called the fixed one of a unit."""
POWER = 0.8
"""Share of studies in which a shift that can be resolved is."""


def highest(log2_n: Array, rewards: Array, bounds: tuple[float, float]) -> Array:
    """The n of highest reward, in place of ``vertex``."""
    return np.asarray(log2_n[rewards.argmax(axis=1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How n* is read; the defaults are what is pinned.

    Attributes:
        early: The budget from which it moves.
        largest: The largest n.
        least: Reward above the base model's from which on a run has learned.
        top: From log2 n, rewards [budget, n] and bounds to n*.
    """

    early: int = EARLY
    largest: int = GROUP_SIZES[-1]
    least: float = 0.05
    top: Callable[[Array, Array, tuple[float, float]], Array] = vertex

    def shift(self, rewards: Array, used: NDArray[np.bool_]) -> float:
        """Octaves from n* at the first budget to n* at the last, of rewards [n, budget]; NaN of fewer than three n."""
        if used.sum() < FEWEST:
            return float("nan")
        first, last = self.top(LOG_N[used], rewards[used].T, BOUNDS)
        return float(last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The rewards of a unit whose cells are all there.

    Attributes:
        at: Of each run at each budget, [n, rate, budget]; NaN of one that is not run.
        learned: Which runs are above the base model at C_max, [n, rate].
    """

    at: Array
    learned: NDArray[np.bool_]

    @property
    def fixed(self) -> int | None:
        """The place of the highest rate at which four n or more have learned."""
        places = np.flatnonzero(self.learned.sum(axis=0) >= MANY)
        return int(places[-1]) if len(places) else None


def rewards_of(table: pl.DataFrame, reading: Reading) -> Rewards:
    """Read off a table the means of the last two evaluations up to each budget."""
    at = np.full((len(GROUP_SIZES), len(RATES), 2), np.nan)
    for (n, rate), rows in table.sort("rollouts").group_by(KEYS, maintain_order=True):
        for k, budget in enumerate((reading.early, LAST)):
            seen = rows.filter(pl.col("rollouts") <= budget)["avg_at_4"].tail(2)
            at[GROUP_SIZES.index(n), RATES.index(rate), k] = seen.to_numpy().mean()
    base = float(table.filter(pl.col("rollouts") == 0)["avg_at_4"].to_numpy().mean())
    counts = np.array(GROUP_SIZES)[:, None] <= reading.largest
    return Rewards(at=at, learned=(np.nan_to_num(at[..., 1], nan=-1.0) >= base + reading.least) & counts)


def at_rate(units: Mapping[Key, Rewards], reading: Reading, place: int | None = None) -> dict[Key, float]:
    """The shift of n* of each unit at one rate, among the n that have learned there; by default at its fixed one."""
    found = {}
    for key, own in units.items():
        at = own.fixed if place is None else place
        found[key] = float("nan") if at is None else reading.shift(own.at[:, at], own.learned[:, at])
    return found


def at_best_rate(units: Mapping[Key, Rewards], reading: Reading) -> dict[Key, float]:
    """The shift of n* of each unit, each n at the rate that is best at each budget for the other base models.

    The rate is one at which the unit's own run has learned, and the best of these by the mean reward of the others'
    runs that have learned, so that no run that is read was chosen for its luck. NaN where there is no other base model.
    """
    found = {}
    for (name, base), own in units.items():
        others = [each for (each_set, other), each in units.items() if each_set == name and other != base]
        if not others:
            found[name, base] = float("nan")
            continue
        known = np.stack([np.where(each.learned[..., None], each.at, np.nan) for each in others])
        count = np.isfinite(known).sum(axis=0)
        mean = np.nansum(known, axis=0) / np.maximum(count, 1)
        # One that nobody else has learned at comes last.
        best = np.where(own.learned[..., None], np.where(count > 0, mean, -0.5), -1.0).argmax(axis=1)
        chosen = np.take_along_axis(own.at, best[:, None, :], axis=1)[:, 0]
        found[name, base] = reading.shift(chosen, np.asarray(own.learned.any(axis=1)))
    return found


def estimate(numbers: Mapping[Key, float], sets: Sequence[str] = SETS) -> Estimate | None:
    """The mean over base models of their means over problem sets; None where fewer than two have all of these."""
    means = {("", base): float(np.mean([numbers.get((name, base), np.nan) for name in sets])) for _, base in numbers}
    there = {key: value for key, value in means.items() if np.isfinite(value)}
    return over_units(there) if len(there) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Of a problem set of the panel, at each budget: what blurs n*.

    Attributes:
        bend: Of the parabola of the rewards at the best rates in log2 n.
        run: Standard deviation of runs that differ in their seed alone.
        top: n* (octaves).
    """

    bend: tuple[float, ...]
    run: tuple[float, ...]
    top: float


def deviations(problem_set: str) -> Deviations:
    """Measure them: bends and n* over base models, and runs where the panel has two seeds."""
    bends, tops, gaps = [], [], []
    for unit in OF_THE_PANEL:
        if unit.problem_set != problem_set:
            continue
        evals = whole.read(unit).evals.filter(pl.col("kind").is_in(["trunk", "seed"])).sort("rollouts")
        upto = [evals.filter(pl.col("rollouts") <= budget).with_columns(budget=pl.lit(budget)) for budget in BUDGETS]
        ends = pl.concat(upto).group_by("budget", *KEYS, "seed").agg(pl.col("avg_at_4").tail(2).mean())
        best = ends.filter(pl.col("seed") == 0).group_by("budget", KEYS[0]).agg(pl.col("avg_at_4").max())
        rewards = best.sort("budget", KEYS[0])["avg_at_4"].to_numpy().reshape(len(BUDGETS), -1)
        bends.append(-np.polyfit(LOG_N, rewards.T, 2)[0])
        tops.append(vertex(LOG_N, rewards, BOUNDS).mean())
        twice = ends.group_by("budget", *KEYS).agg(pl.col("avg_at_4").var()).drop_nulls("avg_at_4")
        if len(twice):
            gaps.append(twice.sort("budget")["avg_at_4"].to_numpy().reshape(len(BUDGETS), -1).mean(axis=1))
    bend, run = np.mean(bends, axis=0).tolist(), np.sqrt(np.mean(gaps, axis=0)).tolist()
    return Deviations(bend=tuple(bend), run=tuple(run), top=float(np.mean(tops)))


def resolution(bases: int, sets: Iterable[str] = SETS, *, tries: int = 2000) -> tuple[float, float]:
    """The least shift whose 95 % interval excludes 0 in four of five studies, and the mean's standard deviation.

    Studies are simulated with the deviations of the panel, of rewards that are parabolas in log2 n, by the estimator of
    both readings, whose noise is that of one run for each n and budget.
    """
    of_sets, rng, deviation = [deviations(name) for name in sets], np.random.default_rng(0), float("inf")
    size = (tries * bases, len(LOG_N))
    for true in np.arange(0.0, 4.0, 0.1):
        moved = np.zeros(size[0])
        for own in of_sets:
            first, last = (
                vertex(LOG_N, run * rng.standard_normal(size) - bend * (LOG_N - top) ** 2, BOUNDS)
                for bend, run, top in zip(own.bend, own.run, (own.top, own.top + true), strict=True)
            )
            moved += (last - first) / len(of_sets)
        studies = moved.reshape(tries, bases)
        mean, half = studies.mean(axis=1), t_quantile(bases - 1) * studies.std(axis=1, ddof=1) / np.sqrt(bases)
        deviation = deviation if true else float(mean.std())
        if (mean - half > 0).mean() >= POWER:
            return float(true), deviation
    return float("inf"), deviation
