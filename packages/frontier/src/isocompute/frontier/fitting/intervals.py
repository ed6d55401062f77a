"""95 % intervals of what the refits give."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import stats

from ..data.curves import Array

LEVEL = 0.95
UPPER = (1 + LEVEL) / 2
"""The upper quantile of a two-sided interval, 0.975."""
TAILS = ((1 - LEVEL) / 2, UPPER)
# (1 - 0.95) / 2 is 0.025000000000000022 in binary. Results were published with either lower tail, and the two give
# quantiles that differ in their last digits, so that merging them would change the bytes of fits.json and of figures.
BAND_TAILS = (0.025, UPPER)


def interval(values: Array) -> tuple[float, float]:
    """The central 95 % of the refits of one quantity, shape ``(refits,)``."""
    low, high = np.quantile(values, TAILS)
    return float(low), float(high)


def ends(values: Array, *, method: Literal["linear", "inverted_cdf"] = "linear") -> tuple[Array, Array]:
    """The central 95 % of the refits, as ``interval`` but of several quantities.

    Args:
        values: Shape ``(refits, ...)``.

    Returns:
        Lower and upper ends, each of the shape that is left.
    """
    low, high = np.quantile(values, TAILS, axis=0, method=method)
    return low, high


def band(values: Array) -> tuple[Array, Array]:
    """The central 95 % of the refits of several quantities, each by itself; see ``BAND_TAILS``.

    Args:
        values: Shape ``(refits, quantities)``.

    Returns:
        Lower and upper ends, each of shape ``(quantities,)``.
    """
    low, high = np.quantile(values, BAND_TAILS, axis=0)
    return low, high


def t_quantile(degrees: float) -> float:
    """Half width of a two-sided 95 % t interval, in standard errors, at some degrees of freedom."""
    return float(stats.t.ppf(UPPER, degrees))
