"""95 % intervals."""

from __future__ import annotations

import numpy as np
from scipy import stats

from ..data.curves import Array

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def ends(values: Array) -> tuple[Array, Array]:
    """Lower and upper ends of the central 95 % of draws along the first axis."""
    low, high = np.quantile(values, TAILS, axis=0)
    return low, high


def t_quantile(degrees: float) -> float:
    """Half width of a two-sided 95 % t interval, in standard errors, at the given degrees of freedom."""
    return float(stats.t.ppf(TAILS[1], degrees))
