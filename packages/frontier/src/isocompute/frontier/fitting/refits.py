"""Refits of synthetic runs: a parametric bootstrap of one run, which knows nothing of other seeds.

A synthetic run is the fitted curve plus AR(1) noise of the size that the residuals have. Its size and autocorrelation
are drawn for every refit from their sampling distributions, so that few evaluations give intervals as wide as
Student's t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from ..data.curves import Array
from .autocorrelation import autocorrelation_of, effective_points
from .forms import SEARCHED, Parameters, form_of, rise
from .projection import closer_grid, project

LARGEST_AUTOCORRELATION = 0.95
BLOCK = 2000
LEVELS = 9
"""Equally likely values of the autocorrelation, used in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refits:
    """Refitted curves, one per synthetic run; every array has the shape ``(refits,)``.

    Attributes:
        form: Name of their form.
        start: R0.
        gain: G = A − R0.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; 1 for ``exp``.
    """

    form: str
    start: Array
    gain: Array
    scale: Array
    shape: Array

    def at(self, compute: Array) -> Array:
        """Rewards of every refit at some compute, shape ``(refits, points)``."""
        share = rise(self.form, compute[None, :], self.scale[:, None], self.shape[:, None])
        return np.asarray(self.start[:, None] + self.gain[:, None] * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Noise within one run.

    Attributes:
        factor: Its standard deviation, in standard errors of the points.
        autocorrelation: φ, at lag 1.
        points: How many there are.
    """

    factor: float
    autocorrelation: float
    points: int

    @property
    def effective_points(self) -> float:
        """How many independent points they are worth."""
        return effective_points(self.points, self.autocorrelation)


def scatter_of(residuals: Array, form: str) -> Scatter:
    """Noise within a run, from what a fit leaves.

    Args:
        residuals: In standard errors, in the order of compute, shape ``(points,)``.
    """
    squares = float((residuals**2).sum())
    lagged = float((residuals[1:] * residuals[:-1]).sum())
    phi = autocorrelation_of(lagged, squares, points=len(residuals), parameters=SEARCHED)
    independent = effective_points(len(residuals), phi)
    degrees = max(independent - form_of(form).free_parameters, 1.0)
    factor = float(np.sqrt(squares / len(residuals) * independent / degrees))
    return Scatter(factor=factor, autocorrelation=phi, points=len(residuals))


def refit(
    fitted: Parameters, compute: Array, error: Array, noise: Scatter, *, start: float | None, least: float,
    count: int, rng: np.random.Generator,
) -> Refits:  # fmt: skip
    """Refit synthetic runs.

    Args:
        compute: Of the evaluations, shape ``(points,)``.
        start: R0 where it is held.
        least: Least factor; 1 where the standard error is that of sampling responses.
    """
    degrees = max(noise.effective_points - form_of(fitted.form).free_parameters, 1.0)
    # Within a factor of ten: one degree of freedom has no mean.
    spread = np.minimum(np.sqrt(degrees / rng.chisquare(degrees, count)), 10.0)
    size = np.maximum(noise.factor * spread, least)
    synthetic = fitted(compute) + _autocorrelated(noise, count, rng) * error * size[:, None]
    searched = closer_grid(fitted, compute)
    held = None if start is None else np.full(count, start)
    parts = []
    # In blocks, for the memory that a dense grid takes.
    for block in np.array_split(np.arange(count), -(-count // BLOCK)):
        first, gain, squares = project(searched, synthetic[block], error**-2, None if held is None else held[block])
        best, rows = squares.argmin(axis=1), np.arange(len(block))
        parts.append((first[rows, best], gain[rows, best], searched.scale[best], searched.shape[best]))
    starts, gains, scales, shapes = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Refits(form=fitted.form, start=starts, gain=gains, scale=scales, shape=shapes)


def _autocorrelated(noise: Scatter, count: int, rng: np.random.Generator) -> Array:
    """AR(1) noise of unit variance, shape ``(count, points)``; φ is known only to within its error."""
    shocks = rng.standard_normal((count, noise.points))
    error = np.sqrt((1 - noise.autocorrelation**2) / noise.points)
    levels = noise.autocorrelation + norm.ppf((np.arange(LEVELS) + 0.5) / LEVELS) * error
    for turn, phi in enumerate(np.clip(levels, 0.0, LARGEST_AUTOCORRELATION)):
        own = shocks[turn::LEVELS] * np.sqrt(1 - phi**2)
        own[:, 0] = shocks[turn::LEVELS, 0]
        shocks[turn::LEVELS] = lfilter([1.0], [1.0, -phi], own, axis=1)
    return shocks
