"""What a learner refuses to learn from, which leaves its policy as it was."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner.config import ComputeConfig, LearnerConfig, SyncConfig
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.updates.learner import Learner
from small_run import weights


def test_a_skipped_sync_is_caught_before_the_update(learner: Learner, rollouts: pl.DataFrame) -> None:
    learner.update(rollouts)
    before = weights(learner).clone()
    with pytest.raises(SyncError, match="a sync was skipped"):
        learner.update(rollouts)
    assert torch.equal(before, weights(learner))


def test_a_sync_that_only_stamped_the_version_is_caught(learner: Learner, rollouts: pl.DataFrame) -> None:
    learner.update(rollouts)
    before = weights(learner).clone()
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(rollouts.with_columns(weights_version=pl.lit(1, dtype=pl.Int64)))
    assert torch.equal(before, weights(learner))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["layers.1.mlp.down_proj", "lm_head"])
def test_a_layer_that_is_off_is_caught(learner: Learner, rollouts: pl.DataFrame, part: str) -> None:
    with torch.no_grad():
        for name, tensor in learner.policy.named_parameters():
            if part in name:
                tensor += 1e-3
                # A constant shift of the head moves all logits alike, which no sampler could see.
                tensor[0] += 1e-2
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(rollouts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_log_probabilities_that_are_not_finite_are_caught(
    learner: Learner, rollouts: pl.DataFrame, value: float
) -> None:
    wrong = rollouts.with_columns(pl.col("logprobs").list.eval(pl.element() * 0 + value))
    before = weights(learner).clone()
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(wrong)
    assert learner.agreement(wrong).maximum > 1e9
    assert torch.equal(before, weights(learner))


def test_a_batch_that_was_not_prepared_is_refused(learner: Learner, rollouts: pl.DataFrame) -> None:
    for missing in ("advantage", "loss_weight"):
        with pytest.raises(LearnerError, match=f"no column {missing}"):
            learner.update(rollouts.drop(missing))
    assert learner.version == 0


def test_a_gradient_that_is_not_finite_makes_no_update(learner: Learner, rollouts: pl.DataFrame) -> None:
    before = weights(learner).clone()
    with pytest.raises(DivergenceError, match="step 1 has a gradient"):
        learner.update(rollouts.with_columns(advantage=pl.lit(float("nan"))))
    assert torch.equal(before, weights(learner))
    assert learner.version == 0
    learner.update(rollouts)
    assert weights(learner).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 10**6])
def test_a_sampler_whose_last_log_probability_is_not_finite_is_no_divergence(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame, tokens: int
) -> None:
    """Also beyond the first micro-batch, which alone is compared before the backward pass."""
    learner = Learner(model, replace(config, compute=ComputeConfig(micro_batch_tokens=tokens)))
    before = weights(learner).clone()
    last = pl.int_range(pl.len()) == pl.len() - 1
    off = pl.when(last).then(pl.col("logprobs").list.eval(pl.element() * float("nan"))).otherwise(pl.col("logprobs"))
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(rollouts.with_columns(off))
    assert torch.equal(before, weights(learner))


@pytest.mark.parametrize("sampled", [-1.0, float("nan")])
def test_a_learner_whose_own_log_probabilities_are_not_finite_has_diverged(
    learner: Learner, rollouts: pl.DataFrame, sampled: float
) -> None:
    """Whatever the sampler says."""
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.fill_(float("inf"))
    before = weights(learner).clone()
    batch = rollouts.with_columns(pl.col("logprobs").list.eval(pl.element() * 0 + sampled))
    with pytest.raises(DivergenceError, match=r"step 1 .* has diverged"):
        learner.update(batch)
    with pytest.raises(DivergenceError, match="policy has diverged"):
        learner.agreement(batch)
    assert torch.equal(before, weights(learner))
    assert learner.version == 0


def test_a_policy_so_far_from_the_base_model_that_its_kl_overflows_has_diverged(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    learner = Learner(model, replace(config, sync=SyncConfig(tolerance=1e9)))
    with torch.no_grad():
        learner.policy.get_output_embeddings().weight.mul_(1e4)
    with pytest.raises(DivergenceError, match="policy has diverged"):
        learner.update(rollouts)


@pytest.mark.parametrize("column", ["logprobs", "response_ids", "weights_version"])
def test_a_column_that_is_missing_is_named_with_what_it_is_for(
    learner: Learner, rollouts: pl.DataFrame, column: str
) -> None:
    lacking = rollouts.drop(column)
    with pytest.raises(LearnerError, match=rf"no column {column} "):
        learner.update(lacking)
    if column != "weights_version":
        with pytest.raises(LearnerError, match=f"no column {column} "):
            learner.agreement(lacking)
