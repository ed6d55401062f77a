"""How far beyond its own data a curve may be asked about: each has its own support."""

from __future__ import annotations

from collections.abc import Sequence

from .storage import Candidate

FARTHEST = 4.0
"""Beyond this multiple of the largest compute that a curve was measured at, nothing is said of it."""


def measured(curve: Candidate, compute: float) -> bool:
    """Whether a curve's own data reach some compute."""
    first, last = curve.support
    return first * (1 - 1e-9) <= compute <= last * (1 + 1e-9)


def within_reach(curves: Sequence[Candidate], compute: float) -> tuple[list[Candidate], list[Candidate]]:
    """Curves that may be asked about at some compute, and those refused because their data end too early."""
    kept = [c for c in curves if compute <= FARTHEST * c.support[1] * (1 + 1e-9)]
    return kept, [c for c in curves if c not in kept]
