"""Advantages of responses and of tokens, and the cohort of each response."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from ..batch.responses import Lists
from ..config import BatchConfig, Scale, Std
from ..errors import LearnerError

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it, as in veRL; TRL adds 1e-4."""


def response_advantages(
    rewards: np.ndarray,
    groups: np.ndarray,
    *,
    baseline: str = "group",
    scale: str = "group",
    std: str = "sample",
    epsilon: float = EPSILON,
) -> np.ndarray:
    """Advantages A = (r − b) / (σ + ε), or r − b without a scale.

    Rewards ``[1, 0, 0, 0]`` in one group give ``[0.75, -0.25, -0.25, -0.25]`` without a scale, and ``[1.5, -0.5, -0.5,
    -0.5]`` with the group's. If all rewards behind a baseline are equal, the advantages are exactly 0. A response that
    is alone in its group, for example because the others were aborted, has an advantage of 0 and does not affect the
    other advantages.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        groups: Group of each reward, any integers, shape ``(responses,)``.
        baseline: b is the mean of the ``group`` (GRPO) or of the whole ``batch`` (REINFORCE++).
        scale: σ is the standard deviation over the ``group`` (GRPO), that of all r − b over the ``batch`` (ScaleRL),
            or there is none (Dr. GRPO).
        std: The ``sample`` standard deviation, which divides by n − 1 (``torch.std``), or the ``population`` one, which
            divides by n.

    Raises:
        LearnerError: A reward is not finite, a name is unknown, the baseline is the group's and every group has a
            single response, or the scale is the group's and the baseline is not.
    """
    choices = (
        ("std", std, get_args(Std)),
        ("baseline", baseline, ("group", "batch")),
        ("scale", scale, get_args(Scale)),
    )
    for name, value, known in choices:
        if value not in known:
            raise LearnerError(f"{name} is {value!r}; for advantages of responses it must be one of {', '.join(known)}")
    if scale == "group" and baseline != "group":
        raise LearnerError(f"scale is 'group' and baseline {baseline!r}; without a group's mean it must be another")
    if not np.isfinite(rewards).all():
        raise LearnerError(f"the reward of rollout {np.isfinite(rewards).argmin()} of the batch is not a finite number")
    index = _dense(groups)
    compared = ~alone(index) if baseline == "group" else np.ones(len(index), dtype=bool)
    if len(index) and not compared.any():
        raise LearnerError(
            "no group has two completed responses, so that no reward can be compared with its group's: "
            "rollouts_per_problem must be 2 or more, and of a group at least two must not be aborted"
        )
    mean = group_mean(rewards, index) if baseline == "group" else rewards.mean() if len(rewards) else 0.0
    centred: np.ndarray = rewards - mean
    # The computed mean of equal rewards such as 0.1 has a rounding error.
    centred[zero_variance(rewards, index if baseline == "group" else np.zeros_like(index))] = 0.0
    if scale == "group":
        own, group = rewards[compared], _dense(index[compared])
        counts, squares = np.bincount(group), np.bincount(group, weights=(own - group_mean(own, group)) ** 2)
        deviations = np.sqrt(squares / (np.maximum(counts - 1, 1) if std == "sample" else counts))
        centred[compared] /= deviations[group] + epsilon
    elif scale == "batch":
        # TRL's ``scale_rewards="batch"`` uses the deviation of the rewards themselves; here the baseline ``batch``
        # gives that.
        deviation = centred[compared].std(ddof=1 if std == "sample" else 0) if compared.sum() > 1 else 0.0
        centred[compared] /= deviation + epsilon
    return centred


def alone(groups: np.ndarray) -> np.ndarray:
    """Return whether each reward is the only one in its group (any integer), so that it has nothing to compare with."""
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    found: np.ndarray = (counts < 2)[index]
    return found


def _dense(groups: np.ndarray) -> np.ndarray:
    _, index = np.unique(groups, return_inverse=True)
    return index


def group_advantages(rewards: np.ndarray, groups: np.ndarray, *, std: str = "sample") -> np.ndarray:
    """Advantages of GRPO: each reward minus its group's mean, divided by the group's standard deviation."""
    return response_advantages(rewards, groups, std=std)


