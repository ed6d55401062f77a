"""95 % intervals of what the refits give."""

from __future__ import annotations

import numpy as np

from ..data.curves import Array

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def interval(values: Array) -> tuple[float, float]:
    """The central 95 % of the refits of one quantity, shape ``(refits,)``."""
    low, high = np.quantile(values, TAILS)
    return float(low), float(high)


def band(values: Array) -> tuple[Array, Array]:
    """The central 95 % of the refits of several quantities, each by itself.

    Args:
        values: Shape ``(refits, quantities)``.

    Returns:
        Lower and upper ends, each of shape ``(quantities,)``.
    """
    low, high = np.quantile(values, [0.025, 0.975], axis=0)
    return low, high
