"""Refits of synthetic runs: a parametric bootstrap with autocorrelated noise and a random effect per seed.

A synthetic run is the fitted curve, plus an effect of its seed that grows with the gain made, plus AR(1)
noise. The spread between seeds is pooled over the curves of a fit and drawn anew for every refit from its
sampling distribution, sd·sqrt(df/χ²_df), so that few seeds give intervals as wide as Student's t does. With
one seed there is no such effect to be seen: the intervals are *within-run*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .curves import Array, Curve
from .fitting import grid, project
from .forms import Parameters, rise


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How runs scatter about their curve.

    Attributes:
        between_seeds: Standard deviation of a seed's effect at the end of its run.
        degrees: Degrees of freedom behind it; 0 when every curve has one seed.
        autocorrelation: Lag-1 autocorrelation within a run.
    """

    between_seeds: float
    degrees: int
    autocorrelation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Refitted curves, one per synthetic set of runs; every array has the shape ``(refits,)``."""

    form: np.ndarray
    start: Array
    gain: Array
    scale: Array
    shape: Array

    def at(self, compute: Array) -> Array:
        """Rewards of every refit at some compute, shape ``(refits, points)``."""
        out = np.empty((len(self.start), len(compute)))
        for form in np.unique(self.form):
            rows = self.form == form
            share = rise(str(form), compute[None, :], self.scale[rows, None], self.shape[rows, None])
            out[rows] = self.start[rows, None] + self.gain[rows, None] * share
        return out

    @property
    def asymptote(self) -> Array:
        """A of every refit."""
        return self.start + self.gain


def _growth(curve: Curve, fitted: Parameters) -> Array:
    """Share of the gain made by the end of the run, at each point."""
    end = float(fitted(curve.compute.max())) - fitted.start
    if end <= 1e-9:
        return np.asarray(curve.compute / max(curve.compute.max(), 1e-300))
    return np.asarray((fitted(curve.compute) - fitted.start) / end)


def estimate_noise(curves: Sequence[Curve], fitted: Sequence[Parameters]) -> Noise:
    """Estimate the noise of all curves of a fit together."""
    squares, degrees = 0.0, 0
    lagged: list[tuple[float, float]] = []
    for curve, parameters in zip(curves, fitted, strict=True):
        residual = curve.reward - parameters(curve.compute)
        growth = _growth(curve, parameters)
        effects, within = np.zeros(curve.seeds), np.zeros(curve.seeds)
        for s in range(curve.seeds):
            own = curve.seed == s
            norm = max(float((growth[own] ** 2).sum()), 1e-12)
            effects[s] = float((growth[own] * residual[own]).sum()) / norm
            left = residual[own] - (effects[s] * growth[own] if curve.seeds > 1 else 0.0)
            within[s] = float((left**2).mean()) / norm
            if len(left) > 3:
                lagged.append((float((left[1:] * left[:-1]).sum()), float((left**2).sum())))
        if curve.seeds > 1:
            excess = float(effects.var(ddof=1) - within.mean())
            squares += (curve.seeds - 1) * max(excess, 0.0)
            degrees += curve.seeds - 1
    top, bottom = sum(a for a, _ in lagged), sum(b for _, b in lagged)
    # The lag-1 estimate of a short detrended series is low by about (1 + 4φ)/points.
    points = float(np.mean([(c.seed == 0).sum() for c in curves]))
    raw = top / bottom if bottom > 0 else 0.0
    phi = float(np.clip((raw * points + 1.0) / max(points - 4.0, 1.0) if raw > 0 else 0.0, 0.0, 0.9))
    return Noise(
        between_seeds=float(np.sqrt(squares / degrees)) if degrees else 0.0,
        degrees=degrees,
        autocorrelation=phi,
    )


def refit(
    curve: Curve,
    fitted: Parameters,
    noise: Noise,
    residual_sd: float,
    forms: Sequence[str],
    *,
    refits: int,
    rng: np.random.Generator,
    spread: Array,
    start: float | None = None,
) -> Draws:
    """Refit synthetic runs of one curve; the choice among ``forms`` is made again in every refit.

    Args:
        curve: The measured points.
        fitted: The curve fitted to them.
        noise: From ``estimate_noise``.
        residual_sd: Of the fit; the binomial error is the floor.
        forms: Forms to choose among.
        refits: How many.
        rng: Source of randomness.
        spread: Between-seed standard deviation of every refit, shape ``(refits,)``, shared by all curves.
        start: R0 where it is given; else that of ``hill`` is the reward at zero compute.
    """
    n = len(curve.compute)
    sd = np.maximum(curve.standard_error, residual_sd if noise.degrees == 0 else curve.standard_error)
    shocks = rng.standard_normal((refits, n))
    errors = np.empty_like(shocks)
    phi = noise.autocorrelation
    for i in range(n):
        new_run = i == 0 or curve.seed[i] != curve.seed[i - 1]
        errors[:, i] = shocks[:, i] if new_run else phi * errors[:, i - 1] + np.sqrt(1 - phi**2) * shocks[:, i]
    effects = rng.standard_normal((refits, curve.seeds)) * spread[:, None]
    synthetic = fitted(curve.compute) + errors * sd + effects[:, curve.seed] * _growth(curve, fitted)
    weights = curve.standard_error**-2
    at_zero = curve.compute == 0
    given = None if start is None else np.full(refits, start)
    first_reward = synthetic[:, at_zero].mean(axis=1) if at_zero.any() else None
    best: dict[str, np.ndarray] = {}
    score = np.full(refits, np.inf)
    for form in forms:
        candidates = grid(form, curve.compute)
        held = given if given is not None else first_reward if form == "hill" else None
        first, gain, squares = project(candidates, synthetic, weights, held)
        k = squares.argmin(axis=1)
        rows = np.arange(refits)
        count = (3 if form == "exp" else 4) - (0 if held is None else 1)
        criterion = n * np.log(np.maximum(squares[rows, k], 1e-12) / n) + 2 * count
        values = {
            "form": np.full(refits, form, dtype="<U5"),
            "start": first[rows, k],
            "gain": gain[rows, k],
            "scale": candidates.scale[k],
            "shape": candidates.shape[k],
        }
        better = criterion < score
        best = values if not best else {key: np.where(better, v, best[key]) for key, v in values.items()}
        score = np.minimum(score, criterion)
    return Draws(**best)
