"""The point fit of one form: the best candidates of a grid, refined by bounded robust least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from ..data.curves import Array
from .forms import Parameters, form_of
from .projection import Grid, grid, project


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFit:
    """The best fit of one form.

    Attributes:
        parameters: The curve.
        residual_sd: Standard deviation of the residuals in reward.
        at_bound: Whether scale or shape lies on the edge of the grid.
        starts_disagree: Whether starts that end about as good end at asymptotes 0.05 apart or more.
    """

    parameters: Parameters
    residual_sd: float
    at_bound: bool
    starts_disagree: bool


def standard_deviation(squares: float, points: int, parameters: int) -> float:
    """Standard deviation of the residuals of a fit."""
    return float(np.sqrt(squares / max(points - parameters, 1)))


def fit_form(
    form: str, compute: Array, reward: Array, standard_error: Array, start: float | None, *, starts: int = 4
) -> PointFit:
    """Fit one form to the points of a curve.

    Args:
        standard_error: Its standard error, which scales the residuals; they are summed, never averaged
            (a mean stops optimisers early).
        start: R0 when it is fixed.
        starts: Candidates refined; 1 for a fit that is only compared with.
    """
    candidates = grid(form, compute)
    weights = standard_error**-2
    fixed = None if start is None else np.array([start])
    first, gain, squares = project(candidates, reward[None, :], weights, fixed)
    order = np.argsort(squares[0], kind="stable")
    picks = [order[0], *(k for k in order[1:200:40])][:starts]
    ends = [
        _refine(form, candidates, int(k), float(first[0, k]), float(gain[0, k]), compute, reward,
                standard_error, start)
        for k in picks
    ]  # fmt: skip
    best = min(ends, key=lambda end: end[1])
    rivals = [p.asymptote for p, cost in ends if cost <= best[1] * 1.001 + 1e-9]
    parameters = best[0]
    residuals = reward - parameters(compute)
    (low, high), has_shape = form_of(form).shapes, form_of(form).has_shape
    edge = (
        parameters.scale <= candidates.scale.min() * 1.01
        or parameters.scale >= candidates.scale.max() * 0.99
        or (has_shape and not low * 1.01 < parameters.shape < high * 0.99)
    )
    return PointFit(
        parameters=parameters,
        residual_sd=standard_deviation((residuals**2).sum(), len(reward), form_of(form).free_parameters),
        at_bound=bool(edge and parameters.gain > 1e-9),
        starts_disagree=max(rivals) - min(rivals) >= 0.05,
    )


def _refine(
    form: str, candidates: Grid, k: int, first: float, gain: float,
    compute: Array, reward: Array, error: Array, start: float | None,
) -> tuple[Parameters, float]:  # fmt: skip
    """Refine one candidate; returns the curve and its robust cost."""
    (low, high), has_shape = form_of(form).shapes, form_of(form).has_shape
    span = candidates.scale.min(), candidates.scale.max()
    # Gain, log scale, start, log shape: only those that are free, as a direction without effect stops an optimiser.
    is_free = np.array([True, True, start is None, has_shape])
    usual = np.array([gain, np.log(candidates.scale[k]), first, np.log(candidates.shape[k])])

    def curve(x: Array) -> Parameters:
        every = usual.copy()
        every[is_free] = x
        begin = start if start is not None else float(every[2])
        shape = float(np.exp(every[3])) if has_shape else low
        # Held below 1 while it searches: cut off afterwards, scale and shape would be those of another curve.
        gain = min(float(every[0]), 1.0 - begin)
        return Parameters(form=form, start=begin, gain=gain, scale=float(np.exp(every[1])), shape=shape)

    def residuals(x: Array) -> Array:
        return np.asarray((reward - curve(x)(compute)) / error)

    bounds = (
        np.array([0.0, np.log(span[0]), 0.0, np.log(low) - 1e-9])[is_free],
        np.array([1.0, np.log(span[1]), 1.0, np.log(high) + 1e-9])[is_free],
    )
    begin = np.clip(usual[is_free], bounds[0] + 1e-9, bounds[1] - 1e-9)
    # Huber's threshold of 3 standard errors leaves all but outliers as they are.
    found = least_squares(residuals, begin, bounds=bounds, loss="huber", f_scale=3.0, max_nfev=200)
    return curve(found.x), float(found.cost)
