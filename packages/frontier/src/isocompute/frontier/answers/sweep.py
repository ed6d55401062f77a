"""A fitted sweep as data: its curves, its envelope and n*(C), and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..data.curves import Array, Curve, Mask, not_beyond
from ..errors import Flag
from ..fitting.crossovers import Crossover
from ..fitting.curve_fit import CurveFit
from ..fitting.differences import Difference
from ..fitting.nstar import Sigmoid
from ..fitting.saturation import Saturation, isotonic_n
from .frontier import BestCell, FrontierPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSweep:
    """What was found of a sweep; ``Fits`` adds how it is printed and saved.

    Attributes:
        unit: Unit of compute.
        metric: Metric fitted.
        curves: One per (n, B_p).
        frontier: The envelope, one point per compute of a grid that is log-uniform over the support.
        degrees: Degrees of freedom behind how often each curve is best.
        crossovers: Transitions of the envelope.
        n_star: The log2-sigmoid of n*(C).
        points: ``all`` or ``records``.
        apart: What can be said of every pair of fitted curves that have compute in common.
        saturation: Where n*(C) stops growing, or None when nothing was fitted.
        selection: How forms were chosen, or None when one was asked for.
        bin_width: Width of a record's bin of reward.
        questions_sampled: Whether intervals include the luck of which questions are asked, which needs pass rates;
            else they hold for the questions evaluated.
    """

    unit: str
    metric: str
    curves: tuple[CurveFit, ...]
    frontier: tuple[FrontierPoint, ...]
    crossovers: tuple[Crossover, ...]
    n_star: Sigmoid
    degrees: float = 1.0
    points: str = "all"
    apart: tuple[Difference, ...] = ()
    saturation: Saturation | None = None
    selection: str | None = None
    bin_width: float = 0.005
    questions_sampled: bool = False

    @property
    def fitted(self) -> list[CurveFit]:
        """The curves that could be fitted."""
        return [c for c in self.curves if c.parameters is not None]

    @property
    def compute(self) -> Array:
        """Grid of compute, shape ``(points,)``."""
        return np.array([p.compute for p in self.frontier])

    @property
    def envelope(self) -> Array:
        """Reward of the envelope and its 95 % interval, shape ``(3, points)``; it never falls."""
        rows = [(p.reward, p.reward_low, p.reward_high) for p in self.frontier]
        return np.ascontiguousarray(np.array(rows).reshape(-1, 3).T)

    @property
    def carried(self) -> Mask:
        """Where the data of the curve that attains the envelope have ended, shape ``(points,)``."""
        return np.array([p.carried for p in self.frontier], dtype=np.bool_)

    @property
    def probability(self) -> Array:
        """How often each fitted curve is best at each compute, shape ``(fitted, points)``; see ``pooling``."""
        rows = np.array([p.shares for p in self.frontier]).reshape(len(self.frontier), len(self.fitted))
        return np.ascontiguousarray(rows.T)

    @property
    def support(self) -> tuple[float, float]:
        """Smallest and largest compute that any curve's data reach."""
        return self.frontier[0].compute, self.frontier[-1].compute

    @property
    def within_run(self) -> bool:
        """Whether some curve's intervals exclude the variance between seeds: every curve compared has one seed."""
        return any(Flag.WITHIN_RUN_ONLY in c.flags for c in self.fitted)

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Pairs of fitted curves that the data do not tell apart, by index."""
        return tuple((d.first, d.second) for d in self.apart if not d.told_apart)

    def best_at(self, compute: float) -> BestCell:
        """The cell that is best most often at some supported compute."""
        point = self.frontier[int(np.abs(np.log(self.compute / compute)).argmin())]
        fitted = self.fitted
        best = fitted[point.best]
        assert best.parameters is not None
        return BestCell(
            compute=compute, rollouts_per_problem=best.curve.rollouts_per_problem,
            problems_per_batch=best.curve.problems_per_batch, group=best.curve.group, probability=point.probability,
            competing=self.competing(compute),
            n_set=tuple(sorted({fitted[k].curve.rollouts_per_problem for k in point.likely()})),
            reward=float(best.parameters(min(compute, best.curve.support[1]))),
        )  # fmt: skip

    def competing(self, compute: float) -> int:
        """How many n have been evaluated at some compute or less: a run can be stopped before its budget is spent."""
        begun = [c.curve for c in self.fitted if not_beyond(c.curve.support[0], compute)]
        return len({c.rollouts_per_problem for c in begun})

    def best_cells(self) -> list[BestCell]:
        """n*(C) at five budgets, log-uniform over the support."""
        return [self.best_at(float(compute)) for compute in np.geomspace(*self.support, 5)]

    def n_star_table(self) -> pl.DataFrame:
        """n*(C) at five budgets.

        ``compute``, ``n`` of the best cell, ``problems_per_batch`` of it, ``probability``: in how many refits it is
        best, ``competing``: how many n have data there or at less compute, ``n_set``: the 95 % set of n, ``reward``.
        """
        return pl.DataFrame([cell.as_row() for cell in self.best_cells()])

    def frontier_table(self) -> pl.DataFrame:
        """The envelope: ``compute``, ``reward``, its interval, the best ``n``, how often it is best, the 95 % set.

        Also the best B_p, the update steps M = C/(B_p·n) where compute is in rollouts, the non-decreasing
        companion of n*, whether the reward is one reached at less compute because the best curve's data end,
        and the group where there is one.
        """
        cells = [self.best_at(p.compute) for p in self.frontier]
        n = np.array([cell.rollouts_per_problem for cell in cells], dtype=np.float64)
        rows = [
            {
                "compute": p.compute, "reward": p.reward, "reward_low": p.reward_low, "reward_high": p.reward_high,
                "n": cell.rollouts_per_problem, "problems_per_batch": cell.problems_per_batch,
                "probability": cell.probability, "competing": cell.competing, "n_set": list(cell.n_set),
                "isotonic_n": companion, "carried": p.carried,
            }
            for p, cell, companion in zip(
                self.frontier, cells, isotonic_n(self.compute, n).tolist(), strict=True
            )
        ]  # fmt: skip
        table = pl.DataFrame(rows)
        if self.unit == "rollouts":
            batch = pl.col("n") * pl.col("problems_per_batch")
            table = table.with_columns(update_steps=pl.col("compute") / batch)
        if any(c.curve.group for c in self.fitted):
            table = table.with_columns(group=pl.Series([cell.group for cell in cells]))
        return table

    def named(self, index: int) -> str:
        """The name of a fitted curve, to be printed."""
        return curve_name(self.fitted[index].curve, [c.curve for c in self.fitted])


def curve_name(curve: Curve, others: Sequence[Curve]) -> str:
    """The name of a curve, to be printed: n, and B_p and the group where they tell it from others."""
    several = len({c.problems_per_batch for c in others}) > 1
    named = f"n = {curve.rollouts_per_problem}" + (f", B_p = {curve.problems_per_batch}" if several else "")
    return f"{named}, {curve.group}" if curve.group else named
