"""How runs of one setting differ between seeds: an effect on the gain, and one on the timing, of each seed.

Both displace the reward along a known basis: ``amplitude`` grows with the gain made and is 1 at the end of a run;
``timing`` is what a faster or slower start does, minus what the first explains, and is 1 where it does most.

The variance of the effects is the total one, between seeds and of measuring them, so that no estimate is
cut at zero. It is pooled over curves, and split into a part that all curves with a seed share and a part of their own
by restricted maximum likelihood: with curve means projected out, the effects have the covariance σ²[(1−ρ)I + ρZZ'],
Z saying which seed each run has. σ² has the prior 1/σ², so that given ρ it is Q(ρ)/χ², as behind Student's t. ρ has the
prior Beta(1/2, 1/4), with room for nothing and for everything being shared, and is drawn rather than taken as known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import helmert
from scipy.stats import beta

from ..data.curves import Array, Curve
from .forms import Parameters

SHARES = np.clip(beta.ppf((np.arange(100) + 0.5) / 100, 0.5, 0.25), 0.0, 1 - 1e-6)
"""Values of ρ, equally likely before anything is seen."""
LARGEST = 0.5
"""Largest standard deviation that a reward between 0 and 1 can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The variance of one kind of effect, as the runs show it.

    Attributes:
        squares: Q(ρ) for each of ``SHARES``: the squares of the effects, scaled by their covariance.
        weights: Posterior probability of each of ``SHARES``.
        degrees: Degrees of freedom: runs minus curves.
    """

    squares: Array
    weights: Array
    degrees: int

    @property
    def share(self) -> float:
        """Expected share of the variance that all curves with a seed have in common."""
        return float(self.weights @ SHARES)

    @property
    def sd(self) -> float:
        """Standard deviation of a seed's effect, that of measuring it included."""
        return float(np.sqrt(self.weights @ self.squares / self.degrees))

    def draw(self, refits: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draws of the total variance and of the share that is common, each of shape ``(refits,)``.

        Args:
            refits: How many.
            rng: Source of randomness.
        """
        chosen = rng.choice(len(SHARES), refits, p=self.weights)
        variance = self.squares[chosen] / rng.chisquare(self.degrees, refits)
        return np.minimum(variance, LARGEST**2), SHARES[chosen]


def spread_of(effects: Sequence[Mapping[int, float]]) -> Spread | None:
    """Pool the effects of seeds over curves.

    Args:
        effects: Of each curve, seed to effect. The same seed on two curves is the same seed.

    Returns:
        The spread, or None when no curve has two seeds.
    """
    several = [own for own in effects if len(own) > 1]
    if not several:
        return None
    names = sorted({name for own in several for name in own})
    values, seeds = [], []
    for own in several:
        # Rows orthogonal to the mean: the fitted curve has taken that up.
        contrast = helmert(len(own))
        one = np.zeros((len(own), len(names)))
        one[np.arange(len(own)), [names.index(name) for name in own]] = 1.0
        values.append(contrast @ np.array(list(own.values())))
        seeds.append(contrast @ one)
    level, vectors = np.linalg.eigh(np.concatenate(seeds) @ np.concatenate(seeds).T)
    squared = (vectors.T @ np.concatenate(values)) ** 2
    covariance = (1 - SHARES)[:, None] + SHARES[:, None] * np.maximum(level, 0.0)
    degrees = len(squared)
    squares = np.maximum((squared / covariance).sum(axis=1), 1e-16)
    likelihood = -0.5 * np.log(covariance).sum(axis=1) - 0.5 * degrees * np.log(squares)
    weights = np.exp(likelihood - likelihood.max())
    return Spread(squares=squares, weights=weights / weights.sum(), degrees=degrees)


def effect_basis(curve: Curve, fitted: Parameters) -> Array:
    """What an effect of 1 on amplitude and on timing adds to the reward of each point, shape ``(points, 2)``."""
    made = fitted(curve.compute) - fitted.start
    end = float(fitted(curve.compute.max())) - fitted.start
    last = max(float(curve.compute.max()), 1e-300)
    amplitude = np.asarray(made / end if end > 1e-9 else curve.compute / last)
    step = 0.02
    faster, slower = (
        Parameters(form=fitted.form, start=0.0, gain=1.0, scale=fitted.scale * k, shape=fitted.shape)(curve.compute)
        for k in (np.exp(-step), np.exp(step))
    )
    weights = curve.standard_error**-2
    timing = np.asarray(faster - slower)
    largest = float(np.abs(timing).max())
    timing = timing - amplitude * float((weights * amplitude * timing).sum() / (weights * amplitude**2).sum())
    rest = float(np.abs(timing).max())
    # Where a run ends early, the two cannot be told from each other.
    timing = timing / rest if rest > 1e-3 * max(largest, 1e-300) and rest > 1e-12 else np.zeros_like(timing)
    return np.stack([amplitude, timing], axis=1)


def effects_of(curve: Curve, basis: Array, residuals: Array) -> tuple[Array, Array]:
    """Effects of every seed by weighted least squares, and their variances for points of unit variance.

    Args:
        basis: From ``effect_basis``.
        residuals: Reward minus the fitted curve, shape ``(..., points)``.

    Returns:
        Effects, shape ``(..., seeds, 2)``, and their variances in units of the points' own, shape ``(seeds, 2)``.
    """
    found = np.zeros((*residuals.shape[:-1], curve.seeds, 2))
    variances = np.zeros((curve.seeds, 2))
    for s in range(curve.seeds):
        own = curve.seed == s
        weighted = basis[own] * curve.standard_error[own, None] ** -2
        inverse = np.linalg.pinv(basis[own].T @ weighted, rcond=1e-9, hermitian=True)
        found[..., s, :] = residuals[..., own] @ weighted @ inverse
        variances[s] = np.diag(inverse)
    return found, variances


def without_effects(curve: Curve, basis: Array, residuals: Array) -> Array:
    """Residuals minus the departure of each seed from the mean of the seeds, shape ``(..., points)``.

    With one seed they are unchanged.

    Args:
        basis: From ``effect_basis``.
        residuals: Reward minus the fitted curve, shape ``(..., points)``.
    """
    if curve.seeds == 1:
        return residuals
    effects, _ = effects_of(curve, basis, residuals)
    departures = effects - effects.mean(axis=-2, keepdims=True)
    left = residuals.copy()
    for s in range(curve.seeds):
        own = curve.seed == s
        left[..., own] -= departures[..., s, :] @ basis[own].T
    return np.asarray(left)
