"""One family of curves for all forms: the share of the gain made at some compute, with its derivatives.

    rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

(Burr's twelfth distribution; half of the gain is made at C_half whatever q and s are.) ``q = 1`` is ``hill`` with
B = s, ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to be integrated
over, not a choice to be made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.curves import Array

LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


class Rise(NamedTuple):
    """The share made, and its derivatives by z = s·log(C/C_half) and by q; shapes broadcast."""

    share: Array
    by_position: Array
    by_tail: Array


def rise(position: Array, tail: Array) -> Rise:
    """The share of the gain at z = s·log(C/C_half).

    Args:
        position: z; minus infinity before training.
        tail: q, above 0.
    """
    half = np.expm1(tail * LOG_2) / tail
    w = half * np.exp(np.minimum(position, LARGEST))
    grown = tail * w
    spread = 1.0 + grown
    logarithm = np.log1p(grown)
    left = np.exp(-logarithm / tail)
    by_position = left * w / spread
    by_half = LOG_2 / (-np.expm1(-tail * LOG_2)) - 1.0 / tail
    by_tail = left * (w / (tail * spread) - logarithm / tail**2) + by_position * by_half
    return Rise(1.0 - left, by_position, by_tail)
