"""Shapes of curves against the logarithm of compute: the rise, the step before it, the bend after it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.curves import Array

TURN = 0.3
"""h: e-folds of compute over which a curve turns."""


class Turn(NamedTuple):
    """A function of log C less that of a compute, and its derivative; shapes broadcast."""

    value: Array
    by_position: Array


def step_share(position: Array) -> Turn:
    """1 − 2^(−C/C_j), the share of the first step that is made; 0 before training."""
    grown = LOG_2 * np.exp(np.minimum(position, LARGEST))
    left = np.exp(-grown)
    return Turn(1.0 - left, grown * left)


class Bend(NamedTuple):
    """A bent rise, and its derivatives by the rise, by e, by log C less w, by d and by f; shapes broadcast."""

    value: Array
    by_share: Array
    by_slope: Array
    by_position: Array
    by_speed: Array
    by_fall: Array


def bent(share: Array, slope: Array, position: Array, speed: Array, fall: Array) -> Bend:
    """A rise that goes on beyond a compute, or falls.

    Args:
        share: The rise without a bend.
        slope: e.
        position: log C − w; minus infinity before training.
        speed: d, above 0.
        fall: f, above 0.
    """
    scaled = np.maximum(position / TURN, -700.0)
    since, turned = TURN * np.logaddexp(0.0, scaled), 1 / (1 + np.exp(-scaled))
    # Where all is lost a little more is no number.
    grown = np.expm1(np.minimum(speed * since, LARGEST))
    worn = grown / speed
    exponent = np.maximum(np.minimum(slope, 0.0) * worn / fall, -LARGEST)
    left = np.exp(exponent)
    falls = slope < 0
    rest = 1.0 - fall + fall * left
    lost = np.where(falls, slope, 0.0) * share * left
    return Bend(
        value=np.where(falls, share * rest, share + slope * since),
        by_share=np.where(falls, rest, 1.0),
        by_slope=np.where(falls, share * left * worn, since),
        by_position=np.where(falls, lost * (grown + 1.0), slope) * turned,
        by_speed=lost * ((grown + 1.0) * since - worn) / speed,
        by_fall=np.where(falls, share * (left * (1.0 - exponent) - 1.0), 0.0),
    )


LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


class Rise(NamedTuple):
    """The share made, and its derivatives by z = s·log(C/C_half) and by q; shapes broadcast."""

    share: Array
    by_position: Array
    by_tail: Array


def rise(position: Array, tail: Array) -> Rise:
    """The share of the gain made at z = s·log(C/C_half), one family of curves for all forms.

        rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

    (Burr's twelfth distribution; half of the gain is made at C_half whatever q and s are.) ``q = 1`` is ``hill`` with
    B = s, ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to be
    integrated over, not a choice to be made.

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
