import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.saving.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.updates.learner import Learner
from recordings import moved, recorded, scored
from small_run import weights
from written_out import written_out


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


NUMBERS = pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-5), (torch.float64, 1e-6)])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.slow
@NUMBERS
def test_the_gradient_is_that_of_a_plain_policy_gradient(model: Path, dtype: torch.dtype, most: float) -> None:
    config = LearnerConfig(learning_rate=1e-2, optimizer=OptimizerConfig(gradient_clip=1e9))
    learner, policy = (Learner(model, config, dtype=dtype) for _ in range(2))
    numbers = pl.Float64 if dtype == torch.float64 else pl.Float32
    batch = prepare(with_cohorts(scored(policy.policy, recorded(), numbers), config.batch), config)
    expected, _, _ = written_out(policy.policy, learner.policy, batch, config)
    assert learner.update(batch).gradient_norm == pytest.approx(float(expected.norm()), rel=most)
    assert distance(gradient(learner), expected) < most


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_updates_are_steps_of_adamw_with_the_gradient_written_out(model: Path) -> None:
    """With a schedule, a clip, weight decay and every term of the objective."""
    settings = OptimizerConfig(warmup_steps=2, decay="cosine", decay_steps=5, weight_decay=0.1, gradient_clip=0.5)
    terms = {"kl": KLConfig(coefficient=0.1), "entropy": EntropyConfig(coefficient=0.02)}
    config = LearnerConfig(learning_rate=1e-2, optimizer=settings, **terms)
    learner, other, base = (Learner(model, config, dtype=torch.float64) for _ in range(3))
    policy, begun = other.policy, weights(other).clone()
    adam = torch.optim.AdamW(policy.parameters(), weight_decay=0.1)
    for step in range(4):
        rollouts = scored(policy, recorded(version=step, step=step), pl.Float64)
        batch = prepare(with_cohorts(rollouts, config.batch), config)
        adam.zero_grad()
        gradient, entropy, _ = written_out(policy, base.policy, batch, config)
        report = learner.update(batch)
        assert report.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-9)
        assert report.objective["entropy"].value == pytest.approx(entropy, rel=1e-9)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        adam.param_groups[0]["lr"] = config.learning_rate_at(step + 1)
        adam.step()
    assert distance(weights(learner) - begun, weights(other) - begun) < 1e-9


@pytest.mark.slow
@NUMBERS
def test_inserted_tokens_are_context_for_the_gradient_and_for_the_report(
    model: Path, rollouts: pl.DataFrame, dtype: torch.dtype, most: float
) -> None:
    """With all terms of the objective: a token that was not sampled has no loss, no entropy, KL or weight."""
    config = LearnerConfig(
        learning_rate=1e-2,
        optimizer=OptimizerConfig(gradient_clip=1e9),
        kl=KLConfig(coefficient=0.1),
        entropy=EntropyConfig(coefficient=0.02),
        sync=SyncConfig(tolerance=10.0),
    )
    marks = [[(i + row) % 3 != 1 for i in range(len(r))] for row, r in enumerate(rollouts["response_ids"].to_list())]
    # What a sampler reports of an inserted token; and one response of which nothing was sampled.
    marks[5] = [False] * len(marks[5])
    pairs = zip(rollouts["logprobs"].to_list(), marks, strict=True)
    inserted = rollouts.with_columns(
        sampled=pl.Series(marks),
        logprobs=pl.Series([[v if m else 0.0 for v, m in zip(*pair, strict=True)] for pair in pairs]),
    )
    inserted = prepare(inserted, config)
    learner, policy, base = (Learner(model, config, dtype=dtype) for _ in range(3))
    moved(learner.policy, 3e-3)
    moved(policy.policy, 3e-3)
    expected, entropy, worst = written_out(policy.policy, base.policy, inserted, config)
    report = learner.update(inserted)
    assert distance(gradient(learner), expected) < most
    assert report.objective["entropy"].value == pytest.approx(entropy, rel=most)
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
    with pytest.raises(LearnerError, match=r"step 1 .* token"):
        learner.update(none)
    server = rollouts.with_columns(pl.col("logprobs").list.head(0))
    with pytest.raises(LearnerError, match=r"response 0 to problem p0"):
        learner.update(server)


@pytest.mark.slow
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


