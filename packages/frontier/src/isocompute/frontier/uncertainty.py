"""Refits of synthetic runs: a parametric bootstrap with autocorrelated noise and a random effect per seed.

A synthetic run is the fitted curve, plus an effect of its seed that grows with the gain made, plus AR(1)
noise. The spread between seeds is pooled over the curves of a fit and drawn anew for every refit from its
sampling distribution, sd·sqrt(df/χ²_df), so that few seeds give intervals as wide as Student's t does. With
one seed there is no such effect to be seen: the intervals are *within-run*.

Seeds are drawn jointly: in one refit a seed that several n share has one effect that all of them share, and one
of its own for each, in the proportion that the measured runs show. So what moves every n of a seed alike does
not blur where curves cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from .curves import Array, Curve
from .fitting import Grid, closer_grid, grid, project
from .forms import Parameters, rise
from .selection import tail_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How runs scatter about their curve.

    Attributes:
        between_seeds: Standard deviation of a seed's effect at the end of its run.
        degrees: Degrees of freedom behind it; 0 when every curve has one seed.
        autocorrelation: Lag-1 autocorrelation within a run.
        autocorrelation_error: Its standard error.
        shared: Share of a seed's effect (as variance) that all curves with this seed have in common.
    """

    between_seeds: float
    degrees: float
    autocorrelation: float
    shared: float = 0.0
    autocorrelation_error: float = 0.0

    def autocorrelations(self) -> Array:
        """Values of the autocorrelation, equally likely, that refits take turns at."""
        if self.autocorrelation_error == 0:
            return np.array([self.autocorrelation])
        levels = norm.ppf((np.arange(9) + 0.5) / 9)
        return np.asarray(np.clip(self.autocorrelation + levels * self.autocorrelation_error, 0.0, 0.95))


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
    deviations: list[dict[int, float]] = []
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
            deviations.append(dict(zip(curve.names, effects - effects.mean(), strict=True)))
    top, bottom = sum(a for a, _ in lagged), sum(b for _, b in lagged)
    # The lag-1 estimate of the residuals of a fitted curve is low by about (2.5 + 4φ)/points.
    points = float(np.mean([(c.seed == 0).sum() for c in curves]))
    raw = top / bottom if bottom > 0 else 0.0
    phi = float(np.clip((raw * points + 2.5) / max(points - 4.0, 1.0), 0.0, 0.9)) if bottom > 0 else 0.0
    observed = sum(len(c.compute) for c in curves)
    variance = squares / degrees if degrees else 0.0
    shared = _shared(deviations, variance)
    # Curves whose seeds move together are not as many observations of the spread (Satterthwaite).
    alike = 1 + (len(deviations) - 1) * shared**2
    return Noise(
        between_seeds=float(np.sqrt(variance)), degrees=degrees / alike, autocorrelation=phi, shared=shared,
        autocorrelation_error=float(np.sqrt((1 - phi**2) / max(observed, 1))),
    )  # fmt: skip


def _shared(deviations: Sequence[dict[int, float]], variance: float) -> float:
    """Correlation of the effects that a seed has on different curves, over all pairs of curves."""
    products, degrees = 0.0, 0
    for i, one in enumerate(deviations):
        for other in deviations[i + 1 :]:
            common = sorted(one.keys() & other.keys())
            if len(common) < 2:
                continue
            a, b = np.array([one[s] for s in common]), np.array([other[s] for s in common])
            products += float(((a - a.mean()) * (b - b.mean())).sum())
            degrees += len(common) - 1
    return float(np.clip(products / degrees / variance, 0.0, 1.0)) if degrees and variance > 0 else 0.0


def seed_effects(curves: Sequence[Curve], noise: Noise, *, refits: int, rng: np.random.Generator) -> list[Array]:
    """Effects of the seeds of every curve in every refit, each of shape ``(refits, seeds)``.

    A seed that several curves share has the same common part in all of them.
    """
    spread = np.zeros(refits)
    if noise.degrees > 0:
        # Kept within a factor of ten: one degree of freedom has no mean.
        factor = np.sqrt(noise.degrees / rng.chisquare(noise.degrees, refits))
        spread = np.asarray(noise.between_seeds * np.minimum(factor, 10.0))
    names = sorted({name for curve in curves for name in curve.names})
    common = rng.standard_normal((refits, len(names)))
    found = []
    for curve in curves:
        own = rng.standard_normal((refits, curve.seeds))
        both = common[:, [names.index(name) for name in curve.names]]
        found.append(spread[:, None] * (np.sqrt(noise.shared) * both + np.sqrt(1 - noise.shared) * own))
    return found


