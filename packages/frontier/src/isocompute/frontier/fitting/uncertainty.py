"""Refits of synthetic runs: a parametric bootstrap over forms, seeds and the noise within a run.

A synthetic run is a fitted curve, plus effects of its seed on the gain and the timing (see ``seeds``), plus AR(1) noise
of the size that the residuals have, plus, where pass rates say what it is, the luck of which questions are asked. The
curve has a form drawn by its Akaike weight, where the form was chosen. Every size is drawn anew for every refit from
its sampling distribution, so that few runs and few evaluations give intervals as wide as Student's t. With one seed
nothing is known of seeds: the intervals are *within-run*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.signal import lfilter

from ..data.curves import Array, Curve
from .forms import Parameters, form_of, rise
from .noise import Noise, Scatter
from .projection import Grid, closer_grid, grid, project
from .seeds import effect_basis, without_effects
from .selection import aicc, tail_errors

BLOCK = 20_000_000
"""Most synthetic rewards in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Refitted curves, one per synthetic set of runs; every array has the shape ``(refits,)``.

    Attributes:
        form: Names of their forms.
        start: R0.
        gain: G = A − R0.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; 1 for ``exp``.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """What one curve's refits are drawn from.

    Attributes:
        curve: The measured points.
        fitted: The curve chosen.
        likely: Curves that synthetic runs follow, and the probability of each.
        noise: Noise of the population.
        scatter: Noise within this curve's runs.
        effects: Effects of seeds, shape ``(refits, seeds, 2)``.
        questions: Displacements of start and gain by which questions are asked, shape ``(refits, 2)``; None where
            the pass rates are not known.
        start: R0 where it is given; else that of ``hill`` is the reward at zero compute.
        selection: ``aicc``, or ``tail`` for the error on the held-out tail.
    """

    curve: Curve
    fitted: Parameters
    likely: Mapping[Parameters, float]
    noise: Noise
    scatter: Scatter
    effects: Array
    questions: Array | None = None
    start: float | None = None
    selection: str = "aicc"


def refit(setting: Resampling, forms: Sequence[str], *, rng: np.random.Generator) -> Draws:
    """Refit synthetic runs of one curve; the form is chosen again in every refit.

    Args:
        setting: What synthetic runs are drawn from.
        forms: Forms to choose among.
        rng: Source of randomness.
    """
    compute, fitted = setting.curve.compute, setting.fitted
    candidates = {form: closer_grid(fitted, compute) if form == fitted.form else grid(form, compute) for form in forms}
    block = max(BLOCK // len(compute), 20)
    synthetic = _synthetic(setting, rng)
    parts = [_refit_block(setting, candidates, synthetic[i : i + block]) for i in range(0, len(synthetic), block)]
    return Draws(**{key: np.concatenate([part[key] for part in parts]) for key in parts[0]})


def _synthetic(setting: Resampling, rng: np.random.Generator) -> Array:
    """Synthetic rewards, shape ``(refits, points)``."""
    curve, refits = setting.curve, len(setting.effects)
    basis = effect_basis(curve, setting.fitted)
    followed = np.stack([p(curve.compute) for p in setting.likely])
    synthetic = followed[rng.choice(len(followed), refits, p=list(setting.likely.values()))]
    factor = setting.scatter.draw(refits, rng, least=1.0 if curve.error_is_known else 0.0)
    synthetic += _autocorrelated(curve, setting.noise, refits, rng) * curve.standard_error * factor[:, None]
    for s in range(curve.seeds):
        own = curve.seed == s
        synthetic[:, own] += setting.effects[:, s, :] @ basis[own].T
    if setting.questions is not None:
        synthetic += setting.questions[:, :1] + setting.questions[:, 1:] * basis[:, 0]
    return np.asarray(synthetic)


def _refit_block(setting: Resampling, candidates: dict[str, Grid], synthetic: Array) -> dict[str, np.ndarray]:
    curve, rows = setting.curve, np.arange(len(synthetic))
    weights, at_zero = curve.standard_error**-2, curve.compute == 0
    given = None if setting.start is None else np.full(len(synthetic), setting.start)
    first_reward = synthetic[:, at_zero].mean(axis=1) if at_zero.any() else None
    basis = effect_basis(curve, setting.fitted)
    best: dict[str, np.ndarray] = {}
    score = np.full(len(synthetic), np.inf)
    for form, searched in candidates.items():
        held = given if given is not None else first_reward if form_of(form).start_is_measured else None
        first, gain, squares = project(searched, synthetic, weights, held)
        k = squares.argmin(axis=1)
        values = {
            "form": np.full(len(synthetic), form), "start": first[rows, k], "gain": gain[rows, k],
            "scale": searched.scale[k], "shape": searched.shape[k],
        }  # fmt: skip
        if len(candidates) == 1:
            return values
        own = Draws(**values).at(curve.compute)
        left = without_effects(curve, basis, synthetic - own)
        measure = aicc(form, (left**2 * weights).sum(axis=1), len(weights), setting.scatter.effective_points)
        if setting.selection == "tail":
            error = tail_errors(form, curve.compute, synthetic, weights, held)
            measure = measure if error is None else error
        better = measure < score
        best = values if not best else {key: np.where(better, v, best[key]) for key, v in values.items()}
        score = np.minimum(score, measure)
    return best


def _autocorrelated(curve: Curve, noise: Noise, refits: int, rng: np.random.Generator) -> Array:
    """AR(1) noise of unit variance, begun anew with every run, shape ``(refits, points)``.

    Its autocorrelation is known only to within its error, so refits use its likely values in turn.
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
