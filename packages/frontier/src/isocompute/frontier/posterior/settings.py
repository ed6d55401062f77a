"""What settings are described by: their place in log n, log B_p and log rate, and how alike two of them are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .runs import Cell

LENGTHS = (2.5, 2.5, 2.0)
"""Octaves of n, B_p and rate over which the Gaussian process forgets: correlation exp(−½) at this distance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What cells are described by: columns of a line or parabola, and correlations of a Gaussian process.

    Attributes:
        columns: Shape ``(cells, columns)``; none that is constant over the cells.
        centre: Mean and deviation of each column's prior, shape ``(2, columns)``.
        root: Lower root of the correlations of the cells, shape ``(cells, cells)``.
    """

    columns: Array
    centre: Array
    root: Array


def coordinates(cells: tuple[Cell, ...]) -> Array:
    """log2 n, log2 B_p and log2 of the rate over √B (0 where no rate is known), shape ``(cells, 3)``."""
    rows = []
    for c in cells:
        n, batch = np.log2(c.rollouts_per_problem), np.log2(c.problems_per_batch)
        rate = 0.0 if c.learning_rate is None else np.log2(c.learning_rate) - (n + batch) / 2
        rows.append((n, batch, rate))
    return np.array(rows)


def features(at: Array, centre: Array, *, rates: bool) -> tuple[Array, Array]:
    """Columns of the line and the parabola, and the mean and deviation of the prior of their coefficients.

    Args:
        at: From ``coordinates``, shape ``(cells, 3)``.
        centre: What the coordinates are taken from, shape ``(3,)``.
        rates: Whether the rate is an axis of its own.

    Returns:
        Shapes ``(cells, columns)`` and ``(2, columns)``.
    """
    n, batch, rate = (at - centre).T
    columns, prior = [n, batch], [(0.0, 0.25), (0.0, 0.25)]
    if rates:
        columns += [rate, rate**2, rate * n]
        # The reward falls on both sides of the best rate.
        prior += [(0.0, 0.7), (-0.3, 0.3), (0.0, 0.2)]
    return np.stack(columns, axis=1), np.array(prior).T


def correlations(first: Array, second: Array) -> Array:
    """Of the Gaussian process between settings, shape ``(first, second)``."""
    distance = (first[:, None] - second[None]) / np.array(LENGTHS)
    return np.asarray(np.exp(-0.5 * (distance**2).sum(axis=2)))
