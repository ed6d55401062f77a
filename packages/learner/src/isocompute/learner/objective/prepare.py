"""From the rollouts of a step to the responses of each update: advantages, and weights in the loss."""

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
    """Return the trained responses of a step with their advantages and weights in the loss.

    Baselines and scales are taken over all completed responses but those of groups that are filtered for their equal
    rewards: also over those that only sharpen the baseline (n_est ≥ n_train; IsoCompute Playbook, Appendix G). With
    ``scale: batch`` and the filter on, so is ScaleRL's standard deviation (arXiv 2510.13786, section 4).

    Args:
        rollouts: A ``rollouts`` table with the columns of ``with_cohorts``. Where ``config.measures_first``, its
            completed responses were measured: with a KL in the reward it has the list columns ``old_logprobs`` and
            ``reference_logprobs``, with a critic ``values``, of one number per sampled token.

    Returns:
        The rows of the cohort ``trained`` with ``advantage`` (float64) or, from a critic, the list columns
        ``advantages`` and ``returns`` (float32, one number per sampled token); with ``loss_weight`` (float64; see
        ``loss_weights``), as of one update from all rows; and with a KL in the reward ``kl`` (float64, nats per
        response).
    """
    add_advantages = from_values if config.objective.resolved.baseline == "gae" else from_rewards
    return with_loss_weights(add_advantages(rollouts, config), config)


def with_loss_weights(batch: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Add the column ``loss_weight``: the weight of each response's tokens in the loss of an update from this table."""
    chosen = config.objective.resolved
    counts, groups = sampled_counts(batch), group_index(batch)
    weights = loss_weights(counts, groups, aggregation=str(chosen.aggregation), constant_length=chosen.constant_length)
    return batch.with_columns(pl.Series("loss_weight", weights, dtype=pl.Float64))


def sampled_counts(rollouts: pl.DataFrame) -> np.ndarray:
    """Response tokens that the policy sampled, of each row, shape ``(rows,)``; all, where no ``sampled`` says it."""
    return rollouts.select(marks(rollouts).list.sum().fill_null(0).cast(pl.Int64)).to_series().to_numpy()


def estimated(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """The responses that advantages are computed from, among them all that are trained.

    A critic judges each alone; other baselines are means over all completed ones but those of groups that are filtered
    for their equal rewards, and one that is alone in its group where the baseline is the group's.
    """
    if config.objective.resolved.baseline == "gae":
        return rollouts.filter(pl.col("cohort") == "trained")
    used = rollouts.filter(pl.col("cohort") != "failed")
    if config.batch.filter_zero_variance:
        used = used.filter(~pl.col("zero_variance"))
    return used.filter(~alone(group_index(used))) if config.objective.resolved.baseline == "group" else used


def from_rewards(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """Add ``advantage``: one number per response, relative to the rewards of others."""
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

    A response's reward is its last sampled token's. With ``scale: batch`` all advantages are whitened, as in PPO.
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
    """The estimate of KL(policy ‖ base) of each sampled token, of the policy before the update."""
    counts = sampled_counts(rollouts)
    policy, reference = (ragged(rollouts, name, counts) for name in ("old_logprobs", "reference_logprobs"))
    estimate = KL_ESTIMATORS[config.kl.estimator](torch.from_numpy(policy.values), torch.from_numpy(reference.values))
    return Lists.of(estimate.numpy(), counts)


def minibatches(batch: pl.DataFrame, config: LearnerConfig, seed: int, step: int) -> Iterator[pl.DataFrame]:
    """Yield the responses of one update after another.

    With one update per batch that is the batch as it is. Else each pass over the batch (``epochs``) splits its groups
    at random into ``updates_per_batch`` parts of as equal a number of groups as possible; parts beyond the number of
    groups are left out, and so are those without a sampled token where others have one. Rows keep their order, and
    each part has the ``loss_weight`` of an update from it alone.

    Args:
        step: The step; it, the seed and the pass decide the split, so that a resumed run has the same.
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
