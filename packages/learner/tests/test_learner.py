from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError, SyncError
from isocompute.learner.learner import Learner
from transformers import LlamaForCausalLM


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in learner.weights()])


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in learner.policy.parameters()])


def test_on_policy_the_importance_ratio_is_one(learner: Learner, rollouts: pl.DataFrame) -> None:
    report = learner.update(rollouts)
    assert report.importance_weight == pytest.approx(1.0, abs=1e-4)
    assert report.sync_error < 1e-4
    assert report.kl == pytest.approx(0.0, abs=1e-6)


def test_micro_batches_of_one_and_of_all_give_the_same_update(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    one = Learner(model, replace(config, micro_batch_rollouts=1))
    all_at_once = Learner(model, replace(config, micro_batch_rollouts=64))
    first, second = one.update(rollouts), all_at_once.update(rollouts)
    assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=1e-5)
    # Gradients, not weights: Adam's first step is a sign, which rounding decides where a gradient is 0.
    assert torch.allclose(gradient(one), gradient(all_at_once), rtol=1e-4, atol=1e-7)


def test_a_group_of_equal_rewards_adds_nothing_to_the_policy_gradient(model: Path, rollouts: pl.DataFrame) -> None:
    plain = LearnerConfig(learning_rate=1e-2)
    equal = rollouts.with_columns(advantage=pl.lit(0.0))
    report = Learner(model, plain).update(equal)
    assert report.gradient_norm == 0.0


def test_the_gradient_is_that_of_a_plain_policy_gradient(model: Path, rollouts: pl.DataFrame) -> None:
    """Parity with a loss written out row by row, without padding or micro-batches."""
    learner = Learner(model, LearnerConfig(learning_rate=1e-2, gradient_clip=1e9))
    reference = Learner(model, learner.config).policy
    tokens = int(rollouts["response_ids"].list.len().sum())
    for row in rollouts.iter_rows(named=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        scores = torch.log_softmax(reference(ids).logits[0], -1)
        begin = len(row["prompt_ids"])
        for i, token in enumerate(row["response_ids"]):
            (-row["advantage"] * scores[begin + i - 1, token] / tokens).backward(retain_graph=True)
    norm = torch.sqrt(sum((p.grad**2).sum() for p in reference.parameters()))
    assert learner.update(rollouts).gradient_norm == pytest.approx(float(norm), rel=1e-4)


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


def test_reset_goes_back_to_the_base_model(learner: Learner, rollouts: pl.DataFrame) -> None:
    before = weights(learner).clone()
    learner.update(rollouts)
    assert not torch.equal(before, weights(learner))
    learner.reset(learner.config)
    assert torch.equal(before, weights(learner))
    assert learner.version == 0


def test_a_state_continues_bit_for_bit(
    model: Path, config: LearnerConfig, learner: Learner, rollouts: pl.DataFrame
) -> None:
    learner.update(rollouts)
    tensors, values = learner.state()
    other = Learner(model, config)
    other.load_state({k: t.clone() for k, t in tensors.items()}, values)
    # The next batch has to be sampled with the new weights: take the learner's own log-probabilities.
    tolerant = replace(config, sync_tolerance=1e9)
    learner.config = other.config = tolerant
    again = rollouts.with_columns(weights_version=pl.lit(1, dtype=pl.Int64))
    assert learner.update(again) == other.update(again)
    assert torch.equal(weights(learner), weights(other))


def test_a_model_with_tied_embeddings_is_refused(model: Path, config: LearnerConfig, tmp_path: Path) -> None:
    tied = LlamaForCausalLM.from_pretrained(model)
    tied.config.tie_word_embeddings = True
    tied.save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="ties its embeddings"):
        Learner(tmp_path, config)


def test_a_model_that_cannot_be_loaded_is_named(model: Path, config: LearnerConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(LearnerError, match=f"the base model {place} cannot be loaded"):
            Learner(place, config)
