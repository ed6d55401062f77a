"""The curves that compete at a budget: each has its own support, and is extrapolated only so far beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array, not_beyond, within_support
from ..errors import Flag
from ..fitting.forms import Parameters
from ..fitting.uncertainty import Draws
from .sweep import FittedSweep

FARTHEST_EXTRAPOLATION = 4.0
"""Beyond this multiple of the largest compute that a curve was measured at, a curve is not extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One curve as ``prescribe`` needs it.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        parameters: Its fit.
        draws: Its refits.
        support: Least and most compute that it was measured at.
        flags: Why to read it with care.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    parameters: Parameters
    draws: Draws
    support: tuple[float, float]
    flags: tuple[Flag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurves:
    """What ``prescribe`` and ``sensitivity`` need of fits.

    Attributes:
        unit: Unit of compute.
        metric: Metric fitted.
        degrees: Degrees of freedom of the errors of differences.
        curves: The curves that could be fitted.
    """

    unit: str
    metric: str
    degrees: float
    curves: tuple[Candidate, ...]


def candidates_of(fits: FittedSweep) -> MeasuredCurves:
    """What fits in memory say of their curves."""
    curves = tuple(
        Candidate(
            rollouts_per_problem=c.curve.rollouts_per_problem,
            problems_per_batch=c.curve.problems_per_batch,
            parameters=c.parameters, draws=c.draws, support=c.curve.support, flags=c.flags,
        )
        for c in fits.fitted if c.parameters and c.draws
    )  # fmt: skip
    return MeasuredCurves(unit=fits.unit, metric=fits.metric, degrees=fits.degrees, curves=curves)


def measured(curve: Candidate, compute: float) -> bool:
    """Whether a curve's own data reach some compute.

    Args:
        compute: Compute, in the unit of the fit.
    """
    return bool(within_support(compute, *curve.support))


def within_reach(curves: Sequence[Candidate], compute: float) -> tuple[list[Candidate], list[Candidate]]:
    """Curves that may be asked about at some compute, and those refused because their data end too early.

    Args:
        compute: Compute, in the unit of the fit.
    """
    kept = [c for c in curves if not_beyond(compute, FARTHEST_EXTRAPOLATION * c.support[1])]
    return kept, [c for c in curves if c not in kept]


def rewards_at(curves: Sequence[Candidate], compute: float) -> tuple[Array, Array]:
    """Rewards of the curves at one compute.

    Args:
        curves: The curves, one or more.
        compute: Compute, in the unit of the fit.

    Returns:
        Fitted ones, shape ``(curves,)``, and refitted ones, shape ``(refits, curves)``.
    """
    at = np.array([float(compute)])
    point = np.array([float(c.parameters(at)[0]) for c in curves])
    return point, np.stack([c.draws.at(at)[:, 0] for c in curves], axis=1)
