"""Fitting one form: variable projection over a dense grid, then bounded robust least squares.

For a given scale and shape the start and the gain are a linear problem, solved in closed form; so a whole
grid of scales and shapes, for many rewards at once, is a few matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from .curves import Array
from .forms import SHAPES, Parameters, rise


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scales and shapes searched, flattened; all of shape ``(candidates,)``, ``rise`` ``(candidates, points)``."""

    scale: Array
    shape: Array
    rise: Array


def grid(form: str, compute: Array) -> Grid:
    """Candidates for a form: scales from a tenth of the first compute to 30 times the last, by logarithm."""
    positive = compute[compute > 0]
    # Finer for one free parameter than for two.
    scales = np.geomspace(positive.min() / 10, positive.max() * 30, 160 if form == "exp" else 60)
    low, high = SHAPES[form]
    shapes = np.array([1.0]) if form == "exp" else np.geomspace(low, high, 24)
    scale, shape = (a.ravel() for a in np.meshgrid(scales, shapes, indexing="ij"))
    return Grid(scale=scale, shape=shape, rise=rise(form, compute[None, :], scale[:, None], shape[:, None]))


def project(candidates: Grid, rewards: Array, weights: Array, start: Array | None) -> tuple[Array, Array, Array]:
    """Best start and gain for every candidate and every set of rewards.

    The gain is kept at 0 or more and the asymptote at 1 or less.

    Args:
        candidates: From ``grid``; K candidates over N points.
        rewards: Shape ``(sets, N)``.
        weights: Shape ``(N,)``.
        start: R0 of each set, shape ``(sets,)``, or None when it is free.

    Returns:
        Start, gain and weighted sum of squares, each of shape ``(sets, K)``.
    """
    basis = candidates.rise
    total = weights.sum()
    s_h, s_hh = basis @ weights, (basis**2) @ weights
    s_y, s_yy = rewards @ weights, (rewards**2) @ weights
    s_hy = (rewards * weights) @ basis.T
    if start is None:
        spread = np.maximum(total * s_hh - s_h**2, 1e-12 * total * np.maximum(s_hh, 1e-300))
        gain = np.maximum((total * s_hy - s_h * s_y[:, None]) / spread, 0.0)
        first = (s_y[:, None] - gain * s_h) / total
        # Above 1: hold A = 1, so that R = 1 − G·(1 − rise), and solve for G alone.
        left_hh = total - 2 * s_h + s_hh
        left_hy = (total - s_y)[:, None] - (s_h - s_hy)
        held = np.maximum(left_hy / np.maximum(left_hh, 1e-300), 0.0)
        above = first + gain > 1.0
        gain = np.where(above, held, gain)
        first = np.where(above, 1.0 - held, first)
    else:
        first = np.broadcast_to(start[:, None], s_hy.shape)
        gain = (s_hy - first * s_h) / np.maximum(s_hh, 1e-300)
        gain = np.clip(gain, 0.0, np.maximum(1.0 - first, 0.0))
    squares = (
        s_yy[:, None] - 2 * first * s_y[:, None] - 2 * gain * s_hy
        + first**2 * total + 2 * first * gain * s_h + gain**2 * s_hh
    )  # fmt: skip
    return first, gain, np.maximum(squares, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFit:
    """The best fit of one form.

    Attributes:
        parameters: The curve.
        residual_sd: Standard deviation of the residuals in reward.
        criterion: AICc, with a known error scale's worth of points counted.
        at_bound: Whether scale or shape lies on the edge of the grid.
        starts_disagree: Whether starts that end about as good end at asymptotes 0.05 apart or more.
    """

    parameters: Parameters
    residual_sd: float
    criterion: float
    at_bound: bool
    starts_disagree: bool


def fit_form(
    form: str, compute: Array, reward: Array, standard_error: Array, start: float | None, *, starts: int = 4
) -> PointFit:
    """Fit one form to the points of a curve.

    Args:
        form: The form.
        compute: Compute of each point.
        reward: Reward of each point.
        standard_error: Its standard error, which scales the residuals; they are summed, never averaged
            (a mean stops optimisers early).
        start: R0 when it is fixed.
        starts: Candidates polished; 1 for a fit that is only compared with.
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
    count = (3 if form == "exp" else 4) - (0 if start is None else 1)
    n = len(reward)
    rss = float((residuals**2 * weights).sum())
    penalty = 2 * count + 2 * count * (count + 1) / max(n - count - 1, 1)
    low, high = SHAPES[form]
    edge = (
        parameters.scale <= candidates.scale.min() * 1.01
        or parameters.scale >= candidates.scale.max() * 0.99
        or (form != "exp" and not low * 1.01 < parameters.shape < high * 0.99)
    )
    return PointFit(
        parameters=parameters,
        residual_sd=float(np.sqrt((residuals**2).sum() / max(n - count, 1))),
        criterion=n * float(np.log(max(rss, 1e-12) / n)) + penalty,
        at_bound=bool(edge and parameters.gain > 1e-9),
        starts_disagree=max(rivals) - min(rivals) >= 0.05,
    )


def _refine(
    form: str, candidates: Grid, k: int, first: float, gain: float,
    compute: Array, reward: Array, error: Array, start: float | None,
) -> tuple[Parameters, float]:  # fmt: skip
    """Polish one candidate; returns the curve and its robust cost."""
    low, high = SHAPES[form]
    span = candidates.scale.min(), candidates.scale.max()

    def curve(x: Array) -> Parameters:
        begin = start if start is not None else float(x[2])
        shape = float(np.exp(x[3])) if form != "exp" else 1.0
        return Parameters(form=form, start=begin, gain=float(x[0]), scale=float(np.exp(x[1])), shape=shape)

    def residuals(x: Array) -> Array:
        return np.asarray((reward - curve(x)(compute)) / error)

    bounds = (
        np.array([0.0, np.log(span[0]), 0.0, np.log(low) - 1e-9]),
        np.array([1.0, np.log(span[1]), 1.0, np.log(high) + 1e-9]),
    )
    begin = np.array([gain, np.log(candidates.scale[k]), first, np.log(candidates.shape[k])])
    begin = np.clip(begin, bounds[0] + 1e-9, bounds[1] - 1e-9)
    # Huber's threshold of 3 standard errors leaves all but outliers as they are.
    found = least_squares(residuals, begin, bounds=bounds, loss="huber", f_scale=3.0, max_nfev=200)
    parameters = curve(found.x)
    if parameters.asymptote > 1.0:
        parameters = Parameters(
            form=form, start=parameters.start, gain=1.0 - parameters.start,
            scale=parameters.scale, shape=parameters.shape,
        )  # fmt: skip
    return parameters, float(found.cost)
