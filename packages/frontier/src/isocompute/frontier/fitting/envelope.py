"""The fitted curves of a sweep on one grid of compute, and their upper envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array, Mask, within_support
from .curve_fit import CurveFit
from .intervals import ends

GRID_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesOnGrid:
    """Fitted curves, evaluated at the same compute.

    Attributes:
        compute: Grid of compute, log-uniform over the support of all curves together, shape ``(points,)``.
        point: Fitted rewards, shape ``(curves, points)``.
        refits: Refitted rewards, shape ``(refits, curves, points)``.
        within: Whether each curve's data reach each compute, shape ``(curves, points)``.
    """

    compute: Array
    point: Array
    refits: Array
    within: Mask


def on_grid(fits: Sequence[CurveFit]) -> CurvesOnGrid:
    """Evaluate fitted curves and their refits on one grid.

    Args:
        fits: One or more curves, each with a fit.
    """
    supports = np.array([c.curve.support for c in fits])
    compute = np.geomspace(supports[:, 0].min(), supports[:, 1].max(), GRID_POINTS)
    return CurvesOnGrid(
        compute=compute,
        point=np.stack([c.parameters(compute) for c in fits if c.parameters]),
        refits=np.stack([c.draws.at(compute) for c in fits if c.draws], axis=1),
        within=supported(compute, supports),
    )


def supported(compute: Array, supports: Array) -> Mask:
    """Whether each curve's data reach each compute, shape ``(curves, points)``; supports are (first, last).

    Args:
        compute: Grid, shape ``(points,)``.
        supports: First and last compute of each curve, shape ``(curves, 2)``.
    """
    return within_support(compute, supports[:, :1], supports[:, 1:])


def winners(rewards: Array, within: Mask) -> np.ndarray:
    """Index of the best supported curve at each point, −1 where none is.

    Args:
        rewards: Shape ``(..., curves, points)``.
        within: From ``supported``, shape ``(curves, points)``.
    """
    best = np.where(within, rewards, -np.inf).argmax(axis=-2)
    return np.where(within.any(axis=0), best, -1)


def envelope(point: Array, refits: Array, within: Mask) -> Array:
    """Reward of the envelope and its 95 % interval, shape ``(3, points)``; none of them ever falls.

    Where the best curve's data end, its last reward is carried on: a run can be stopped before its budget is spent.

    Args:
        point: Fitted rewards, shape ``(curves, points)``.
        refits: Refitted rewards, shape ``(refits, curves, points)``.
        within: From ``supported``.
    """
    top = np.maximum.accumulate(np.where(within, refits, -np.inf).max(axis=1), axis=1)
    low, high = ends(top)
    return np.stack([np.maximum.accumulate(np.where(within, point, -np.inf).max(axis=0)), low, high])


def carried(point: Array, within: Mask) -> Mask:
    """Where the envelope is above every curve with data, as a reward reached at less compute, shape ``(points,)``.

    Args:
        point: Fitted rewards, shape ``(curves, points)``.
        within: From ``supported``.
    """
    own = np.where(within, point, -np.inf).max(axis=0)
    return np.asarray(own < np.maximum.accumulate(own), dtype=np.bool_)
