"""How the runs of a fit scatter about their curves: within a run, and between seeds.

Noise is that of one population: the curves of one value of the grouping column, over all n and B_p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from ..data.curves import Array, Curve
from .forms import SEARCHED, Parameters, form_of
from .seeds import Spread, effect_basis, effects_of, spread_of, without_effects

LARGEST_AUTOCORRELATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Noise of the curves of one population.

    Attributes:
        autocorrelation: Lag-1 autocorrelation within a run.
        autocorrelation_error: Its standard error.
        amplitude: How seeds differ in the gain made; None when every curve has one seed.
        timing: How they differ in timing.
    """

    autocorrelation: float
    autocorrelation_error: float = 0.0
    amplitude: Spread | None = None
    timing: Spread | None = None

    def autocorrelations(self) -> Array:
        """Equally likely values of the autocorrelation, which refits use in turn."""
        if self.autocorrelation_error == 0:
            return np.array([self.autocorrelation])
        levels = norm.ppf((np.arange(9) + 0.5) / 9)
        drawn = self.autocorrelation + levels * self.autocorrelation_error
        return np.asarray(np.clip(drawn, 0.0, LARGEST_AUTOCORRELATION))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Noise within the runs of one curve.

    Attributes:
        factor: Its standard deviation, in standard errors of the points.
        degrees: Effective degrees of freedom behind that.
        effective_points: How many independent points they are worth, from ``effective_points``.
    """

    factor: float
    degrees: float
    effective_points: float

    def draw(self, refits: int, rng: np.random.Generator, *, least: float) -> Array:
        """Draws of the factor from its sampling distribution, none below ``least``, shape ``(refits,)``.

        Args:
            refits: How many.
            rng: Source of randomness.
            least: Least value; 1 where the standard error is that of sampling responses.
        """
        # Within a factor of ten: one degree of freedom has no mean.
        spread = np.minimum(np.sqrt(self.degrees / rng.chisquare(self.degrees, refits)), 10.0)
        return np.asarray(np.maximum(self.factor * spread, least))


def inflated(variance: float, autocorrelation: float) -> float:
    """The variance of a mean of independent points, corrected for lag-1 autocorrelation: times (1+φ)/(1−φ).

    The correction for −φ is its inverse, so that N points are worth ``inflated(N, -φ)`` independent ones.

    Args:
        variance: Variance of the mean of as many independent points.
    """
    return variance * (1 + autocorrelation) / (1 - autocorrelation)


def effective_points(points: int, seeds: int, autocorrelation: float) -> float:
    """How many independent points autocorrelated ones are worth: N(1−φ)/(1+φ), minus two per seed beyond the first.

    Args:
        points: Points of the curve, N.
        autocorrelation: φ, at lag 1.
    """
    independent = inflated(points, -autocorrelation)
    return max(independent - 2 * (seeds - 1), 1.0)


def autocorrelation_of(lagged: float, squares: float, *, points: float, parameters: int) -> float:
    """Lag-1 autocorrelation of the noise, from the residuals of fitted curves.

    That of the residuals is lower by about (p − 1/2 + 4φ)/N, since a curve follows part of the noise.

    Args:
        lagged: Sum of the products of neighbouring residuals.
        points: N, of one run.
        parameters: p, of one curve.
    """
    if squares <= 0:
        return 0.0
    raised = (lagged / squares * points + parameters - 0.5) / max(points - 4.0, 1.0)
    return float(np.clip(raised, 0.0, 0.9))


def estimate_noise(curves: Sequence[Curve], fitted: Sequence[Parameters]) -> Noise:
    """Estimate the noise of the curves of one population together."""
    top = bottom = 0.0
    effects: list[list[dict[int, float]]] = [[], []]
    for curve, parameters in zip(curves, fitted, strict=True):
        residuals, basis = curve.reward - parameters(curve.compute), effect_basis(curve, parameters)
        left = without_effects(curve, basis, residuals) / curve.standard_error
        for s in range(curve.seeds):
            own = left[curve.seed == s]
            if len(own) > 3:
                top += float((own[1:] * own[:-1]).sum())
                bottom += float((own**2).sum())
        found, _ = effects_of(curve, basis, residuals)
        for k in range(2):
            if basis[:, k].any():
                effects[k].append(dict(zip(curve.names, found[:, k].tolist(), strict=True)))
    points = float(np.mean([(c.seed == 0).sum() for c in curves]))
    phi = autocorrelation_of(top, bottom, points=points, parameters=SEARCHED)
    observed = max(sum(len(c.compute) for c in curves), 1)
    return Noise(
        autocorrelation=phi, autocorrelation_error=float(np.sqrt((1 - phi**2) / observed)),
        amplitude=spread_of(effects[0]), timing=spread_of(effects[1]),
    )  # fmt: skip


def scatter(curve: Curve, fitted: Parameters, noise: Noise) -> Scatter:
    """Noise within the runs of one curve: the residuals without the effects of seeds."""
    residuals = without_effects(curve, effect_basis(curve, fitted), curve.reward - fitted(curve.compute))
    squares = float(((residuals / curve.standard_error) ** 2).mean())
    spent = 2 * (curve.seeds - 1)
    independent = effective_points(len(curve.compute), curve.seeds, noise.autocorrelation)
    degrees = max(independent - form_of(fitted.form).free_parameters, 1.0)
    factor = float(np.sqrt(squares * (independent + spent) / degrees))
    return Scatter(factor=factor, degrees=degrees, effective_points=independent)


def seed_effects(
    curves: Sequence[Curve], measuring: Sequence[Array], noise: Noise, *, refits: int, rng: np.random.Generator
) -> list[Array]:
    """Effects of the seeds of every curve in every refit, each of shape ``(refits, seeds, 2)``.

    A seed that several curves share has the same common part in all of them. The noise within a refit measures effects
    with the same error as that of the runs, so what is drawn here is the rest of the total variance.

    Args:
        measuring: Variance of measuring the effects of each curve, shape ``(2,)``.
        rng: Source of randomness.
    """
    found = [np.zeros((refits, curve.seeds, 2)) for curve in curves]
    names = sorted({name for curve in curves for name in curve.names})
    for k, spread in enumerate((noise.amplitude, noise.timing)):
        if spread is None:
            continue
        variance, share = spread.draw(refits, rng)
        usual = float(np.mean([error[k] for error in measuring]))
        alike = np.minimum(variance * share, np.maximum(variance - usual, 0.0))
        common = rng.standard_normal((refits, len(names))) * np.sqrt(alike)[:, None]
        for curve, drawn, error in zip(curves, found, measuring, strict=True):
            own = np.sqrt(np.maximum(variance - alike - error[k], 0.0))
            drawn[:, :, k] = common[:, [names.index(name) for name in curve.names]]
            drawn[:, :, k] += own[:, None] * rng.standard_normal((refits, curve.seeds))
    return found


def measuring_error(curve: Curve, fitted: Parameters, factor: float, autocorrelation: float) -> Array:
    """Variance with which the noise within runs measures the two effects of a seed, shape ``(2,)``.

    Args:
        factor: Standard deviation of the noise, in standard errors of the points.
        autocorrelation: φ, at lag 1.
    """
    _, variances = effects_of(curve, effect_basis(curve, fitted), np.zeros(len(curve.compute)))
    return np.asarray(variances.mean(axis=0) * factor**2 * inflated(1.0, autocorrelation))
