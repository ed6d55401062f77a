"""Turns the rollouts of a step into the responses of each update: advantages and loss weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import torch

from ..batch.responses import Lists, check_rewards, marks
from ..config import LearnerConfig
from .advantages import alone, gae, group_index, listed, ragged, response_advantages, whitened
from .loss import KL_ESTIMATORS, loss_weights


def prepare(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Return the trained responses of a step with their advantages and loss weights.

    Baselines and scales cover all completed responses except those of groups filtered for equal rewards. They include
    responses that only improve the baseline (n_est ≥ n_train; IsoCompute Playbook, Appendix G). ScaleRL's standard
    deviation (arXiv 2510.13786, section 4) is ``scale: batch`` with the filter on.

    Args:
        rollouts: A ``rollouts`` table with the columns of ``with_cohorts``. If ``config.measures_first``, its completed
            responses must be measured. With a KL in the reward the table then has the list columns ``old_logprobs`` and
            ``reference_logprobs``, and with a critic ``values``, with one number per sampled token.

    Returns:
        The rows of the cohort ``trained``, with new columns: ``advantage`` (float64) or, with a critic, the list
        columns ``advantages`` and ``returns`` (float32, one number per sampled token); ``loss_weight`` (float64; see
        ``loss_weights``) for a single update from all rows; and with a KL in the reward ``kl`` (float64, nats per
        response).
    """
    add_advantages = from_values if config.objective.resolved.baseline == "gae" else from_rewards
    return with_loss_weights(add_advantages(rollouts, config), config)


def with_loss_weights(batch: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Add the column ``loss_weight``: the loss weight of each response's tokens in one update from this table."""
    chosen = config.objective.resolved
    counts, groups = sampled_counts(batch), group_index(batch)
    weights = loss_weights(counts, groups, aggregation=str(chosen.aggregation), constant_length=chosen.constant_length)
    return batch.with_columns(pl.Series("loss_weight", weights, dtype=pl.Float64))


def sampled_counts(rollouts: pl.DataFrame) -> np.ndarray:
    """Number of sampled response tokens of each row, shape ``(rows,)``; without a column ``sampled``, all tokens."""
    return rollouts.select(marks(rollouts).list.sum().fill_null(0).cast(pl.Int64)).to_series().to_numpy()


def estimated(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """The responses behind the advantages, which include all trained ones.

    A critic judges each response alone. Other baselines are means over all completed responses, except those of groups
    filtered for equal rewards and, if the baseline is the group's, those alone in their group.
    """
    if config.objective.resolved.baseline == "gae":
        return rollouts.filter(pl.col("cohort") == "trained")
    used = rollouts.filter(pl.col("cohort") != "failed")
    if config.batch.filter_zero_variance:
        used = used.filter(~pl.col("zero_variance"))
    return used.filter(~alone(group_index(used))) if config.objective.resolved.baseline == "group" else used


def from_rewards(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Add ``advantage``: one number per response, relative to the rewards of other responses."""
    used, chosen = estimated(rollouts, config), config.objective.resolved
    rewards = _rewards(used)
    if config.kl.in_reward:
        penalty = _token_kl(used, config).sums()
        used = used.with_columns(pl.Series("kl", penalty, dtype=pl.Float64))
        rewards = rewards - config.kl.coefficient * penalty
    advantages = response_advantages(
        rewards, group_index(used), baseline=str(chosen.baseline), scale=str(chosen.scale), std=chosen.std
    )
    used = used.with_columns(pl.Series("advantage", advantages, dtype=pl.Float64))
    return used.filter(pl.col("cohort") == "trained")


def from_values(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Add ``advantages`` and ``returns``: one number per sampled token, relative to a critic's values.

    A response's reward goes to its last sampled token. With ``scale: batch`` all advantages are whitened, as in PPO.
    """
    trained = estimated(rollouts, config)
    counts = sampled_counts(trained)
    rewards = Lists.of(np.zeros(counts.sum()), counts)
    if config.kl.in_reward:
        penalty = _token_kl(trained, config)
        rewards = Lists.of(-config.kl.coefficient * penalty.values, counts)
        trained = trained.with_columns(pl.Series("kl", penalty.sums(), dtype=pl.Float64))
    rewards.values[rewards.last] += _rewards(trained)[counts > 0]
    critic = config.critic
    values = ragged(trained, "values", counts)
    advantages, returns = gae(rewards, values, discount=critic.discount, gae_lambda=critic.gae_lambda)
    if config.objective.resolved.scale == "batch":
        advantages = Lists.of(whitened(advantages.values, std=config.objective.std), counts)
    return trained.with_columns(listed("advantages", advantages), listed("returns", returns))


def _rewards(rollouts: pl.DataFrame) -> np.ndarray:
    check_rewards(rollouts)
    rewards: np.ndarray = rollouts["reward"].to_numpy().astype(np.float64)
    return rewards


def _token_kl(rollouts: pl.DataFrame, config: LearnerConfig) -> Lists:
    """Estimate KL(policy ‖ base) for each sampled token, with the policy before the update."""
    counts = sampled_counts(rollouts)
    policy, reference = (ragged(rollouts, name, counts) for name in ("old_logprobs", "reference_logprobs"))
    estimate = KL_ESTIMATORS[config.kl.estimator](torch.from_numpy(policy.values), torch.from_numpy(reference.values))
    return Lists.of(estimate.numpy(), counts)


def minibatches(batch: pl.DataFrame, config: LearnerConfig, seed: int, step: int) -> Iterator[pl.DataFrame]:
    """Yield the responses of each update in turn.

    With one update per batch, that is the unchanged batch. Otherwise each pass over the batch (``epochs``) splits its
    groups at random into ``updates_per_batch`` parts with numbers of groups as equal as possible. Parts without groups
    are left out, and so are parts without a sampled token if other parts have one. Rows keep their order, and each part
    has the ``loss_weight`` of an update from that part alone.

    Args:
        step: The split depends only on the step, the seed and the pass, so a resumed run repeats it.
    """
    if not config.objective.off_policy:
        yield batch
        return
    groups = group_index(batch)
    count = int(groups.max(initial=-1)) + 1
    parts = min(config.objective.updates_per_batch, count)
    for epoch in range(config.objective.epochs):
        order = np.random.default_rng([seed, step, epoch]).permutation(count)
        for chosen in np.array_split(order, parts) if parts else ():
            part = batch.filter(np.isin(groups, chosen))
            if sampled_counts(part).any() or not sampled_counts(batch).any():
                yield with_loss_weights(part, config)
