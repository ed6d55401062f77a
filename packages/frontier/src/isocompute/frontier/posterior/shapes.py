"""Shapes of curves against the logarithm of compute: the rise, the step before it, the bend after it.

Their derivatives are in ``density.py``.
"""

from __future__ import annotations

import numpy as np

from ..data.curves import Array

TURN = 0.3
"""h: e-folds of compute over which a curve turns."""
LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


def step_share(position: Array) -> Array:
    """1 − 2^(−C/C_j), the share of the first step that is made; 0 before training.

    Args:
        position: log C − log C_j.
    """
    return np.asarray(1.0 - np.exp(-LOG_2 * np.exp(np.minimum(position, LARGEST))))


def bent(share: Array, slope: Array, position: Array, speed: Array, fall: Array) -> Array:
    """A rise that goes on beyond a compute, or falls.

    Args:
        share: The rise without a bend.
        slope: e.
        position: log C − w; minus infinity before training.
        speed: d, above 0.
        fall: f, above 0.
    """
    scaled = np.maximum(position / TURN, -700.0)
    since = TURN * (np.maximum(scaled, 0.0) + np.log1p(np.exp(-np.abs(scaled))))
    # Where all is lost a little more is no number.
    worn = np.expm1(np.minimum(speed * since, LARGEST)) / speed
    left = np.exp(np.maximum(np.minimum(slope, 0.0) * worn / fall, -LARGEST))
    return np.asarray(np.where(slope < 0, share * (1.0 - fall + fall * left), share + slope * since))


def rise(position: Array, tail: Array) -> Array:
    """The share of the gain made at z = s·log(C/C_half), one family of curves for all forms.

        rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

    (Burr's twelfth distribution; half of the gain is made at C_half whatever q and s are.) ``q = 1`` is ``hill`` with
    B = s, ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to be
    integrated over, not a choice to be made.

    Args:
        position: z; minus infinity before training.
        tail: q, above 0.
    """
    grown = np.expm1(tail * LOG_2) * np.exp(np.minimum(position, LARGEST))
    return np.asarray(1.0 - np.exp(-np.log1p(grown) / tail))
