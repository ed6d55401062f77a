"""Group-normalised advantages (GRPO), and what becomes of each rollout."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..config import ADVANTAGE_STDS
from ..errors import LearnerError

EPSILON = 1e-6


def group_advantages(rewards: np.ndarray, groups: np.ndarray, *, std: str = "sample") -> np.ndarray:
    """Normalise each reward by the mean and standard deviation of its group.

    A = (r − mean) / (std + ε); a group of equal rewards gets exactly 0 throughout. With rewards ``[1, 0, 0, 0]``
    in one group: ``[1.5, -0.5, -0.5, -0.5]``, or ``[1.73, -0.58, -0.58, -0.58]`` with the population's.

    Args:
        rewards: Rewards, shape ``(rollouts,)``.
        groups: Group of each reward as any integers, shape ``(rollouts,)``.
        std: The ``sample`` standard deviation, whose squares are divided by n − 1 (``torch.std``), or the
            ``population`` one, divided by n.

    Returns:
        Advantages, float64, shape ``(rollouts,)``.

    Raises:
        LearnerError: A reward is not finite, a group has a single rollout, which a group baseline can learn
            nothing from, or there is no such standard deviation.
    """
    if std not in ADVANTAGE_STDS:
        raise LearnerError(f"advantage_std is {std!r}; it must be one of {', '.join(ADVANTAGE_STDS)}")
    if not np.isfinite(rewards).all():
        raise LearnerError(f"the reward of rollout {np.isfinite(rewards).argmin()} of the batch is not a finite number")
    _, index = np.unique(groups, return_inverse=True)
    counts = np.bincount(index)
    if counts.min(initial=2) < 2:
        raise LearnerError("a group has one rollout: a group baseline needs rollouts_per_problem of 2 or more")
    mean = np.bincount(index, weights=rewards) / counts
    centred = rewards - mean[index]
    deviation = np.sqrt(np.bincount(index, weights=centred**2) / (counts - 1 if std == "sample" else counts))
    advantages: np.ndarray = centred / (deviation[index] + EPSILON)
    # The mean of equal rewards such as 0.1 is off by a rounding error.
    advantages[zero_variance(rewards, groups)] = 0.0
    return advantages


def zero_variance(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether each reward's group has equal rewards throughout (TRL counts such groups in ``frac_reward_zero_std``).

    Args:
        rewards: Rewards, shape ``(rollouts,)``.
        groups: Group of each reward as any integers, shape ``(rollouts,)``.

    Returns:
        Booleans, shape ``(rollouts,)``.
    """
    _, index = np.unique(groups, return_inverse=True)
    low, high = np.full(len(rewards), np.inf), np.full(len(rewards), -np.inf)
    # A reward that is not a number makes its group unequal, without a warning.
    with np.errstate(invalid="ignore"):
        np.minimum.at(low, index, rewards)
        np.maximum.at(high, index, rewards)
    equal: np.ndarray = (low == high)[index]
    return equal


def with_cohorts(rollouts: pl.DataFrame, *, filter_zero_variance: bool) -> pl.DataFrame:
    """Add ``zero_variance`` and ``cohort`` columns to a ``rollouts`` table: what is paid for, and as what.

    Cohorts are a partition: ``failed`` responses were aborted; groups of equal rewards are ``filtered``
    when asked for; all else is ``trained``. Any rewards and any groups have one, also those of which no advantage
    can be computed, so that what was generated can be charged first.

    Args:
        rollouts: A ``rollouts`` table; ``problem_id``, ``reward`` and ``finish_reason`` are read.
        filter_zero_variance: Whether groups of equal rewards are left out of the update.

    Returns:
        The table with both columns.
    """
    completed = (rollouts["finish_reason"] != "aborted").to_numpy()
    # Not the same as an advantage of 0, which the middle one of the rewards 0, 0.5 and 1 has.
    equal = np.zeros(len(rollouts), dtype=bool)
    equal[completed] = zero_variance(*_completed(rollouts, completed))
    cohort = np.where(completed, "trained", "failed").astype("<U8")
    if filter_zero_variance:
        cohort[equal] = "filtered"
    return rollouts.with_columns(
        pl.Series("zero_variance", equal, dtype=pl.Boolean),
        pl.Series("cohort", cohort, dtype=pl.String),
    )


def with_advantages(
    rollouts: pl.DataFrame, *, filter_zero_variance: bool, advantage_std: str = "sample"
) -> pl.DataFrame:
    """Add an ``advantage`` column to a ``rollouts`` table, and those of ``with_cohorts``.

    Failed responses have an advantage of 0 and are left out of their group's mean and standard deviation.

    Args:
        rollouts: A ``rollouts`` table.
        filter_zero_variance: See ``with_cohorts``.
        advantage_std: See ``group_advantages``.

    Returns:
        The table with the three columns.

    Raises:
        LearnerError: A group has a single completed rollout, a completed rollout no finite reward, or there is
            no such standard deviation.
    """
    completed = (rollouts["finish_reason"] != "aborted").to_numpy()
    advantages = np.zeros(len(rollouts))
    advantages[completed] = group_advantages(*_completed(rollouts, completed), std=advantage_std)
    batch = with_cohorts(rollouts, filter_zero_variance=filter_zero_variance)
    return batch.with_columns(pl.Series("advantage", advantages, dtype=pl.Float64))


def _completed(rollouts: pl.DataFrame, completed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and groups of the completed responses."""
    groups = rollouts["problem_id"].rank("dense").to_numpy()
    rewards = rollouts["reward"].to_numpy().astype(np.float64)
    return rewards[completed], groups[completed]
