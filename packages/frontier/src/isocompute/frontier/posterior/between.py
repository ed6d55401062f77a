"""How n* differs between sweeps: a random-effects regression of log2 n* on log2 C, and its prediction for a new sweep.

A row is the n* of one problem set and model at one budget, in octaves, with its standard deviation within the source:

    log2 n* = α + β·(log2 C − 17) + κ·(logit p + 1) + source(C) + set(C) + error

p is the base model's pass rate. ``source`` and ``set`` are the deviations of a paper or a panel, and of each of its
problem sets and models. They are Ornstein–Uhlenbeck processes in log2 C, with standard deviations σ and τ, whose
correlation falls by a factor e within ℓ octaves of compute. So several rows of one set do not count as several sets,
and a new set of a new source deviates by σ and τ.

Priors: α ~ N(4, 3²), β ~ N(½, ½²), κ ~ N(0, ¼²), σ and τ half-normal of one octave, ℓ 2, 4 or 8 octaves. α, β and κ are
integrated out in closed form, σ, τ and ℓ over a grid. So the interval accounts for the uncertainty about σ that few
sources leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from scipy.special import logit, ndtr

from ..data.curves import Array
from ..data.sweeps import Sweep

CENTRE = 17.0
"""log2 of the budget at which α is defined: 131,072 rollouts."""
MEAN = np.array([4.0, 0.5, 0.0])
SPREAD = np.array([3.0, 0.5, 0.25])
"""Prior mean and standard deviation of α, β and κ."""
SCALE = 1.0
"""Octaves: scale of the half-normal priors for σ and τ."""
DEVIATIONS = np.linspace(0.05, 2.75, 10)
MEMORIES = (2.0, 4.0, 8.0)
UNREACHABLE = 40.0
"""Quantiles are sought within this many octaves of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of normals over the grid of σ, τ and ℓ, in octaves: log2 n* of a set without rows."""

    weights: Array
    means: Array
    variances: Array

    def quantile(self, share: float) -> float:
        """The value with this share of the mixture below it, by bisection."""
        low, high = -UNREACHABLE, UNREACHABLE
        scales = np.sqrt(self.variances)
        for _ in range(60):
            middle = (low + high) / 2
            if float(self.weights @ ndtr((middle - self.means) / scales)) < share:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def interval(self, level: float) -> tuple[float, float, float]:
        """Low end, median and high end of the central interval with probability ``level``."""
        return self.quantile((1 - level) / 2), self.quantile(0.5), self.quantile((1 + level) / 2)

    def widened(self, deviation: float) -> Mixture:
        """The mixture with an independent normal error of this standard deviation added."""
        return Mixture(weights=self.weights, means=self.means, variances=self.variances + deviation**2)


class Between:
    """The posterior of the regression, given one or more rows."""

    def __init__(self, rows: Sequence[Sweep]) -> None:
        grid = np.array([*product(DEVIATIONS, DEVIATIONS, MEMORIES)])
        self._between, self._within, self._memory = grid.T
        self._x = np.array([_design(row.budget, row.pass_rate) for row in rows])
        same_source = _same([row.source for row in rows])
        same_set = _same([(row.source, row.problem_set, row.model) for row in rows])
        distance = np.abs(self._x[:, None, 1] - self._x[None, :, 1])
        kept = np.exp(-distance / self._memory[:, None, None])
        effects = self._between[:, None, None] ** 2 * same_source + self._within[:, None, None] ** 2 * same_set
        noise = np.diag([row.deviation**2 for row in rows])
        # α, β and κ are integrated out: their prior adds X P Xᵀ.
        covariance = kept * effects + noise + (self._x * SPREAD**2) @ self._x.T
        self._inverse = np.linalg.inv(covariance)
        residual = np.array([row.log2_n for row in rows]) - self._x @ MEAN
        self._explained = self._inverse @ residual
        log_posterior = (
            -0.5 * (self._explained @ residual)
            - 0.5 * np.linalg.slogdet(covariance)[1]
            - 0.5 * (self._between**2 + self._within**2) / SCALE**2
        )
        weights = np.exp(log_posterior - log_posterior.max())
        self._weights = weights / weights.sum()

    def at(self, budget: float, pass_rate: float) -> Mixture:
        """log2 n* of a new set of a new source, at a budget in rollouts."""
        return self._mixture(_design(budget, pass_rate))

    def after(self, budget: float, pass_rate: float, *, measured_at: float, deviation: float) -> Mixture:
        """The expected ``at`` after n* of the new set is measured at another budget.

        Args:
            deviation: Standard deviation of that measurement, octaves.
        """
        here, there = _design(budget, pass_rate), _design(measured_at, pass_rate)
        now, then = self._mixture(here), self._mixture(there)
        own = (self._between**2 + self._within**2) * np.exp(-np.abs(here[1] - there[1]) / self._memory)
        shared = here @ (SPREAD**2 * there) + own - self._known(here, there)
        left = now.variances - shared**2 / (then.variances + deviation**2)
        return Mixture(weights=now.weights, means=now.means, variances=left)

    @cached_property
    def slope(self) -> tuple[float, float]:
        """β, octaves of n* per octave of C: posterior mean and standard deviation."""
        return self._coefficient(1)

    @cached_property
    def difficulty(self) -> tuple[float, float]:
        """κ, octaves of n* per unit of logit p: posterior mean and standard deviation."""
        return self._coefficient(2)

    @cached_property
    def deviations(self) -> tuple[float, float]:
        """σ and τ, octaves: their posterior means."""
        return float(self._weights @ self._between), float(self._weights @ self._within)

    def _coefficient(self, index: int) -> tuple[float, float]:
        means = MEAN[index] + SPREAD[index] ** 2 * (self._explained @ self._x[:, index])
        column = self._x[:, index] * SPREAD[index] ** 2
        variances = SPREAD[index] ** 2 - np.einsum("i,gij,j->g", column, self._inverse, column)
        mean = float(self._weights @ means)
        return mean, float(np.sqrt(self._weights @ (variances + (means - mean) ** 2)))

    def _mixture(self, x: Array) -> Mixture:
        along = self._x @ (SPREAD**2 * x)
        prior = x @ (SPREAD**2 * x) + self._between**2 + self._within**2
        return Mixture(
            weights=self._weights,
            means=x @ MEAN + self._explained @ along,
            variances=prior - self._known(x, x),
        )

    def _known(self, x: Array, other: Array) -> Array:
        """The part of the covariance of two new values that the rows explain, at each point of the grid."""
        first, second = (self._x @ (SPREAD**2 * each) for each in (x, other))
        return np.asarray(np.einsum("i,gij,j->g", first, self._inverse, second))


def without(rows: Sequence[Sweep], source: str) -> tuple[Sweep, ...]:
    """The rows of all other sources."""
    return tuple(row for row in rows if row.source != source)


def _design(budget: float, pass_rate: float) -> Array:
    return np.array([1.0, np.log2(budget) - CENTRE, float(logit(np.clip(pass_rate, 0.01, 0.99))) + 1.0])


def _same(names: Sequence[object]) -> Array:
    return np.array([[float(a == b) for b in names] for a in names])