BLOCK = 20_000_000
"""Synthetic rewards made at once."""


def refit(
    curve: Curve,
    fitted: Parameters,
    noise: Noise,
    residual_sd: float,
    forms: Sequence[str],
    *,
    rng: np.random.Generator,
    effects: Array,
    start: float | None = None,
    selection: str = "aicc",
) -> Draws:
    """Refit synthetic runs of one curve; the choice among ``forms`` is made again in every refit.

    Args:
        curve: The measured points.
        fitted: The curve fitted to them.
        noise: From ``estimate_noise``.
        residual_sd: Of the fit; the binomial error is the floor.
        forms: Forms to choose among.
        rng: Source of randomness.
        effects: From ``seed_effects``, shape ``(refits, seeds)``.
        start: R0 where it is given; else that of ``hill`` is the reward at zero compute.
        selection: ``aicc``, or ``tail`` for the error on the held-out tail.
    """
    candidates = {
        form: closer_grid(fitted, curve.compute) if form == fitted.form else grid(form, curve.compute) for form in forms
    }
    block = max(BLOCK // len(curve.compute), 20)
    parts = [
        _refit_block(curve, fitted, noise, residual_sd, candidates, rng, effects[i : i + block], start, selection)
        for i in range(0, len(effects), block)
    ]
    return Draws(**{key: np.concatenate([part[key] for part in parts]) for key in parts[0]})


def _refit_block(
    curve: Curve, fitted: Parameters, noise: Noise, residual_sd: float, candidates: dict[str, Grid],
    rng: np.random.Generator, effects: Array, start: float | None, selection: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    n, refits = len(curve.compute), len(effects)
    sd = np.maximum(curve.standard_error, residual_sd if noise.degrees == 0 else curve.standard_error)
    synthetic = fitted(curve.compute) + _autocorrelated(curve, noise, refits, rng) * sd
    synthetic += effects[:, curve.seed] * _growth(curve, fitted)
    weights = curve.standard_error**-2
    at_zero = curve.compute == 0
    given = None if start is None else np.full(refits, start)
    first_reward = synthetic[:, at_zero].mean(axis=1) if at_zero.any() else None
    best: dict[str, np.ndarray] = {}
    score = np.full(refits, np.inf)
    for form, searched in candidates.items():
        held = given if given is not None else first_reward if form == "hill" else None
        first, gain, squares = project(searched, synthetic, weights, held)
        k = squares.argmin(axis=1)
        rows = np.arange(refits)
        count = (3 if form == "exp" else 4) - (0 if held is None else 1)
        penalty = 2 * count + 2 * count * (count + 1) / max(n - count - 1, 1)
        criterion = n * np.log(np.maximum(squares[rows, k], 1e-12) / n) + penalty
        if selection == "tail" and len(candidates) > 1:
            error = tail_errors(form, curve.compute, synthetic, weights, held)
            criterion = criterion if error is None else error
        values = {
            "form": np.full(refits, form, dtype="<U5"),
            "start": first[rows, k],
            "gain": gain[rows, k],
            "scale": searched.scale[k],
            "shape": searched.shape[k],
        }
        better = criterion < score
        best = values if not best else {key: np.where(better, v, best[key]) for key, v in values.items()}
        score = np.minimum(score, criterion)
    return best


def _autocorrelated(curve: Curve, noise: Noise, refits: int, rng: np.random.Generator) -> Array:
    """AR(1) noise of unit variance, begun anew with every run, shape ``(refits, points)``.

    Its autocorrelation is not known better than its error: refits take turns at what it may be.
    """
    shocks = rng.standard_normal((refits, len(curve.compute)))
    values = noise.autocorrelations()
    edges = np.flatnonzero(np.diff(curve.seed, prepend=-1, append=-1))
    for turn, phi in enumerate(values):
        if phi == 0:
            continue
        for begin, end in pairwise(edges):
            own = shocks[turn :: len(values), begin:end] * np.sqrt(1 - phi**2)
            own[:, 0] = shocks[turn :: len(values), begin]
            shocks[turn :: len(values), begin:end] = lfilter([1.0], [1.0, -phi], own, axis=1)
    return shocks
