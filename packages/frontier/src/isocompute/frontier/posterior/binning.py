"""Dense logs as at most 50 points, which say no more than the log does.

Thousands of evaluations within one doubling of compute share the slow wander of the run, so the mean of a bin is not as
sure as that of as many independent ones. How sure it is shows in how bins differ from their neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression

from ..data.curves import Array
from .evaluations import Run
from .scatter import local_median

POINTS = 50
"""Most evaluations of a run that are fitted one by one: a curve has four numbers and bends once."""
REACH = 3
"""Bins on either side that a bin is compared with."""


def binned(run: Run, points: int = POINTS) -> Run:
    """The run in bins that are even in the logarithm of compute; evaluations at compute 0 are one point of their own.

    Args:
        points: Most points of the result; a run that has no more is returned as it is.
    """
    if len(run.compute) <= points:
        return run
    started = run.compute > 0
    positive = run.compute[started]
    edges = np.geomspace(positive[0], positive[-1], points)[1:-1]
    own = np.where(started, 1 + np.searchsorted(edges, run.compute, side="right"), 0)
    _, own, members = np.unique(own, return_inverse=True, return_counts=True)
    compute, reward = (np.bincount(own, values) / members for values in (run.compute, run.reward))
    # Before bins are compared, their errors are those of independent evaluations.
    sampled = np.sqrt(np.bincount(own, run.error_at(local_median(run.reward)) ** 2)) / members
    variance = sampled**2
    later = compute > 0
    if not run.error_is_known:
        variance = _within(run, own, members)
    variance[later] += wander(np.log(compute[later]), reward[later], variance[later])
    rate = np.clip(reward, 0.5 / members, 1 - 0.5 / members)
    return replace(
        run, compute=compute, reward=reward, error=np.sqrt(variance),
        trials=None if run.trials is None else np.maximum(rate * (1 - rate) / variance, 1.0),
    )  # fmt: skip


def _within(run: Run, own: NDArray[np.int64], members: NDArray[np.int64]) -> Array:
    """Variance of the mean of each bin if evaluations were independent, from how they scatter within all bins."""
    steps = np.diff(run.reward)[np.diff(own) == 0]
    # The difference of neighbours has twice their variance, and none of the trend.
    variance = (np.median(np.abs(steps)) / 0.6745) ** 2 / 2 if len(steps) else float(run.error[0]) ** 2
    return np.asarray(np.maximum(variance, 1e-8) / members)


def wander(at: Array, reward: Array, variance: Array) -> float:
    """Variance by which bins scatter beyond that of their independent evaluations.

    It is the larger of two: about a parabola through the neighbours, for what changes from bin to bin, and about the
    rising curve that fits best, for what is slower: a run that falls and rises again wanders.

    Args:
        at: Position of each bin, rising.
        variance: Of each bin's mean, if its evaluations were independent.
    """
    if len(reward) < 2 * REACH + 2:
        return 0.0
    off, own, scale = [], [], []
    for i in range(len(reward)):
        near = np.arange(max(0, i - REACH), min(len(reward), i + REACH + 1))
        near = near[near != i]
        # The value of the parabola at the bin itself, as weights of its neighbours.
        weights = np.linalg.pinv(np.vander(at[near] - at[i], 3))[-1]
        off.append(reward[i] - weights @ reward[near])
        own.append(variance[i] + (weights**2) @ variance[near])
        scale.append(1 + (weights**2).sum())
    rising = isotonic_regression(reward, weights=1 / (variance + np.median(variance))).x
    return max(
        between(np.array(off), np.array(own), np.array(scale)),
        between(reward - rising, variance, np.ones(len(reward))),
    )


def between(off: Array, variance: Array, scale: Array) -> float:
    """The b ≥ 0 for which off²/(variance + b·scale) is 1 on average (Paule and Mandel 1982)."""

    def left(b: float) -> float:
        return float(np.mean(off**2 / (variance + b * scale))) - 1.0

    most = float(np.max(off**2 / scale))
    if left(0.0) <= 0:
        return 0.0
    return float(brentq(left, 0.0, most))
