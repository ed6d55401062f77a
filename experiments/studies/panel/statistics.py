"""Statistics of numbers of units: intervals over units, the vertex of a sweep, and the rules of plan.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from isocompute.frontier.fitting.intervals import t_quantile
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
LEVEL = 0.95
TAIL = (1 - LEVEL) / 2
"""Probability outside either end of an interval, and so the level of each verdict."""


class Verdict(StrEnum):
    """Answers to a question, each in this panel."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over units.

    Attributes:
        error: Its standard error.
        freedom: Degrees of freedom of that.
    """

    value: float
    error: float
    freedom: float
    units: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by Student's t."""
        half = t_quantile(self.freedom) * self.error
        return self.value - half, self.value + half

    def below(self, bound: float) -> float:
        """One-sided p of the claim that the mean is below a bound: small where it is so."""
        if self.error == 0:
            return float(self.value >= bound)
        return float(stats.t.cdf((self.value - bound) / self.error, self.freedom))

    def above(self, bound: float) -> float:
        """The same of the claim that it is above."""
        return replace(self, value=-self.value).below(-bound)


def over_units(values: Mapping[tuple[str, int], float]) -> Estimate:
    """The mean over units; Satterthwaite over settings and bases where both vary and none is missing.

    With mean squares of settings (MS_S), bases (MS_B) and residuals (MS_E) of a table of S × B units, the variance of
    the mean is (MS_S + MS_B − MS_E)/(S·B). Elsewhere units count as independent.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} units have no mean with an interval; two or more do")
    numbers = np.array(list(values.values()), dtype=np.float64)
    mean, count = float(numbers.mean()), len(numbers)
    settings, bases = sorted({setting for setting, _ in values}), sorted({base for _, base in values})
    if min(len(settings), len(bases)) < 2 or len(settings) * len(bases) != count:
        return Estimate(value=mean, error=float(numbers.std(ddof=1) / np.sqrt(count)), freedom=count - 1, units=count)
    table = np.array([[values[s, b] for b in bases] for s in settings])
    variance, freedom = _crossed(table)
    return Estimate(value=mean, error=float(np.sqrt(variance / count)), freedom=freedom, units=count)


def _crossed(table: Array) -> tuple[float, float]:
    """Variance of a mean over rows and columns that are both draws, times its units, and degrees of freedom."""
    rows, columns = table.shape
    by_row, by_column = table.mean(axis=1), table.mean(axis=0)
    residual = table - by_row[:, None] - by_column + table.mean()
    squares = np.array([columns * by_row.var(ddof=1), rows * by_column.var(ddof=1), 0.0])
    freedom = np.array([rows - 1, columns - 1, (rows - 1) * (columns - 1)], dtype=np.float64)
    squares[2] = (residual**2).sum() / freedom[2]
    variance = float(squares[0] + squares[1] - squares[2])
    if variance <= squares[2]:
        # Neither rows nor columns differ by more than the residuals.
        return float(squares[2]), float(freedom[2])
    return variance, float(variance**2 / (squares**2 / freedom).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a question is decided (plan.md, "How it is decided").

    Attributes:
        claimed: ``above`` or ``below`` a bound, ``inside`` two, or ``equal`` to 0 within ``least``.
        least: δ, the least effect that counts.
        bounds: What a number is compared with: one bound, or two for ``inside``.
    """

    claimed: str
    least: float = 0.0
    bounds: tuple[float, ...] = (0.0,)

    def of(self, estimate: Estimate) -> tuple[Verdict, float]:
        """The plain verdict with its one-sided p; undecided with 1."""
        found = [(verdict, p) for verdict, p, counts in self._sides(estimate) if p <= TAIL and counts]
        return found[0] if found else (Verdict.UNDECIDED, 1.0)

    def _sides(self, own: Estimate) -> list[tuple[Verdict, float, bool]]:
        """For and against: the verdict, its p, and whether the effect is large enough to count."""
        first, last = self.bounds[0], self.bounds[-1]
        if self.claimed == "above":
            return [
                (Verdict.SUPPORTED, own.above(first), own.value >= first + self.least),
                (Verdict.CONTRADICTED, own.below(first + self.least), True),
            ]
        if self.claimed == "below":
            return [
                (Verdict.SUPPORTED, own.below(first), own.value <= first - self.least),
                (Verdict.CONTRADICTED, own.above(first - self.least), True),
            ]
        low, high = (first, last) if self.claimed == "inside" else (-self.least, self.least)
        inside = max(own.above(low), own.below(high))
        if self.claimed == "inside":
            return [
                (Verdict.SUPPORTED, inside, True),
                (Verdict.CONTRADICTED, min(own.below(low), own.above(high)), True),
            ]
        return [
            (Verdict.SUPPORTED, inside, True),
            (Verdict.CONTRADICTED, min(own.below(0.0), own.above(0.0)), abs(own.value) >= self.least),
        ]


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p of each hypothesis of a family."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(ps.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(ps) - rank) * p))
        adjusted[name] = largest
    return adjusted


def clopper_pearson(count: int, of: int) -> tuple[float, float]:
    """The exact 95 % interval of a share."""
    ends = stats.binomtest(count, of).proportion_ci(LEVEL, method="exact")
    return float(ends.low), float(ends.high)


def vertex(log2_n: Array, rewards: Array, bounds: tuple[float, float]) -> Array:
    """Return the top of the parabola through rewards, within bounds: v of plan.md.

    A parabola that opens upward is highest at one of the bounds.

    Args:
        log2_n: Shape ``(n,)``.
        rewards: Shape ``(draws, n)``.
        bounds: log2 of the least and the largest n.

    Returns:
        Shape ``(draws,)``.
    """
    bent, slope, _ = np.polyfit(log2_n, rewards.T, 2)
    low, high = bounds
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.clip(-slope / (2 * bent), low, high)
    end = np.where(bent * (high**2 - low**2) + slope * (high - low) > 0, high, low)
    return np.asarray(np.where(bent < 0, top, end))


def slope(columns: Sequence[Array], target: Array, of_run: Sequence[str]) -> tuple[float, float, float]:
    """Coefficient of the first column in a least-squares fit with a constant, and its 95 % interval.

    Evaluations of a run err together: errors are clustered by run (the sandwich with runs/(runs − 1)), degrees of
    freedom are runs less coefficients.

    Args:
        columns: Each of the shape of ``target``.
        of_run: The run of each.

    Raises:
        ValueError: There are no more runs than coefficients.
    """
    design = np.stack([*columns, np.ones(len(target))], axis=1)
    runs, cluster = np.unique(np.array(of_run), return_inverse=True)
    freedom = len(runs) - design.shape[1]
    if freedom < 1:
        raise ValueError(f"{len(runs)} runs cannot give {design.shape[1]} coefficients with their errors")
    # Columns of one size, so that powers of a reward do not spoil the inverse.
    scale = np.abs(design).max(axis=0)
    design = design / scale
    inverse = np.linalg.pinv(design.T @ design)
    coefficients = inverse @ design.T @ target
    scores = np.zeros((len(runs), design.shape[1]))
    np.add.at(scores, cluster, design * (target - design @ coefficients)[:, None])
    covariance = inverse @ (scores.T @ scores) @ inverse * len(runs) / (len(runs) - 1)
    half = t_quantile(freedom) * float(np.sqrt(covariance[0, 0])) / scale[0]
    value = float(coefficients[0] / scale[0])
    return value, value - half, value + half
