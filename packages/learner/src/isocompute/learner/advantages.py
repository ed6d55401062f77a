"""Group-normalised advantages (GRPO), and what becomes of each rollout."""

from __future__ import annotations

import numpy as np
import polars as pl

from .errors import LearnerError

EPSILON = 1e-6


def group_advantages(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Normalise each reward by the mean and standard deviation of its group.

    A = (r − mean) / (std + ε), with the population standard deviation; a group of equal rewards gets exactly
    0 throughout. With rewards ``[1, 0, 0, 0]`` in one group: ``[1.73, -0.58, -0.58, -0.58]``.

    Args:
        rewards: Rewards, shape ``(rollouts,)``.
        groups: Group of each reward as any integers, shape ``(rollouts,)``.

    Returns:
        Advantages, float64, shape ``(rollouts,)``.

    Raises:
        LearnerError: A reward is not finite, or a group has a single rollout, which a group baseline can
            learn nothing from.
    """
    if not np.isfinite(rewards).all():
        raise LearnerError(f"the reward of rollout {np.isfinite(rewards).argmin()} of the batch is not a finite number")
    _, index = np.unique(groups, return_inverse=True)
    size = np.bincount(index)
    if size.min(initial=2) < 2:
        raise LearnerError("a group has one rollout: a group baseline needs rollouts_per_problem of 2 or more")
    mean = np.bincount(index, weights=rewards) / size
    centred = rewards - mean[index]
    deviation = np.sqrt(np.bincount(index, weights=centred**2) / size)
    advantages: np.ndarray = centred / (deviation[index] + EPSILON)
    # The mean of equal rewards such as 0.1 is off by a rounding error.
    advantages[zero_variance(rewards, groups)] = 0.0
    return advantages


def zero_variance(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether each reward's group has equal rewards throughout; bool, shape ``(rollouts,)``."""
    _, index = np.unique(groups, return_inverse=True)
    low, high = np.full(len(rewards), np.inf), np.full(len(rewards), -np.inf)
    np.minimum.at(low, index, rewards)
    np.maximum.at(high, index, rewards)
    equal: np.ndarray = (low == high)[index]
    return equal


def with_advantages(rollouts: pl.DataFrame, *, filter_zero_variance: bool) -> pl.DataFrame:
    """Add ``advantage``, ``zero_variance`` and ``cohort`` columns to a ``rollouts`` table.

    Cohorts are a partition: ``failed`` responses were aborted; groups of equal rewards are ``filtered``
    when asked for; all else is ``trained``.

    Raises:
        LearnerError: A group has a single completed rollout, or a completed rollout no finite reward.
    """
    completed = (rollouts["finish_reason"] != "aborted").to_numpy()
    groups = rollouts["problem_id"].rank("dense").to_numpy()[completed]
    rewards = rollouts["reward"].to_numpy().astype(np.float64)[completed]
    advantages = np.zeros(len(rollouts))
    advantages[completed] = group_advantages(rewards, groups)
    # Not the same as an advantage of 0, which the middle one of the rewards 0, 0.5 and 1 has.
    equal = np.zeros(len(rollouts), dtype=bool)
    equal[completed] = zero_variance(rewards, groups)
    cohort = np.where(completed, "trained", "failed").astype("<U8")
    if filter_zero_variance:
        cohort[equal] = "filtered"
    return rollouts.with_columns(
        pl.Series("advantage", advantages, dtype=pl.Float64),
        pl.Series("zero_variance", equal, dtype=pl.Boolean),
        pl.Series("cohort", cohort, dtype=pl.String),
    )
