"""Record-breaking points, and the isotonic companion (IsoCompute Playbook, section 4, Figures 5 and 15).

A maximum of noisy evaluations is biased upward, and the more so the more often a run is evaluated; so fits
are of all points by default, and what records would say is reported beside them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import isotonic_regression

from ..errors import FrontierError
from .curves import Array, Curve


def records(compute: Array, reward: Array, *, bin_width: float = 0.005, window: int = 1) -> np.ndarray:
    """Indices of the points that break the record, one per bin of reward.

    Args:
        compute: Compute of each point, in any order.
        bin_width: A record counts when it reaches a bin of this width that no earlier point reached; 0 takes
            every new maximum.
        window: Points of a centred running mean taken before records are sought; 1 leaves them raw.

    Returns:
        Indices in the order of compute.

    Raises:
        FrontierError: The width is negative or the window is not a positive odd number.
    """
    if bin_width < 0 or not np.isfinite(bin_width):
        raise FrontierError(f"the bin width is {bin_width}; it must be 0 or more")
    if window < 1 or window % 2 == 0:
        raise FrontierError(f"the window is {window}; it must be 1, 3, 5, …")
    order = np.lexsort((-reward, compute))
    values = smoothed(reward[order], window)
    levels = np.floor(values / bin_width + 1e-9) if bin_width > 0 else values
    best = np.maximum.accumulate(levels)
    breaks = np.concatenate([[True], best[1:] > best[:-1]]) if len(values) else np.zeros(0, dtype=bool)
    return np.asarray(order[breaks])


def smoothed(values: Array, window: int) -> Array:
    """Centred running mean; shorter at the ends.

    Args:
        values: Values in order, shape ``(points,)``.
        window: Points averaged, a positive odd number; 1 leaves the values as they are.
    """
    if window == 1 or not len(values):
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    half = window // 2
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def of_records(curve: Curve, *, bin_width: float, window: int = 1) -> Curve:
    """The record-breaking points of each run, and those at zero compute.

    With a window they are records of the running mean, and carry it: a smoothed curve has less noise to break
    records with.

    Args:
        bin_width: Width of a record's bin of reward; 0 takes every new maximum.
    """
    rewards = curve.reward.copy()
    kept = [np.flatnonzero(curve.compute == 0)]
    for s in range(curve.seeds):
        own = np.flatnonzero((curve.seed == s) & (curve.compute > 0))
        rewards[own] = smoothed(curve.reward[own], window)
        kept.append(own[records(curve.compute[own], rewards[own], bin_width=bin_width)])
    chosen = np.unique(np.concatenate(kept))
    return replace(
        curve, compute=curve.compute[chosen], reward=rewards[chosen],
        seed=curve.seed[chosen], whole=curve.support,
    )  # fmt: skip


def isotonic(compute: Array, reward: Array, weights: Array | None = None) -> Array:
    """The non-decreasing step curve nearest to the points in weighted squares (pool adjacent violators).

    Args:
        compute: Compute of each point; equal ones get one value.
        weights: Its weight; equal by default.

    Returns:
        Fitted value of each point, in the order given.
    """
    weights = np.ones_like(reward) if weights is None else weights
    distinct, where = np.unique(compute, return_inverse=True)
    if not len(distinct):
        return np.zeros(0)
    mass = np.bincount(where, weights)
    means = np.bincount(where, weights * reward) / mass
    return np.asarray(isotonic_regression(means, weights=mass).x[where])
