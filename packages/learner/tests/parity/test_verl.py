"""Advantages, losses and gradients are those of veRL, in float64 to 1e-6."""

from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import (
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
)
from isocompute.learner.objective.advantages import response_advantages
from isocompute.learner.objective.loss import KL_ESTIMATORS, importance_weights, value_loss
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.records.steps import numbers

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


NONE = ImportanceConfig(level="none")
AGREED = {"rtol": 1e-6, "atol": 1e-6}
CLIPS = {"clip_low": 0.15, "clip_high": 0.25}
MODES = {"token": "token-mean", "sequence": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
SURROGATES = {
    "clip": ("vanilla", CLIPS),
    "gspo": ("gspo", {"clip_low": 0.05, "clip_high": 0.06}),
    "cispo": ("cispo", CLIPS),
    "policy_gradient": ("gpg", CLIPS),
}


def actor(needed: Any, *, aggregation: str, clip_low: float = 0.2, clip_high: float = 0.2, **more: Any) -> Any:
    """VeRL's configuration of the same loss; its dual clip, which is not one of ours, is out of reach."""
    config = needed("verl.workers.config").ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=MODES[aggregation],
        clip_ratio_low=clip_low,
        clip_ratio_high=clip_high,
        clip_ratio_c=1e9,
        **more,
    )
    config.global_batch_info["loss_scale_factor"] = 9
    return config


def ours(surrogate: str, aggregation: str, clips: dict[str, float], **more: Any) -> LearnerConfig:
    return LearnerConfig(
        learning_rate=1.0,
        objective=ObjectiveConfig(surrogate=surrogate, aggregation=aggregation, constant_length=9, **clips),
        **{"importance": NONE} | more,
    )


@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize("surrogate", SURROGATES)
@given(seed=SEEDS, per_token=st.booleans(), corrected=st.booleans())
@examples
def test_surrogates(
    verl: Any, needed: Any, batch: Any, surrogate: str, aggregation: str, seed: int, per_token: bool, corrected: bool
) -> None:
    name, clips = SURROGATES[surrogate]
    rows = batch(seed)
    importance = ImportanceConfig(level="token", cap=1.2) if corrected else NONE
    loss, gradient, metrics = rows.learn(
        # Without bounds where ours has none; veRL's has some and does not use them.
        ours(surrogate, aggregation, {} if surrogate == "policy_gradient" else clips, importance=importance),
        per_token=per_token,
    )
    logprobs = rows.logprobs.clone().requires_grad_()
    weights = (rows.old - rows.sampler).exp().clamp(max=1.2) if corrected else None
    expected, reported = verl.get_policy_loss_fn(name)(
        old_log_prob=rows.old,
        log_prob=logprobs,
        advantages=rows.returns if per_token else rows.advantages[:, None].expand_as(rows.old),
        response_mask=rows.mask.double(),
        loss_agg_mode=MODES[aggregation],
        config=actor(needed, aggregation=aggregation, **clips),
        rollout_is_weights=weights,
    )
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), **AGREED)
    torch.testing.assert_close(gradient, logprobs.grad, **AGREED)
    if name != "gpg":
        found = numbers(metrics)
        share = found["clip_fraction_low"] + found["clip_fraction_high"]
        assert share == pytest.approx(reported["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("aggregation", MODES)
@given(seed=SEEDS)
@examples
def test_a_loss_with_kl_and_entropy(
    verl: Any, needed: Any, batch: Any, estimator: str, aggregation: str, seed: int
) -> None:
    """The sum that veRL's actor is trained on, of the parts that it is made of there."""
    rows = batch(seed)
    regularised = {"kl": KLConfig(coefficient=0.3, estimator=estimator), "entropy": EntropyConfig(coefficient=0.2)}
    loss, gradient, _ = rows.learn(ours("clip", aggregation, CLIPS, **regularised))
    logprobs = rows.logprobs.clone().requires_grad_()
    mask = rows.mask.double()
    config = actor(needed, aggregation=aggregation, **CLIPS)
    policy, _ = verl.compute_policy_loss_vanilla(
        old_log_prob=rows.old,
        log_prob=logprobs,
        advantages=rows.advantages[:, None].expand_as(rows.old),
        response_mask=mask,
        loss_agg_mode=MODES[aggregation],
        config=config,
    )
    kl = verl.kl_penalty(logprobs, rows.reference, estimator)
    of_kl, of_entropy = (
        verl.agg_loss(term, mask, MODES[aggregation], loss_scale_factor=9) for term in (kl, rows.entropy * -logprobs)
    )
    expected = policy + 0.3 * of_kl - 0.2 * of_entropy
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), **AGREED)
    torch.testing.assert_close(gradient, logprobs.grad, **AGREED)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cap", [1.5, 1e9])
@given(seed=SEEDS)
@examples
def test_truncated_importance_weights_and_how_far_apart_the_policies_are(
    needed: Any, batch: Any, level: str, cap: float, seed: int
) -> None:
    correction = needed("verl.trainer.ppo.rollout_corr_helper")
    rows = batch(seed)
    mask = rows.mask.double()
    expected, reported = correction.compute_rollout_correction_weights(rows.old - rows.sampler, mask, level, cap)
    response = rows.mask.nonzero()[:, 0]
    of_tokens = rows.old[rows.mask], rows.sampler[rows.mask], response
    found = importance_weights(*of_tokens, len(mask), level=level, cap=cap)
    torch.testing.assert_close(found, expected[rows.mask], **AGREED)

    config = ours("clip", "token", CLIPS, importance=ImportanceConfig(level=level, cap=cap))
    of_ours = numbers(rows.learn(config)[2])
    assert of_ours["importance_weight"] == pytest.approx(reported["rollout_is_mean"], rel=1e-6)
    distances = correction.compute_offpolicy_metrics(rows.old, rows.sampler, mask)
    assert of_ours["mismatch_kl"] == pytest.approx(distances["kl"], rel=1e-6, abs=1e-6)
    assert of_ours["mismatch_k3"] == pytest.approx(distances["k3_kl"], rel=1e-6, abs=1e-6)
    if (level, cap) == ("token", 1e9):
        assert of_ours["effective_sample_size"] == pytest.approx(reported["rollout_is_eff_sample_size"], rel=1e-6)
    sums = rows.learn(config)[2]
    for name, chi_square in (("token_ratio_square", "chi2_token"), ("response_ratio_square", "chi2_seq")):
        assert sums[name].value - 1 == pytest.approx(distances[chi_square], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("clip", [0.2, 1.0])
@given(seed=SEEDS)
@examples
def test_value_losses(verl: Any, batch: Any, clip: float, seed: int) -> None:
    rows = batch(seed)
    one, other = (rows.values.clone().requires_grad_() for _ in range(2))
    found = value_loss(one, rows.returns, rows.old_values, clip=clip)[rows.mask].mean()
    expected, _ = verl.compute_value_loss(other, rows.returns, rows.old_values, rows.mask.double(), clip)
    torch.testing.assert_close(found, expected, **AGREED)
    found.backward()
    expected.backward()
    torch.testing.assert_close(one.grad, other.grad, **AGREED)
