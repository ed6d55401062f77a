"""Where n*(C) stops growing, from its isotonic companion (IsoCompute Playbook, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.curves import Array, Mask, not_beyond
from ..data.records import isotonic
from ..errors import MEANING, Flag
from .envelope import winners
from .intervals import interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Where n* has come within half a doubling of its last value.

    Attributes:
        rollouts_per_problem: Last value of the isotonic companion of n*(C), which need not be an n measured.
        compute: Where n* comes within half a doubling of it, or None when n* never changes by as much.
        interval: 95 % interval of that, from the refits in which n* changes; None when fewer than half do.
        end: Last compute that the curves compared all reach.
        flags: ``n_star_at_largest_n`` when it is the largest n measured there, ``n_star_still_growing`` when no
            doubling of compute without growth was seen.
    """

    rollouts_per_problem: float
    compute: float | None
    interval: tuple[float, float] | None
    end: float
    flags: tuple[Flag, ...]

    def as_dict(self) -> dict[str, Any]:
        """As in ``fits.json``."""
        return {
            "rollouts_per_problem": self.rollouts_per_problem,
            "compute": self.compute,
            "interval": list(self.interval) if self.interval else None,
            "end": self.end,
            "flags": [str(f) for f in self.flags],
        }

    def summary(self, unit: str) -> str:
        """One line to be printed."""
        notes = "".join(f"; {MEANING[f]}" for f in self.flags)
        if self.compute is None:
            return f"n* stays near {self.rollouts_per_problem:.0f} up to {self.end:,.4g} {unit}{notes}"
        span = f" ({self.interval[0]:,.4g} to {self.interval[1]:,.4g})" if self.interval else ""
        grown = "has grown to" if Flag.STILL_GROWING in self.flags else "levels off at"
        return f"n* {grown} {self.rollouts_per_problem:.0f} from {self.compute:,.4g} {unit}{span} on{notes}"


def comparable(compute: Array, within: Mask) -> np.ndarray:
    """Grid points up to where the first of the long curves ends: beyond, the best n depends on which n were run so far.

    Args:
        compute: Grid, shape ``(points,)``.
        within: Whether each curve's own data reach each compute, shape ``(curves, points)``.
    """
    ends = np.array([compute[row][-1] for row in within if row.any()])
    return np.asarray(not_beyond(compute, ends[ends >= ends.max() / 2].min()) & within.any(axis=0))


def isotonic_n(compute: Array, n: Array) -> Array:
    """The non-decreasing companion of n*(C), in log2 n, as n.

    Args:
        compute: Grid, shape ``(points,)``.
        n: n of the best curve there, shape ``(points,)``.
    """
    return np.asarray(2.0 ** isotonic(compute, np.log2(n)))


def saturation(compute: Array, best: np.ndarray, refits: Array, within: Mask, n: Array) -> Saturation:
    """Find where n* stops growing.

    Args:
        compute: Grid, shape ``(points,)``.
        best: Index of the best curve at each point, shape ``(points,)``.
        refits: Best refitted rewards up to each compute, shape ``(refits, curves, points)``.
        within: Whether each curve's own data reach each compute, shape ``(curves, points)``.
        n: Rollouts per problem of each curve.
    """
    shared = comparable(compute, within)
    grid = compute[shared]
    last, where = _saturation_point(grid, n[best[shared]])
    draws = [_saturation_point(grid, n[row[shared]])[1] for row in winners(refits)]
    known = np.array([d for d in draws if d is not None])
    span = None
    if where is not None and len(known) >= len(draws) / 2:
        span = interval(known)
    flags = []
    largest = n[within[:, np.flatnonzero(shared)[-1]]].max()
    if np.log2(last) > np.log2(largest) - 0.5:
        flags.append(Flag.AT_LARGEST_N)
    if where is not None and max(where, span[1] if span else where) > grid[-1] / 2:
        flags.append(Flag.STILL_GROWING)
    return Saturation(rollouts_per_problem=last, compute=where, interval=span, end=float(grid[-1]), flags=tuple(flags))


def _saturation_point(compute: Array, n: Array) -> tuple[float, float | None]:
    """Last value of the companion, and where it comes within half a doubling; None when it begins there."""
    level = np.log2(isotonic_n(compute, n))
    inside = np.flatnonzero(level > level[-1] - 0.5)
    return float(2.0 ** level[-1]), float(compute[inside[0]]) if inside[0] > 0 else None
