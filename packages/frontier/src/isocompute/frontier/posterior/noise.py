"""The noise of a run's evaluations: single ones that are bad, errors beyond sampling, and bins of a dense log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression
from scipy.stats import norm

from ..data.curves import Array, Mask
from .runs import Run

SPIKE = 5.0
"""Standard deviations from both neighbours beyond which an evaluation is a spike: of 1,000 evaluations with normal
noise none lies there, and noise is known to about a tenth."""
OUTSIDE = 0.5
"""A spike lies outside the range of its neighbours by more than this share of that range: in a steep rise even a good
evaluation is far from the line between them."""
LOST, AGREEING = 0.5, 3.0
"""The last evaluation is a spike that lost this share of the gain, and so many times what was lost just before."""
OWN_SCATTER = 8
"""Evaluations from which a run's scatter says how large its noise is."""


def spikes(run: Run, factor: float) -> Mask:
    """Single evaluations, or two in a row, that lie far outside the range of their neighbours.

    The worst is taken out first and the others are judged again without it: a good evaluation between two bad ones is
    as far from its neighbours as they are. Low ones go first, since a broken evaluation is nearly always too low. The
    last evaluation is one where it alone lost half of the gain: a second one would be needed to see a collapse.
    """
    if len(run.reward) >= OWN_SCATTER:
        # A spike spoils three differences, so that those of a run with several are judged by the smaller ones.
        factor = max(factor, excess([run], 0.25))
    kept = np.arange(len(run.reward))
    while True:
        left = run.without(np.setdiff1d(np.arange(len(run.reward)), kept).tolist())
        for below, length in ((True, 1), (True, 2), (False, 1), (False, 2)):
            worst = _worst(left, factor, length, below)
            if len(worst):
                kept = np.delete(kept, worst)
                break
        else:
            kept = kept[: len(kept) - _falls_at_end(left, factor)]
            return np.isin(np.arange(len(run.reward)), kept, invert=True)


def _worst(run: Run, factor: float, length: int, below: bool) -> NDArray[np.int64]:
    """Indices of the stretch farthest below or above its neighbours; none where no stretch is far."""
    usual = expected_error(run)
    off, spread = off_neighbours(position(run.compute), run.reward, usual, length)
    inner = np.arange(len(off))[:, None] + 1 + np.arange(length)
    for j in range(length):
        # The error is that of what the evaluation should have been: a share of 0 seems to have almost none.
        rate = run.reward.copy()
        rate[inner[:, j]] -= off[:, j]
        spread[:, j] = np.maximum(spread[:, j], run.error_at(rate)[inner[:, j]])
    own, ends = run.reward[inner], run.reward[np.stack([inner[:, 0] - 1, inner[:, -1] + 1], axis=1)]
    low, high = ends.min(axis=1, keepdims=True), ends.max(axis=1, keepdims=True)
    outside = low - own if below else own - high
    far = (outside > OUTSIDE * (high - low)) & (outside > 0) & (np.abs(off) > SPIKE * factor * spread)
    size = np.where(far.all(axis=1), np.abs(off / spread).min(axis=1), 0.0)
    return inner[int(np.argmax(size))] if size.any() else inner[:0].ravel()


def _falls_at_end(run: Run, factor: float) -> bool:
    """Return whether the last evaluation alone lost half of what the run had gained."""
    if len(run.reward) < 4:
        return False
    first, before, level, last = (float(run.reward[i]) for i in (0, -3, -2, -1))
    usual = (before + level) / 2
    # The error of what it should have been, and of the two before it.
    error = float(run.error_at(np.full(len(run.reward), usual))[-1]) * float(np.sqrt(1.5))
    drop = usual - last
    return drop > max(SPIKE * factor * error, LOST * (usual - min(first, last)), AGREEING * (before - level))


def excess(runs: Sequence[Run], level: float = 0.5) -> float:
    """Noise over the errors stated, from how evaluations differ from their neighbours; robust to a few bad runs.

    Runs of few evaluations say nothing of it: between far neighbours the curve itself bends.

    Args:
        level: Quantile of the differences that it is taken from.
    """
    units = []
    for run in runs:
        if len(run.reward) < OWN_SCATTER:
            continue
        off, spread = off_neighbours(position(run.compute), run.reward, expected_error(run))
        units.append(np.abs(off[:, 0]) / spread[:, 0])
    whole = np.concatenate(units) if units else np.zeros(0)
    usual = float(norm.ppf((1 + level) / 2))
    factor = float(np.quantile(whole, level)) / usual if len(whole) else 1.0
    return max(factor, 1.0 if all(run.error_is_known for run in runs) else 0.1)


def off_neighbours(at: Array, reward: Array, error: Array, length: int = 1) -> tuple[Array, Array]:
    """Distances of stretches of evaluations from the line between those before and after.

    Args:
        at: Position of each evaluation.

    Returns:
        The differences and their standard deviations, both ``(stretches, length)``.
    """
    count = len(reward) - length - 1
    if count < 1:
        return np.zeros((0, length)), np.zeros((0, length))
    inner = np.arange(count)[:, None] + 1 + np.arange(length)
    before, after = np.arange(count)[:, None], np.arange(count)[:, None] + length + 1
    share = (at[inner] - at[before]) / np.maximum(at[after] - at[before], 1e-12)
    off = reward[inner] - reward[before] * (1 - share) - reward[after] * share
    spread = np.sqrt(error[inner] ** 2 + ((1 - share) * error[before]) ** 2 + (share * error[after]) ** 2)
    return off, spread


def expected_error(run: Run) -> Array:
    """Standard errors at the reward that an evaluation and its neighbours have together."""
    return np.array(run.error_at(local_median(run.reward)))


def local_median(reward: Array) -> Array:
    """The median of each value and its neighbours, of the three nearest at the ends."""
    if len(reward) < 3:
        return reward
    inner = np.median(np.lib.stride_tricks.sliding_window_view(reward, 3), axis=1)
    return np.concatenate([inner[:1], inner, inner[-1:]])


def position(compute: Array) -> Array:
    """Positions of evaluations in the logarithm of compute, finite for the start.

    Args:
        compute: Rising, shape ``(evaluations,)``.
    """
    positive = compute[compute > 0]
    return np.log1p(compute / (positive[0] if len(positive) else 1.0))


POINTS = 50
"""Most evaluations of a run that are fitted one by one: a curve has four numbers and bends once."""
REACH = 3
"""Bins on either side that a bin is compared with."""


def binned(run: Run, points: int = POINTS) -> Run:
    """The run in bins that are even in the logarithm of compute; evaluations at compute 0 are one point of their own.

    Thousands of evaluations within one doubling of compute share the slow wander of the run, so the mean of a bin is
    not as sure as that of as many independent ones: how sure it is shows in how bins differ from their neighbours.

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
        run,
        compute=compute,
        reward=reward,
        error=np.sqrt(variance),
        trials=None if run.trials is None else np.maximum(rate * (1 - rate) / variance, 1.0),
    )


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
        between(np.array(off), np.array(own), np.array(scale)), between(reward - rising, variance, np.ones(len(reward)))
    )


def between(off: Array, variance: Array, scale: Array) -> float:
    """The b ≥ 0 for which off²/(variance + b·scale) is 1 on average (Paule and Mandel, 1982)."""

    def left(b: float) -> float:
        return float(np.mean(off**2 / (variance + b * scale))) - 1.0

    most = float(np.max(off**2 / scale))
    if left(0.0) <= 0:
        return 0.0
    return float(brentq(left, 0.0, most))
