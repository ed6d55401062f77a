"""Which curves the data tell apart, and where: bands of all differences that hold together.

A band that holds at one compute for one pair is left somewhere by chance when there are many pairs. The bands here hold
for all pairs and all compute at once in 95 % of the refits (the largest standardised difference, as in Tukey's range
test), so that where nothing differs, something is said to differ in at most one sweep of twenty.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .intervals import LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What can be said of two curves.

    Attributes:
        first: Index of one.
        second: Index of the other.
        sign: At each compute of the grid 1 where the second is ahead, −1 where the first is, 0 where neither can be
            said or one has no data.
    """

    first: int
    second: int
    sign: NDArray[np.int64]

    @property
    def told_apart(self) -> bool:
        """Whether one is ahead of the other anywhere."""
        return bool(self.sign.any())


def differences(point: Array, refits: Array, within: Mask) -> list[Difference]:
    """Compare every pair of curves over the compute that both have data at.

    Args:
        point: Fitted rewards, shape ``(curves, points)``.
        refits: Refitted rewards, shape ``(refits, curves, points)``.
        within: Whether each curve's data reach each compute, shape ``(curves, points)``.
    """
    pairs = [(a, b, within[a] & within[b]) for a, b in combinations(range(len(point)), 2)]
    pairs = [pair for pair in pairs if pair[2].any()]
    widths, largest = [], np.zeros(len(refits))
    for a, b, both in pairs:
        apart = np.abs(refits[:, b][:, both] - refits[:, a][:, both] - (point[b][both] - point[a][both]))
        widths.append(np.maximum(np.quantile(apart, LEVEL, axis=0), 1e-9))
        largest = np.maximum(largest, (apart / widths[-1]).max(axis=1))
    factor = float(np.quantile(largest, LEVEL)) if pairs else 1.0
    found = []
    for (a, b, both), width in zip(pairs, widths, strict=True):
        sign = np.zeros(point.shape[1], dtype=np.int64)
        lead = point[b][both] - point[a][both]
        sign[both] = np.where(np.abs(lead) > factor * width, np.sign(lead), 0.0)
        found.append(Difference(first=a, second=b, sign=sign))
    return found
