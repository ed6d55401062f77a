"""Profile likelihood of the asymptote, with as many points as the autocorrelated ones are worth.

For every A the best start, scale and shape are found again; the interval is where the sum of squares rises by no
more than chance would have it, RSS(A)/RSS_min ≤ 1 + t²/ν, with ν the effective number of points minus the parameters.
The points are those of the mean over seeds: the departure of each seed from it is removed, and counted in what the
spread between seeds adds. It needs no refits, and where the data do not say where a curve levels off it is open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .forms import form_of
from .intervals import t_quantile
from .point import PointFit
from .projection import Grid, grid, sums

ASYMPTOTES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile-likelihood interval of an asymptote.

    Attributes:
        interval: 95 % interval of A.
        effective_points: How many independent points they are worth.
        open_above: Whether nothing below a reward of 1 is excluded.
    """

    interval: tuple[float, float]
    effective_points: float
    open_above: bool


def profile_asymptote(
    best: PointFit,
    compute: Array,
    reward: Array,
    standard_error: Array,
    start: float | None,
    *,
    independent_points: float,
    between_seeds: float = 0.0,
) -> Profile:
    """Profile the asymptote of a fitted curve.

    Args:
        reward: Its reward, without the departure of each seed from their mean.
        start: R0 where it is held fixed.
        independent_points: How many independent points they are worth, from ``effective_points``.
        between_seeds: Half of the 95 % interval that the spread between seeds alone gives A; 0 within a run.
    """
    form, weights = best.parameters.form, standard_error**-2
    freedom = max(independent_points - form_of(form).free_parameters, 1.0)
    limit = 1 + t_quantile(freedom) ** 2 / freedom
    # A curve that rises cannot level off far below its mean.
    lowest = max(min(float(np.average(reward, weights=weights)), best.parameters.asymptote) - 0.1, 0.0)
    asymptotes = np.unique(np.append(np.linspace(lowest, 1.0, ASYMPTOTES), best.parameters.asymptote))
    coarse = grid(form, compute)
    squares = _squares(coarse, reward, weights, asymptotes, start)
    fine = _finer_grid(form, compute, coarse, squares.min(axis=0), 1 + 4 * (limit - 1))
    low, high = _ends_within(asymptotes, _squares(fine, reward, weights, asymptotes, start).min(axis=1), limit)
    # Once more where the interval is: the first search was over the whole of [lowest, 1].
    margin = max(high - low, 2 * float(np.diff(asymptotes).max()))
    asymptotes = np.linspace(max(low - margin, 0.0), min(high + margin, 1.0), ASYMPTOTES)
    low, high = _ends_within(asymptotes, _squares(fine, reward, weights, asymptotes, start).min(axis=1), limit)
    open_above = high >= 1.0 - 1e-9
    # Seeds move the whole curve: their share of the error of A adds to that within runs.
    middle = best.parameters.asymptote
    low = max(middle - float(np.hypot(max(middle - low, 0.0), between_seeds)), 0.0) if between_seeds > 0 else low
    high = min(middle + float(np.hypot(max(high - middle, 0.0), between_seeds)), 1.0) if between_seeds > 0 else high
    return Profile(interval=(low, high), effective_points=independent_points, open_above=open_above)


def _squares(candidates: Grid, reward: Array, weights: Array, asymptotes: Array, start: float | None) -> Array:
    """Weighted squares of R = A − G·(1 − rise) with the best G, shape ``(asymptotes, candidates)``."""
    # Around the mean, so that squares of a small residual are not lost in those of the rewards.
    centre = float(np.average(reward, weights=weights))
    found = sums(candidates, (reward - centre)[None, :], weights)
    a = (asymptotes - centre)[:, None]
    left = found.total - found.h
    left_squared = np.maximum(found.total - 2 * found.h + found.hh, 1e-300)
    left_miss = a * left - (found.y[0] - found.hy[0])
    gain = left_miss / left_squared if start is None else np.broadcast_to(asymptotes[:, None] - start, left_miss.shape)
    gain = np.maximum(gain, 0.0)
    # Gains of a form that hardly rises over the data are beyond all bounds, and so are their squares.
    with np.errstate(over="ignore"):
        left_gain = gain**2 * left_squared
    squares = found.yy[0] - 2 * a * found.y[0] + a**2 * found.total - 2 * gain * left_miss + left_gain
    return np.asarray(np.maximum(squares, 1e-300))


def _finer_grid(form: str, compute: Array, coarse: Grid, squares: Array, limit: float) -> Grid:
    """A finer grid over the scales and shapes that any asymptote makes likely."""
    likely = squares <= squares.min() * limit
    step = 1.35 if form_of(form).has_shape else 1.1
    scales = np.geomspace(coarse.scale[likely].min() / step, coarse.scale[likely].max() * step, 240)
    if not form_of(form).has_shape:
        return grid(form, compute, scales=scales)
    low, high = form_of(form).shapes
    shapes = np.geomspace(max(coarse.shape[likely].min() / 1.15, low), min(coarse.shape[likely].max() * 1.15, high), 40)
    return grid(form, compute, scales=scales[::3], shapes=shapes)


def _ends_within(asymptotes: Array, squares: Array, limit: float) -> tuple[float, float]:
    """Ends of the asymptotes whose squares are within the limit of the least."""
    inside = np.flatnonzero(squares <= squares.min() * limit)
    return float(asymptotes[inside[0]]), float(asymptotes[inside[-1]])
