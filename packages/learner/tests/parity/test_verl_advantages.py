"""Advantages are those of veRL, in float64 to 1e-6."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import CriticConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.advantages import response_advantages, whitened
from isocompute.learner.objective.prepare import prepare

SEEDS = st.integers(0, 2**32 - 1)
examples = settings(max_examples=25)


def at_the_end(rows: Any) -> torch.Tensor:
    """Rewards as veRL has them: at the last sampled token of each response, and 0 before."""
    scores = torch.zeros_like(rows.old)
    last = rows.mask.shape[1] - 1 - rows.mask.flip(1).int().argmax(1)
    scores[torch.arange(len(scores)), last] = rows.rewards
    return scores


def table(rows: Any) -> pl.DataFrame:
    """The batch as a table of rollouts that the policy was measured on."""

    def listed(matrix: torch.Tensor) -> pl.Series:
        return pl.Series([row[mask].tolist() for row, mask in zip(matrix, rows.mask, strict=True)])

    lengths = [int(row.nonzero().max()) + 1 for row in rows.mask]
    return pl.DataFrame(
        {
            "problem_id": [f"p{group}" for group in rows.groups],
            "sample": list(range(4)) * 3,
            "reward": rows.rewards.numpy(),
            "response_ids": [[1] * length for length in lengths],
            "sampled": [row[:length].tolist() for row, length in zip(rows.mask, lengths, strict=True)],
            "old_logprobs": listed(rows.old),
            "reference_logprobs": listed(rows.reference),
            "values": listed(rows.old_values),
            "zero_variance": [False] * 12,
            "cohort": ["trained"] * 12,
        }
    )


@pytest.mark.parametrize("scale", ["none", "group"])
@given(seed=SEEDS)
@examples
def test_advantages_of_groups(verl: Any, batch: Any, scale: str, seed: int) -> None:
    rows = batch(seed)
    found = response_advantages(rows.rewards.numpy(), rows.groups, scale=scale)
    for function in (verl.compute_grpo_outcome_advantage, verl.compute_grpo_vectorized_outcome_advantage):
        expected, _ = function(
            token_level_rewards=at_the_end(rows),
            response_mask=rows.mask.double(),
            index=rows.groups,
            norm_adv_by_std_in_grpo=scale == "group",
        )
        assert found == pytest.approx(expected[:, 0].numpy(), abs=1e-6)


@given(seed=SEEDS)
@examples
def test_advantages_whitened_over_the_tokens_of_a_batch(verl: Any, batch: Any, seed: int) -> None:
    """REINFORCE++ with and without the group's mean: ours is a scale over responses; whitened, the parts agree."""
    rows = batch(seed)
    mask = rows.mask.double()
    config = SimpleNamespace(gamma=1.0)
    for estimate, baseline in (
        (verl.compute_reinforce_plus_plus_baseline_outcome_advantage, "group"),
        (verl.compute_reinforce_plus_plus_outcome_advantage, "batch"),
    ):
        expected, _ = estimate(
            token_level_rewards=at_the_end(rows), response_mask=mask, index=rows.groups, config=config
        )
        of_responses = response_advantages(rows.rewards.numpy(), rows.groups, baseline=baseline, scale="none")
        found = whitened(np.repeat(of_responses, rows.counts))
        assert found == pytest.approx(expected[rows.mask].numpy(), abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
@given(seed=SEEDS, discount=st.sampled_from([1.0, 0.9]), gae_lambda=st.sampled_from([1.0, 0.95, 0.0]))
@examples
def test_generalised_advantage_estimates_with_a_kl_in_the_reward(
    verl: Any, batch: Any, estimator: str, coefficient: float, seed: int, discount: float, gae_lambda: float
) -> None:
    rows = batch(seed)
    config = LearnerConfig(
        learning_rate=1.0,
        objective=ObjectiveConfig(algorithm="ppo"),
        kl=KLConfig(coefficient=coefficient, estimator=estimator, place="reward"),
        critic=CriticConfig(discount=discount, gae_lambda=gae_lambda),
    )
    found = prepare(table(rows), config)
    mask = rows.mask.double()
    rewards = at_the_end(rows) - coefficient * verl.kl_penalty(rows.old, rows.reference, estimator) * mask
    advantages, returns = verl.compute_gae_advantage_return(rewards, rows.old_values, mask, discount, gae_lambda)
    assert found["advantages"].explode().to_numpy() == pytest.approx(advantages[rows.mask].numpy(), abs=1e-6)
    assert found["returns"].explode().to_numpy() == pytest.approx(returns[rows.mask].numpy(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@given(seed=SEEDS)
@examples
def test_advantages_of_groups_with_a_kl_in_the_reward(verl: Any, batch: Any, estimator: str, seed: int) -> None:
    rows = batch(seed)
    config = LearnerConfig(learning_rate=1.0, kl=KLConfig(coefficient=0.1, estimator=estimator, place="reward"))
    found = prepare(table(rows), config)["advantage"].to_numpy()
    mask = rows.mask.double()
    rewards = at_the_end(rows) - 0.1 * verl.kl_penalty(rows.old, rows.reference, estimator) * mask
    expected, _ = verl.compute_grpo_outcome_advantage(rewards, mask, rows.groups)
    assert found == pytest.approx(expected[:, 0].numpy(), abs=1e-6)
