"""Variable projection: the best start and gain of a form over a dense grid of scales and shapes.

For a given scale and shape the start and the gain are a linear problem, solved in closed form; so a whole
grid of scales and shapes, for many rewards at once, is a few matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .forms import Parameters, form_of, rise

MOST_DISTINCT = 4096
"""Distinct values of compute that a grid is evaluated at; more are merged with their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scales and shapes searched, flattened.

    Attributes:
        scale: Shape ``(candidates,)``.
        shape: Shape ``(candidates,)``.
        rise: At each distinct compute, shape ``(candidates, distinct)``.
        order: Points sorted by compute, or None where every point has a column of its own.
        first: Where each distinct compute begins in that order.
    """

    scale: Array
    shape: Array
    rise: Array
    order: np.ndarray | None
    first: np.ndarray

    def summed(self, values: Array) -> Array:
        """Sum values of points, shape ``(..., points)``, over those of one compute."""
        if self.order is None:
            return values
        return np.asarray(np.add.reduceat(values[..., self.order], self.first, axis=-1))


def grid(form: str, compute: Array, *, scales: Array | None = None, shapes: Array | None = None) -> Grid:
    """Candidates for a form: scales from a tenth of the first compute to 30 times the last, by logarithm.

    Args:
        shapes: Other shapes to search.
    """
    usual = _searched(form, compute)
    chosen = (usual[0] if scales is None else scales, usual[1] if shapes is None else shapes)
    scale, shape = (a.ravel() for a in np.meshgrid(*chosen, indexing="ij"))
    distinct, order, first = _distinct(compute)
    share = rise(form, distinct[None, :], scale[:, None], shape[:, None])
    return Grid(scale=scale, shape=shape, rise=share, order=order, first=first)


def closer_grid(fitted: Parameters, compute: Array) -> Grid:
    """The whole grid of a form, and a finer one around a fit: where most refits of it end.

    Args:
        compute: Compute of each point, shape ``(points,)``.
    """
    scales, shapes = _searched(fitted.form, compute)
    near = np.clip(np.geomspace(fitted.scale / 1.8, fitted.scale * 1.8, 31), scales[0], scales[-1])
    scales = np.unique(np.concatenate([scales, near]))
    if not form_of(fitted.form).has_shape:
        return grid(fitted.form, compute, scales=scales)
    near = np.clip(np.geomspace(fitted.shape / 1.5, fitted.shape * 1.5, 11), shapes[0], shapes[-1])
    return grid(fitted.form, compute, scales=scales, shapes=np.unique(np.concatenate([shapes, near])))


def _searched(form: str, compute: Array) -> tuple[Array, Array]:
    positive = compute[compute > 0]
    found = form_of(form)
    # Finer for one free parameter than for two.
    scales = np.geomspace(positive.min() / 10, positive.max() * 30, 60 if found.has_shape else 160)
    return scales, np.geomspace(*found.shapes, 24) if found.has_shape else np.array(found.shapes[:1])


def _distinct(compute: Array) -> tuple[Array, np.ndarray | None, np.ndarray]:
    """Distinct values of compute, the order that sorts the points by them, and where each begins in it."""
    distinct, counts = np.unique(compute, return_counts=True)
    if len(distinct) == len(compute) and len(distinct) <= MOST_DISTINCT:
        return compute, None, np.arange(len(compute))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    if len(distinct) > MOST_DISTINCT:
        picks = np.unique(np.linspace(0, len(distinct), MOST_DISTINCT, endpoint=False).astype(np.int64))
        means = np.add.reduceat(distinct * counts, picks) / np.add.reduceat(counts, picks)
        distinct, first = means, first[picks]
    return distinct, np.argsort(compute, kind="stable"), first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What a linear fit needs of the points: sums over them, weighted.

    Attributes:
        total: Of the weights.
        h: Of the rise, shape ``(candidates,)``.
        hh: Of its square, shape ``(candidates,)``.
        y: Of the rewards, shape ``(sets,)``.
        yy: Of their squares, shape ``(sets,)``.
        hy: Of rise times reward, shape ``(sets, candidates)``.
    """

    total: float
    h: Array
    hh: Array
    y: Array
    yy: Array
    hy: Array


def sums(candidates: Grid, rewards: Array, weights: Array) -> Sums:
    """Weighted sums over the points, for rewards of shape ``(sets, points)`` and weights of shape ``(points,)``.

    Args:
        candidates: From ``grid``.
        rewards: Shape ``(sets, points)``.
        weights: Shape ``(points,)``.
    """
    basis, mass = candidates.rise, candidates.summed(weights)
    return Sums(
        total=float(weights.sum()), h=basis @ mass, hh=(basis**2) @ mass,
        y=rewards @ weights, yy=(rewards**2) @ weights, hy=candidates.summed(rewards * weights) @ basis.T,
    )  # fmt: skip


def project(candidates: Grid, rewards: Array, weights: Array, start: Array | None) -> tuple[Array, Array, Array]:
    """Best start and gain for every candidate and every set of rewards.

    The gain is kept at 0 or more, the start too, and the asymptote at 1 or less.

    Args:
        candidates: From ``grid``; K candidates over N points.
        rewards: Shape ``(sets, N)``.
        weights: Shape ``(N,)``.
        start: R0 of each set, shape ``(sets,)``, or None when it is free.

    Returns:
        Start, gain and weighted sum of squares, each of shape ``(sets, K)``.
    """
    found = sums(candidates, rewards, weights)
    total, s_h, s_hh, s_y, s_yy, s_hy = found.total, found.h, found.hh, found.y, found.yy, found.hy
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
        # Below 0: hold R0 = 0, so that R = G·rise.
        below = first < 0.0
        gain = np.where(below, np.clip(s_hy / np.maximum(s_hh, 1e-300), 0.0, 1.0), gain)
        first = np.where(below, 0.0, first)
    else:
        first = np.broadcast_to(start[:, None], s_hy.shape)
        gain = (s_hy - first * s_h) / np.maximum(s_hh, 1e-300)
        gain = np.clip(gain, 0.0, np.maximum(1.0 - first, 0.0))
    squares = (
        s_yy[:, None] - 2 * first * s_y[:, None] - 2 * gain * s_hy
        + first**2 * total + 2 * first * gain * s_h + gain**2 * s_hh
    )  # fmt: skip
    return first, gain, np.maximum(squares, 0.0)
