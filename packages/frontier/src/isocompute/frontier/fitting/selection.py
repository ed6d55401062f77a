"""Choosing a form: AICc, or how well a fit to the first part of a run predicts its tail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.curves import Array, Curve, Mask
from .forms import Parameters, form_of, rise
from .noise import effective_points
from .point import PointFit, fit_form
from .projection import grid, project
from .seeds import effect_basis, without_effects

CRITERIA = ("aicc", "tail")
RIVAL = 4.0
"""A form whose AICc is within this of the best fits about as well."""
TAIL = 0.25
"""Share of the distinct evaluations, those of most compute, that a tail error is measured on."""


def start_of(curve: Curve, form: str) -> float | None:
    """R0 of a form that holds it: the mean reward at zero compute, where there is one."""
    zero = curve.compute == 0
    return float(curve.reward[zero].mean()) if form_of(form).start_is_measured and zero.any() else None


def point_fits(curve: Curve, forms: Sequence[str], *, thorough: Sequence[str] = ()) -> list[PointFit]:
    """A point fit of each form; empty where there are too few points to fit any.

    Args:
        thorough: Forms refined from several starts; the others, which are only compared with, from one.
    """
    if (curve.compute > 0).sum() < 3 or len(np.unique(curve.compute)) < 3:
        return []
    return [
        fit_form(
            f, curve.compute, curve.reward, curve.standard_error, start_of(curve, f), starts=4 if f in thorough else 1
        )
        for f in forms
    ]


def adjusted_squares(curve: Curve, parameters: Parameters) -> float:
    """Weighted squares about a curve without the effects of seeds: a form is not judged by the luck of the seeds.

    Args:
        parameters: The curve fitted to them.
    """
    residuals = curve.reward - parameters(curve.compute)
    left = without_effects(curve, effect_basis(curve, parameters), residuals)
    return float(((left / curve.standard_error) ** 2).sum())


def nearest(curve: Curve, fits: Sequence[PointFit]) -> Parameters:
    """The fit with the least squares, however many parameters it has.

    The noise must not depend on the form that is chosen by it.

    Args:
        fits: A fit of each form, one or more.
    """
    return min((p.parameters for p in fits), key=lambda p: adjusted_squares(curve, p))


def aicc(form: str, squares: Array, points: int, independent_points: float) -> Array:
    """Corrected Akaike criterion of fits of one form.

    Args:
        form: The form; its parameters, R0 among them, and the variance are counted.
        squares: Weighted squares of each fit.
        points: Points summed over.
        independent_points: How many independent ones they are worth, from ``effective_points``.
    """
    count = form_of(form).free_parameters + 1
    penalty = 2 * count + 2 * count * (count + 1) / max(independent_points - count - 1, 1.0)
    return np.asarray(independent_points * np.log(np.maximum(squares, 1e-12) / points) + penalty)


def criterion(curve: Curve, parameters: Parameters, autocorrelation: float) -> float:
    """AICc of a curve's fit.

    Args:
        parameters: The curve fitted to them.
        autocorrelation: φ of the noise, at lag 1.
    """
    independent_points = effective_points(len(curve.compute), curve.seeds, autocorrelation)
    squares = np.array([adjusted_squares(curve, parameters)])
    return float(aicc(parameters.form, squares, len(curve.compute), independent_points)[0])


def choose(fits: Sequence[PointFit], criteria: dict[str, float], tails: dict[str, float], selection: str) -> PointFit:
    """The form with the least AICc or the least error on the tail; AICc where there is no tail.

    Args:
        fits: One fit per form.
        criteria: AICc of each form.
        selection: ``aicc`` or ``tail``.
    """
    measure = tails if selection == "tail" and tails else criteria
    return min(fits, key=lambda p: measure[p.parameters.form])


def weights_of(criteria: dict[str, float]) -> dict[str, float]:
    """Akaike weights: how likely each form is the best one."""
    values = np.array(list(criteria.values()))
    likely = np.exp(-0.5 * (values - values.min()))
    return dict(zip(criteria, (likely / likely.sum()).tolist(), strict=True))


def held_out(curve: Curve, forms: Sequence[str]) -> dict[str, float]:
    """Error of each form on the held-out tail; empty where the run is too short to hold one out."""
    found = {}
    for form in forms:
        start = start_of(curve, form)
        error = tail_errors(
            form, curve.compute, curve.reward[None, :], curve.standard_error**-2,
            None if start is None else np.array([start]),
        )  # fmt: skip
        if error is not None:
            found[form] = float(error[0])
    return found


def tail_of(compute: Array) -> Mask | None:
    """Which points are the held-out tail, or None where too few are left to fit or to predict."""
    distinct = np.unique(compute[compute > 0])
    held = int(len(distinct) * TAIL)
    # Four parameters need five points, or they predict nothing.
    if held < 2 or len(distinct) - held < 5:
        return None
    return np.asarray(compute >= distinct[-held], dtype=np.bool_)


def tail_errors(form: str, compute: Array, rewards: Array, weights: Array, start: Array | None) -> Array | None:
    """Mean squared error on the tail, over its variance, of a form fitted to what comes before.

    Args:
        rewards: Rewards of one or several runs, shape ``(sets, points)``.
        weights: One over the variance of each point.
        start: R0 of each set where it is held fixed.

    Returns:
        One error per set (1 where only noise is left), or None where the run has no tail to hold out.
    """
    tail = tail_of(compute)
    if tail is None:
        return None
    head = ~tail
    candidates = grid(form, compute[head])
    first, gain, squares = project(candidates, rewards[:, head], weights[head], start)
    best = squares.argmin(axis=1)
    rows = np.arange(len(rewards))
    share = rise(form, compute[tail][None, :], candidates.scale[best, None], candidates.shape[best, None])
    miss = first[rows, best][:, None] + gain[rows, best][:, None] * share - rewards[:, tail]
    return np.asarray((miss**2 * weights[tail]).mean(axis=1))