def test_reset_goes_back_to_the_base_model(learner: Learner, rollouts: pl.DataFrame) -> None:
    before = weights(learner).clone()
    learner.update(rollouts)
    assert not torch.equal(before, weights(learner))
    learner.reset(learner.config)
    assert torch.equal(before, weights(learner))
    assert learner.version == 0


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
    assert learner.agreement(rollouts).maximum < 1e-4
    last = pl.int_range(pl.len()) == pl.len() - 1
    off = pl.when(last).then(pl.col("logprobs").list.eval(pl.element() - 0.5)).otherwise(pl.col("logprobs"))
    assert learner.agreement(rollouts.with_columns(off)).maximum == pytest.approx(0.5, abs=1e-3)


@pytest.mark.slow
def test_a_reset_that_failed_says_so_and_can_be_made_again(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame, tmp_path: Path
) -> None:
    there, away = tmp_path / "model", tmp_path / "away"
    shutil.copytree(model, there)
    learner = Learner(there, config)
    there.rename(away)
    with pytest.raises(LearnerError, match="cannot be loaded"):
        learner.reset(config)
    for use in (lambda: learner.update(rollouts), learner.state, lambda: list(learner.weights())):
        with pytest.raises(LearnerError, match=r"no model.* reset\(\)"):
            use()
    away.rename(there)
    learner.reset(config)
    assert learner.update(rollouts).optimizer_steps == 1


def test_tokens_that_are_skipped_count_as_not_clipped(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    """So that a share of clipped tokens does not depend on what else is measured."""
    half = rollouts.with_columns(advantage=pl.when(pl.col("sample") % 2 == 1).then(0.0).otherwise("advantage"))
    half = half.with_columns(old_logprobs=pl.col("logprobs").list.eval(pl.element().cast(pl.Float32) - 1.0))
    config = replace(tolerant(config), kl=KLConfig(), entropy=EntropyConfig())
    config = replace(config, objective=ObjectiveConfig(updates_per_batch=2))
    skipping = Learner(model, config).update(half)
    measuring = Learner(model, replace(config, entropy=EntropyConfig(measured=True))).update(half)
    assert skipping.skipped.value > 0 == measuring.skipped.value
    for name in ("clip_fraction_low", "clip_fraction_high"):
        assert skipping.objective[name].value == pytest.approx(measuring.objective[name].value)
    assert skipping.objective["clip_fraction_high"].value > 0


@pytest.mark.slow
def test_responses_without_a_token_change_nothing(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    """Even where they fill whole micro-batches, the first one included."""
    config = of_tokens(config, 2)
    none = rollouts.head(4).with_columns(pl.col("response_ids", "logprobs").list.head(0))
    one, other = Learner(model, config), Learner(model, config)
    one.update(rollouts)
    other.update(pl.concat([none, rollouts]))
    # Not to the bit: products of other shapes are summed in another order.
    assert distance(weights(one), weights(other)) < 1e-6
    with pytest.raises(LearnerError, match="no response token"):
        Learner(model, config).update(none)
    with pytest.raises(LearnerError, match="whose log-probability"):
        one.agreement(none)


def test_the_gradient_is_clipped_to_its_norm_and_warmed_up(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    learner = Learner(model, replace(config, optimizer=OptimizerConfig(gradient_clip=1e-3, warmup_steps=4)))
    report = learner.update(rollouts)
    assert report.gradient_norm > 1e-3
    assert float(gradient(learner).norm()) == pytest.approx(1e-3, rel=1e-3)
    assert report.learning_rate == pytest.approx(config.learning_rate / 4)


@pytest.mark.slow
def test_a_process_group_of_somebody_else_is_left_alone(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame, tmp_path: Path
) -> None:
    """An engine in the same process has one; this one would count everything twice."""
    # In a process of its own: an engine of another test may have left a group in this one.
    code = (
        "import pickle, sys, torch\n"
        "from isocompute.learner import Learner\n"
        "model, config, rollouts = pickle.load(open(sys.argv[1], 'rb'))\n"
        "group = torch.distributed\n"
        "group.init_process_group('fake', store=group.HashStore(), rank=0, world_size=2)\n"
        "pickle.dump(Learner(model, config).update(rollouts), open(sys.argv[2], 'wb'))\n"
    )
    given, found = tmp_path / "given", tmp_path / "found"
    given.write_bytes(pickle.dumps((model, config, rollouts)))
    subprocess.run([sys.executable, "-c", code, str(given), str(found)], check=True)
    assert pickle.loads(found.read_bytes()) == Learner(model, config).update(rollouts)
