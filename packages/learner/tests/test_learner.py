from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.config import (
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    OptimizerConfig,
    SyncConfig,
)
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.learner import Learner
from isocompute.learner.objective.cohorts import with_cohorts
from isocompute.learner.objective.prepare import prepare


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in learner.weights()])


def gradient(learner: Learner) -> torch.Tensor:
    """After the first update: Adam's first moment is a tenth of the gradient."""
    moments = learner.state()[0]
    names = [name for name, _ in learner.policy.named_parameters()]
    return torch.cat([10 * moments[f"optimizer.policy.{name}.exp_avg"].flatten() for name in names])


def tolerant(config: LearnerConfig) -> LearnerConfig:
    """The same for a sampler that is far off."""
    return replace(config, sync=SyncConfig(tolerance=1e9))


def of_tokens(config: LearnerConfig, tokens: int) -> LearnerConfig:
    """The same with micro-batches of another size."""
    return replace(config, compute=ComputeConfig(micro_batch_tokens=tokens))


def test_on_policy_the_importance_ratio_is_one(learner: Learner, rollouts: pl.DataFrame) -> None:
    report = learner.update(rollouts)
    assert report.objective["importance_weight"].value == pytest.approx(1.0, abs=1e-4)
    assert report.sync_error < 1e-4
    assert report.objective["kl"].value == pytest.approx(0.0, abs=1e-6)


