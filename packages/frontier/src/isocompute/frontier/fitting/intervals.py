"""95 % intervals."""

from __future__ import annotations

import numpy as np
from scipy import stats

from ..data.curves import Array

LEVEL = 0.95
UPPER = (1 + LEVEL) / 2
"""The upper quantile of a two-sided interval, 0.975."""
TAILS = ((1 - LEVEL) / 2, UPPER)


def ends(values: Array) -> tuple[Array, Array]:
    """The central 95 % of the draws of one or several quantities.

    Args:
        values: Shape ``(draws, ...)``.

    Returns:
        Lower and upper ends, each of the shape that is left.
    """
    low, high = np.quantile(values, TAILS, axis=0)
    return low, high


def t_quantile(degrees: float) -> float:
    """Half width of a two-sided 95 % t interval, in standard errors, at some degrees of freedom."""
    return float(stats.t.ppf(UPPER, degrees))
