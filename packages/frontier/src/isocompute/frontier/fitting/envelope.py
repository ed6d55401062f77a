"""The best reward of every curve up to each compute, and the upper envelope: f(C) = max of R over all compute ≤ C.

A run can be stopped before its budget is spent, so a curve whose data end still offers its last reward (IsoCompute
Playbook, section 4). The envelope therefore never falls, and n*(C) is the n of the curve that attains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array, Mask, not_beyond, within_support
from .curve_fit import CurveFit
from .intervals import ends

GRID_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesOnGrid:
    """Fitted curves, evaluated at the same compute.

    Attributes:
        compute: Grid of compute, log-uniform over the support of all curves together, shape ``(points,)``.
        point: Best fitted reward up to each compute, −∞ before a curve's first evaluation, shape ``(curves, points)``.
        refits: The same of the refits, shape ``(refits, curves, points)``; no refits where a curve has none.
        within: Whether each curve's own data reach each compute, shape ``(curves, points)``.
    """

    compute: Array
    point: Array
    refits: Array
    within: Mask

    @property
    def best(self) -> np.ndarray:
        """Index of the curve that attains the envelope of the fits at each compute, shape ``(points,)``."""
        return winners(self.point)


def on_grid(fits: Sequence[CurveFit]) -> CurvesOnGrid:
    """Evaluate fitted curves and their refits on one grid.

    Args:
        fits: One or more curves, each with a fit.
    """
    first, last = np.array([c.curve.support for c in fits]).T[:, :, None]
    compute = np.geomspace(first.min(), last.max(), GRID_POINTS)
    # Curves never fall, so that the best reward up to some compute is the one at it, or at the end of the data.
    reached = np.minimum(compute, last)
    begun = not_beyond(first, compute)
    point = np.stack([c.parameters(at) for c, at in zip(fits, reached, strict=True) if c.parameters])
    draws = [c.draws.at(at) for c, at in zip(fits, reached, strict=True) if c.draws]
    refits = np.stack(draws, axis=1) if draws else np.zeros((0, *point.shape))
    return CurvesOnGrid(
        compute=compute, point=np.where(begun, point, -np.inf), refits=np.where(begun, refits, -np.inf),
        within=within_support(compute, first, last),
    )  # fmt: skip


def winners(rewards: Array) -> np.ndarray:
    """Index of the curve that attains the envelope at each compute, shape ``(..., points)``.

    Args:
        rewards: Best rewards up to each compute, shape ``(..., curves, points)``.
    """
    return np.asarray(rewards.argmax(axis=-2))


def envelope(point: Array, refits: Array) -> Array:
    """Reward of the envelope and its 95 % interval, shape ``(3, points)``; none of them ever falls.

    Args:
        point: Best fitted rewards up to each compute, shape ``(curves, points)``.
        refits: The same of the refits, shape ``(refits, curves, points)``.
    """
    return np.stack([point.max(axis=0), *ends(refits.max(axis=1))])