def group_mean(rewards: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The mean reward of each reward's group; ``index`` numbers the groups from 0."""
    means: np.ndarray = (np.bincount(index, weights=rewards) / np.bincount(index))[index]
    return means


def zero_variance(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return whether each reward's group has equal rewards (TRL counts such groups in ``frac_reward_zero_std``)."""
    index = _dense(groups)
    low, high = np.full(len(rewards), np.inf), np.full(len(rewards), -np.inf)
    # A reward that is NaN makes its group unequal, without a warning.
    with np.errstate(invalid="ignore"):
        np.minimum.at(low, index, rewards)
        np.maximum.at(high, index, rewards)
    equal: np.ndarray = (low == high)[index]
    return equal


WHITENING_EPSILON = 1e-8
"""Added to the variance of advantages before dividing by its root, as in veRL."""


def gae(rewards: Lists, values: Lists, *, discount: float, gae_lambda: float) -> tuple[Lists, Lists]:
    """Advantages and returns of sampled tokens.

    Â_t = δ_t + γλ·Â_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t (equations 11 and 16). The return, which is the critic's
    target, is Â_t + V_t. A response ends with its last token, even if it was truncated: the value after it is 0. Tokens
    that the policy did not sample are skipped and are not time steps. With λ = 1 and γ = 1 the return of a token is the
    sum of the rewards from it on.

    Args:
        rewards: Reward of each sampled token, in most tasks 0 except for the last one; ``values`` holds V before each
            token.
    """
    # Handles one token of all responses at a time, contiguous in memory; past the end of a response all numbers are 0.
    reward, value = (np.ascontiguousarray(rows.padded().T) for rows in (rewards, values))
    running = following = np.zeros(reward.shape[1])
    for step in reversed(range(len(reward))):
        reward[step] += discount * following - value[step] + discount * gae_lambda * running
        running, following = reward[step], value[step]
    found = Lists.of(reward.T[rewards.mask], rewards.lengths)
    return found, Lists(offsets=found.offsets, values=found.values + values.values)


def whitened(advantages: np.ndarray, *, std: str = "sample") -> np.ndarray:
    """Whiten a batch's token advantages to mean 0 and variance 1: (A − mean) / √(variance + ε); one alone gives 0."""
    if len(advantages) < 2:
        return np.zeros(len(advantages))
    variance = advantages.var(ddof=1 if std == "sample" else 0)
    whole: np.ndarray = (advantages - advantages.mean()) / np.sqrt(variance + WHITENING_EPSILON)
    return whole


def with_cohorts(rollouts: pl.DataFrame, config: BatchConfig, *, baseline: str | None = None) -> pl.DataFrame:
    """Add ``zero_variance`` and ``cohort`` columns to a ``rollouts`` table: each response is charged to one cohort.

    The cohorts are a partition. ``failed``: aborted responses. ``filtered``: responses of groups with equal rewards, if
    these are to be left out; responses beyond the first ``trained_rollouts`` completed ones of a group, by ``sample``;
    and the only completed response of a group if the ``baseline`` is the group's. ``trained``: all others. Every
    response has a cohort, even if no advantage can be computed from its reward, so that it is charged first.
    """
    completed = pl.col("finish_reason").ne_missing("aborted")
    reward = pl.when(completed).then(pl.col("reward").cast(pl.Float64).fill_null(np.nan))
    # This is not the same as an advantage of 0, which the middle one of the rewards 0, 0.5 and 1 has.
    equal = completed & (reward.nan_max() - reward.nan_min() == 0).over("problem_id")
    left_out = equal if config.filter_zero_variance else pl.lit(value=False)
    if config.trained_rollouts is not None:
        place = pl.when(completed).then(pl.col("sample")).rank("ordinal").over("problem_id")
        left_out = left_out | (place > config.trained_rollouts)
    if baseline == "group":
        left_out = left_out | (completed.sum().over("problem_id") == 1)
    cohort = pl.when(~completed).then(pl.lit("failed")).when(left_out).then(pl.lit("filtered"))
    return rollouts.with_columns(zero_variance=equal, cohort=cohort.otherwise(pl.lit("trained")))


def group_index(rollouts: pl.DataFrame) -> np.ndarray:
    """Number each response's group from 0, by problem, shape ``(responses,)``."""
    index: np.ndarray = rollouts["problem_id"].rank("dense").to_numpy().astype(np.int64) - 1
    return index


def ragged(table: pl.DataFrame, name: str, lengths: np.ndarray) -> Lists:
    """Read a list column with one number per sampled token; ``lengths`` gives the number of tokens in each row."""
    if name not in table.columns:
        raise LearnerError(f"the rollouts have no column {name}, which the objective needs: measure them first")
    column = table[name].rechunk()
    found = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    wrong = np.flatnonzero(found != lengths)
    if len(wrong):
        row = int(wrong[0])
        raise LearnerError(
            f"row {row} of the rollouts has {found[row]} numbers in {name} and {lengths[row]} sampled tokens; it must "
            "have one for each"
        )
    values: Any = column.drop_nulls().to_arrow().flatten()
    return Lists.of(values.to_numpy(zero_copy_only=False).astype(np.float64), lengths)


def listed(name: str, rows: Lists) -> pl.Series:
    """Make a float32 list column from rows."""
    values = pa.array(rows.values.astype(np.float32))
    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(rows.offsets), values))