def test_micro_batches_of_one_and_of_all_give_the_same_update(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    one = Learner(model, of_tokens(config, 1))
    all_at_once = Learner(model, of_tokens(config, 10**6))
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
    """Written out row by row, without padding or micro-batches; see the parity chain in ``sync``."""
    learner = Learner(model, LearnerConfig(learning_rate=1e-2, optimizer=OptimizerConfig(gradient_clip=1e9)))
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


def test_inserted_tokens_are_context_for_the_gradient_and_for_the_report(model: Path, rollouts: pl.DataFrame) -> None:
    """As above, written out with all terms: a token that was not sampled has no loss, no entropy, KL or weight."""
    config = LearnerConfig(
        learning_rate=1e-2, optimizer=OptimizerConfig(gradient_clip=1e9), kl=KLConfig(coefficient=0.1),
        entropy=EntropyConfig(coefficient=0.02), sync=SyncConfig(tolerance=10.0),
    )  # fmt: skip
    marks = [[(i + row) % 3 != 1 for i in range(len(r))] for row, r in enumerate(rollouts["response_ids"].to_list())]
    # What a sampler reports of an inserted token; and one response of which nothing was sampled.
    marks[5] = [False] * len(marks[5])
    pairs = zip(rollouts["logprobs"].to_list(), marks, strict=True)
    inserted = rollouts.with_columns(
        sampled=pl.Series(marks),
        logprobs=pl.Series([[v if m else 0.0 for v, m in zip(*pair, strict=True)] for pair in pairs]),
    )
    learner = Learner(model, config)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter += 3e-3 * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
    inserted = prepare(inserted, config)
    reference, base = Learner(model, config).policy, Learner(model, config).policy
    reference.load_state_dict(learner.policy.state_dict())
    tokens = sum(map(sum, marks))
    entropy, worst = 0.0, 0.0
    for row in inserted.iter_rows(named=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        scores, known = (torch.log_softmax(m(ids).logits[0], -1) for m in (reference, base))
        for i, token in enumerate(row["response_ids"], len(row["prompt_ids"]) - 1):
            place = i - len(row["prompt_ids"]) + 1
            if not row["sampled"][place]:
                continue
            own, spread = scores[i, token], -(scores[i].exp() * scores[i]).sum()
            weight = (own.detach() - row["logprobs"][place]).exp().clamp(max=config.importance.cap)
            apart = known[i, token].detach() - own
            term = -weight * row["advantage"] * own + 0.1 * (apart.exp() - apart - 1) - 0.02 * spread
            (term / tokens).backward(retain_graph=True)
            entropy += float(spread.detach()) / tokens
            worst = max(worst, abs(float(own.detach()) - row["logprobs"][place]))
    report = learner.update(inserted)
    written = torch.cat([p.grad.flatten() for p in reference.parameters()])
    assert torch.allclose(gradient(learner), written, rtol=1e-3, atol=1e-6)
    assert report.objective["entropy"].value == pytest.approx(entropy, rel=1e-5)
    assert report.sync_error == pytest.approx(worst, rel=1e-2)
    assert worst > 0.01


def test_marks_that_are_all_true_change_nothing(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    one, other = Learner(model, config), Learner(model, config)
    marked = rollouts.with_columns(sampled=pl.col("response_ids").list.eval(pl.element() >= 0))
    assert one.update(rollouts) == other.update(marked)
    assert torch.equal(weights(one), weights(other))


def test_a_batch_without_a_sampled_token_or_without_log_probabilities_teaches_nothing(
    learner: Learner, rollouts: pl.DataFrame
) -> None:
    none = rollouts.with_columns(sampled=pl.col("response_ids").list.eval(pl.element() < 0))
    with pytest.raises(LearnerError, match="step 1 has no response token to learn from"):
        learner.update(none)
    server = rollouts.with_columns(pl.col("logprobs").list.head(0))
    with pytest.raises(LearnerError, match=r"response 0 to problem p0 has no log-probabilities.*a sampler that does"):
        learner.update(server)


def test_a_tied_model_learns_is_synced_saved_and_continued(
    tied_model: Path, tied_replay: Any, config: LearnerConfig, tmp_path: Path
) -> None:
    learner, other = Learner(tied_model, config), Learner(tied_model, config)

    def batch(step: int) -> pl.DataFrame:
        problems = pl.DataFrame({"problem_id": ["p0", "p1", "p2"]})
        asked = {"samples": 4, "seed": 0, "step": step, "phase": "train", "run_id": "r"}
        return prepare(with_cohorts(tied_replay.sample(problems, **asked), config.batch), config)

    for step in range(2):
        assert learner.update(batch(step)).sync_error < 1e-4
        tied_replay.sync(learner.weights(), learner.version)
    assert "lm_head.weight" not in dict(learner.weights())
    store = Checkpoints(tmp_path)
    tensors, values = learner.state()
    store.save(Checkpoint(step=2, tensors=tensors, values=values, progress={}))
    saved = store.newest()
    assert saved is not None
    other.load_state(saved.tensors, saved.values)
    last = batch(2)
    assert learner.update(last) == other.update(last)
    assert torch.equal(weights(learner), weights(other))
    learner.reset(config)
    assert torch.equal(weights(learner), weights(Learner(tied_model, config)))


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
    # The next batch must be sampled with the new weights: take the learner's own log-probabilities.
    learner.config = other.config = tolerant(config)
    again = rollouts.with_columns(weights_version=pl.lit(1, dtype=pl.Int64))
    assert learner.update(again) == other.update(again)
    assert torch.equal(weights(learner), weights(other))


def test_a_state_is_copied_when_it_is_taken_up(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    first, second = Learner(model, config), Learner(model, config)
    first.update(rollouts)
    tensors = {name: tensor.clone() for name, tensor in first.state()[0].items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    second.load_state(tensors, {"version": 0})
    second.config = tolerant(config)
    second.update(rollouts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_a_state_of_another_model_is_refused(learner: Learner) -> None:
    tensors, values = learner.state()
    smaller = {name: tensor for name, tensor in tensors.items() if "layers.1" not in name}
    with pytest.raises(LearnerError, match="not one of the model"):
        learner.load_state(smaller, values)


def test_every_response_is_compared(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    """The last one, too, however small the micro-batches."""
    learner = Learner(model, of_tokens(config, 3))
    assert learner.sync_error(rollouts) < 1e-4
    last = pl.int_range(pl.len()) == pl.len() - 1
    off = pl.when(last).then(pl.col("logprobs").list.eval(pl.element() - 0.5)).otherwise(pl.col("logprobs"))
    assert learner.sync_error(rollouts.with_columns(off)) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_log_probabilities_that_are_not_finite_are_caught(
    learner: Learner, rollouts: pl.DataFrame, value: float
) -> None:
    wrong = rollouts.with_columns(pl.col("logprobs").list.eval(pl.element() * 0 + value))
    before = weights(learner).clone()
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(wrong)
    assert learner.sync_error(wrong) > 1e9
    assert torch.equal(before, weights(learner))


def test_a_gradient_that_is_not_finite_makes_no_update(learner: Learner, rollouts: pl.DataFrame) -> None:
    before = weights(learner).clone()
    with pytest.raises(DivergenceError, match="step 1 has a gradient that is not finite"):
        learner.update(rollouts.with_columns(advantage=pl.lit(float("nan"))))
    assert torch.equal(before, weights(learner))
    assert learner.version == 0
    learner.update(rollouts)
    assert weights(learner).isfinite().all()


@pytest.mark.parametrize("tokens", [1, 10**6])
def test_a_sampler_whose_last_log_probability_is_not_finite_is_no_divergence(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame, tokens: int
) -> None:
    """Also beyond the first micro-batch, which alone is compared before the backward pass."""
    learner = Learner(model, of_tokens(config, tokens))
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
    with pytest.raises(DivergenceError, match=r"before step 1 .* the policy has diverged; no update was made"):
        learner.update(batch)
    with pytest.raises(DivergenceError, match="the policy has diverged"):
        learner.sync_error(batch)
    assert torch.equal(before, weights(learner))
    assert learner.version == 0


def test_a_policy_so_far_from_the_base_model_that_its_kl_overflows_has_diverged(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    learner = Learner(model, tolerant(config))
    with torch.no_grad():
        learner.policy.get_output_embeddings().weight.mul_(1e4)
    with pytest.raises(DivergenceError, match="the policy has diverged; no update was made"):
        learner.update(rollouts)


def test_responses_without_a_token_change_nothing(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    """Even where they fill whole micro-batches, the first one included."""
    config = of_tokens(config, 2)
    none = rollouts.head(4).with_columns(pl.col("response_ids", "logprobs").list.head(0))
    one, other = Learner(model, config), Learner(model, config)
    one.update(rollouts)
    other.update(pl.concat([none, rollouts]))
    assert torch.equal(weights(one), weights(other))
    with pytest.raises(LearnerError, match="no response token to learn from"):
        Learner(model, config).update(none)
    with pytest.raises(LearnerError, match="no response token whose log-probability"):
        one.sync_error(none)


def test_the_gradient_is_clipped_to_its_norm_and_warmed_up(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    learner = Learner(model, replace(config, optimizer=OptimizerConfig(gradient_clip=1e-3, warmup_steps=4)))
    report = learner.update(rollouts)
    assert report.gradient_norm > 1e-3
    assert float(gradient(learner).norm()) == pytest.approx(1e-3, rel=1e-3)
    assert report.learning_rate == pytest.approx(config.learning_rate / 4)


def test_a_process_group_of_somebody_else_is_left_alone(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    """An engine in the same process has one; this one would count everything twice."""
    dist = torch.distributed
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        report = Learner(model, config).update(rollouts)
    finally:
        dist.destroy_process_group()
    assert report == Learner(model, config).update(rollouts)
