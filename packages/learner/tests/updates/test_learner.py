"""One learner: its updates, what it refuses, and that an update is the same however it is computed."""

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    SyncConfig,
)
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import minibatches, prepare
from isocompute.learner.updates.adam import Optimizer
from isocompute.learner.updates.learner import Learner, skipped
from small_run import distance, moved, recorded, scored, weights, written_out
from transformers import LlamaForCausalLM


def gradient(learner: Learner) -> torch.Tensor:
    """After the first update: Adam's first moment is a tenth of the gradient."""
    moments = learner.state()[0]
    names = [name for name, _ in learner.policy.named_parameters()]
    return torch.cat([10 * moments[f"optimizer.policy.{name}.exp_avg"].flatten() for name in names])


def tolerant(config: LearnerConfig) -> LearnerConfig:
    return replace(config, sync=SyncConfig(tolerance=1e9))


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


def test_policy_and_critic_take_steps_of_adamw_each_with_its_own_rate_and_clip() -> None:
    options = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-4, "weight_decay": 0.1, "gradient_clip": 5.0}
    schedule = OptimizerConfig(**options, warmup_steps=2, decay="linear", decay_after=3, decay_steps=6)
    config = LearnerConfig(learning_rate=1e-2, critic=CriticConfig(learning_rate=2e-3), optimizer=schedule)
    mine = [torch.nn.Linear(4, 3, dtype=torch.float64) for _ in range(2)]
    theirs, optimizer = deepcopy(mine), Optimizer(*mine, config)
    adams = [torch.optim.AdamW(other.parameters(), betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1) for other in theirs]
    for step, factor in enumerate((0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0), start=1):
        for module, other, norm in zip(mine, theirs, (2.0 * step, 1.0 * step), strict=True):
            for own, copied in zip(module.parameters(), other.parameters(), strict=True):
                own.grad = torch.cos(step * torch.arange(own.numel(), dtype=torch.float64)).view_as(own) * norm
                copied.grad = own.grad.clone()
        optimizer.clip()
        assert optimizer.step(step) == pytest.approx(1e-2 * factor)
        for other, adam, peak in zip(theirs, adams, (1e-2, 2e-3), strict=True):
            torch.nn.utils.clip_grad_norm_(other.parameters(), 5.0)
            adam.param_groups[0]["lr"] = peak * factor
            adam.step()
    for module, other in zip(mine, theirs, strict=True):
        found, expected = (torch.nn.utils.parameters_to_vector(each.parameters()) for each in (module, other))
        assert torch.allclose(found, expected, rtol=1e-12, atol=0)


@pytest.mark.slow
def test_inserted_tokens_are_context_for_the_gradient_and_for_the_report(model: Path, rollouts: pl.DataFrame) -> None:
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
    learner, policy, base = (Learner(model, config, dtype=torch.float64) for _ in range(3))
    moved(learner.policy, 3e-3)
    moved(policy.policy, 3e-3)
    expected, entropy, worst = written_out(policy.policy, base.policy, inserted, config)
    report = learner.update(inserted)
    assert distance(gradient(learner), expected) < 1e-6
    assert report.objective["entropy"].value == pytest.approx(entropy, rel=1e-6)
    assert report.sync_error == pytest.approx(worst, rel=1e-2)
    assert worst > 0.01


def test_a_batch_that_cannot_be_learnt_from_is_refused(learner: Learner, rollouts: pl.DataFrame) -> None:
    none = pl.col("response_ids").list.eval(pl.element() < 0)
    for batch, message in (
        (rollouts.with_columns(sampled=none), r"step 1 .* token"),
        (rollouts.with_columns(pl.col("logprobs").list.head(0)), "response 0 to problem p0"),
        (rollouts.drop("advantage"), "no column advantage"),
        (rollouts.drop("loss_weight"), "no column loss_weight"),
    ):
        with pytest.raises(LearnerError, match=message):
            learner.update(batch)
    assert learner.version == 0


def test_a_state_is_copied_when_it_is_taken_up(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    first, second = Learner(model, config), Learner(model, config)
    first.update(rollouts)
    tensors = {name: tensor.clone() for name, tensor in first.state()[0].items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    second.load_state(tensors, first.state()[1] | {"version": 0})
    second.config = tolerant(config)
    second.update(rollouts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_every_response_is_compared(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    """The last one, too, however small the micro-batches."""
    learner = Learner(model, replace(config, compute=ComputeConfig(micro_batch_tokens=3)))
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


@pytest.mark.slow
def test_responses_without_a_token_change_nothing(model: Path, config: LearnerConfig, rollouts: pl.DataFrame) -> None:
    """Even where they fill whole micro-batches, the first one included."""
    config = replace(config, compute=ComputeConfig(micro_batch_tokens=2))
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


LAST, NAN = pl.int_range(pl.len()) == pl.len() - 1, pl.col("logprobs").list.eval(pl.element() * float("nan"))
NOT_FINITE: dict[str, tuple[type[LearnerError], str, float, pl.Expr]] = {
    # More than float32 holds.
    "a gradient": (DivergenceError, "step 1 has a gradient", 1.0, pl.lit(1e300).alias("advantage")),
    "the sampler's last": (SyncError, "no update was made", 1.0, pl.when(LAST).then(NAN).otherwise("logprobs")),
    "the learner's": (DivergenceError, "step 1 .* has diverged", float("inf"), pl.col("logprobs")),
    "both": (DivergenceError, "step 1 .* has diverged", float("inf"), NAN),
    "a kl": (DivergenceError, "policy has diverged", 1e4, pl.col("logprobs")),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_number_that_is_not_finite_makes_no_update_and_says_whose_it_is(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame, name: str
) -> None:
    """Also beyond the first micro-batch, which alone is compared before the backward pass."""
    error, message, scale, changed = NOT_FINITE[name]
    config = tolerant(config) if name == "a kl" else config
    learner = Learner(model, replace(config, compute=ComputeConfig(micro_batch_tokens=1)))
    with torch.no_grad():
        learner.policy.get_output_embeddings().weight.mul_(scale)
    before, batch = weights(learner).clone(), rollouts.with_columns(changed)
    with pytest.raises(error, match=message):
        learner.update(batch)
    if scale == float("inf"):
        with pytest.raises(DivergenceError, match="policy has diverged"):
            learner.agreement(batch)
    assert torch.equal(before.nan_to_num(), weights(learner).nan_to_num())
    assert learner.version == 0
    if scale == 1:
        learner.update(rollouts)
        assert weights(learner).isfinite().all()


# Of equal rewards; of the mean reward of an unequal group, such as 0, ½ and 1; and of a better one.
ADVANTAGES, ZERO_VARIANCE = np.array([0.0, 0.0, 1.0]), np.array([True, False, False])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [True, True, False]),
        ({"kl": KLConfig(coefficient=0.1)}, [False, False, False]),
        # A regulariser that is masked where rewards are equal is none there, and one as ever elsewhere.
        ({"entropy": EntropyConfig(coefficient=0.1, mask_zero_variance=True)}, [True, False, False]),
        (
            {"kl": KLConfig(coefficient=0.1, mask_zero_variance=True), "entropy": EntropyConfig(coefficient=0.1)},
            [False, False, False],
        ),
        # What is off, or in the reward and so in the advantages, is no term of the loss.
        ({"kl": KLConfig(mask_zero_variance=True)}, [True, True, False]),
        ({"kl": KLConfig(coefficient=0.1, place="reward")}, [True, True, False]),
        # An entropy that is measured is that of all responses; a critic learns from all.
        ({"entropy": EntropyConfig(measured=True)}, [False, False, False]),
        ({"objective": ObjectiveConfig(algorithm="ppo")}, [False, False, False]),
    ],
)
def test_a_response_is_skipped_where_it_has_neither_an_advantage_nor_a_regulariser(
    settings: dict[str, Any], expected: list[bool]
) -> None:
    config = LearnerConfig(learning_rate=1.0, **settings)
    found = skipped(ADVANTAGES, ZERO_VARIANCE, config)
    assert found.dtype == bool
    assert found.tolist() == expected


PLAIN = LearnerConfig(learning_rate=1e-2, sync=SyncConfig(tolerance=1e9))
OBJECTIVES = {
    "grpo": PLAIN,
    "kl and entropy": replace(PLAIN, kl=KLConfig(coefficient=0.1), entropy=EntropyConfig(coefficient=0.02)),
    "masked regularisers": replace(
        PLAIN,
        kl=KLConfig(coefficient=0.1, mask_zero_variance=True),
        entropy=EntropyConfig(coefficient=0.02, mask_zero_variance=True),
    ),
    "dr_grpo": replace(PLAIN, objective=ObjectiveConfig(algorithm="dr_grpo", constant_length=8)),
    "ppo": replace(PLAIN, objective=ObjectiveConfig(algorithm="ppo")),
    "cispo": replace(PLAIN, objective=ObjectiveConfig(algorithm="cispo")),
    "dapo": replace(PLAIN, objective=ObjectiveConfig(algorithm="dapo", updates_per_batch=2, epochs=2)),
    "gspo": replace(PLAIN, objective=ObjectiveConfig(algorithm="gspo"), importance=ImportanceConfig(level="sequence")),
    "kl in the reward": replace(PLAIN, kl=KLConfig(coefficient=0.1, place="reward")),
}

WAYS = {
    "packed": ComputeConfig(layout="packed"),
    "padded": ComputeConfig(layout="padded"),
    "small micro-batches": ComputeConfig(micro_batch_tokens=12),
    "a head in chunks": ComputeConfig(head_chunk_tokens=3),
    "checkpointed layers": ComputeConfig(gradient_checkpointing=True),
}


@pytest.fixture(scope="module")
def batch(model: Path) -> pl.DataFrame:
    """Five groups of four, sampled by a policy that is a little off ``taught``.

    One has equal rewards, and one has responses of its mean reward, which have no advantage either.
    """
    policy = moved(LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), 2e-2)
    rows = scored(policy, recorded(groups=5))
    halves = ((1 + pl.col("sample")) // 2) / 2
    reward = pl.when(pl.col("problem_id") == "p3").then(1.0).when(pl.col("problem_id") == "p4").then(halves)
    return rows.with_columns(reward=reward.otherwise("reward"))


def taught(model: Path, config: LearnerConfig, dtype: torch.dtype = torch.float32) -> Learner:
    """A learner that is no longer at the base model, so that there is a KL, with a critic that knows something."""
    learner = Learner(model, config, dtype=dtype)
    moved(learner.policy, 1e-2)
    moved(learner.critic or torch.nn.Identity(), 1e-1)
    return learner


def learnt(learner: Any, rollouts: pl.DataFrame) -> torch.Tensor:
    """The gradients of one batch, as Adam has averaged them."""
    config = learner.config
    rollouts = with_cohorts(rollouts, config.batch)
    if config.measures_first:
        rollouts = learner.measure(rollouts)
    parts = list(minibatches(prepare(rollouts, config), config, seed=0, step=1))
    for number, part in enumerate(parts, start=1):
        learner.update(part, advance=number == len(parts))
    moments = sorted((name, moment) for name, moment in learner.state()[0].items() if name.endswith("exp_avg"))
    return torch.cat([moment.flatten().double() for _, moment in moments])


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_way_of_computing_gives_the_gradient_of_the_reference_and_float32_but_for_rounding(
    model: Path, batch: pl.DataFrame, name: str
) -> None:
    config = OBJECTIVES[name]
    whole = replace(config, compute=ComputeConfig(layout="padded", micro_batch_tokens=1))
    # Measuring the entropy keeps every response in.
    whole = replace(whole, entropy=replace(config.entropy, measured=True))
    expected = learnt(taught(model, whole, torch.float64), batch)
    assert float(expected.norm()) > 1e-2
    for way, compute in WAYS.items():
        found = learnt(taught(model, replace(config, compute=compute), torch.float64), batch)
        assert distance(found, expected) < 1e-6, way
    assert distance(learnt(taught(model, config), batch), expected) < 2e-5


@pytest.mark.slow
def test_a_batch_of_equal_rewards_moves_what_adam_remembers_and_before_that_nothing(
    model: Path, batch: pl.DataFrame
) -> None:
    learner = Learner(model, PLAIN)

    def equal() -> pl.DataFrame:
        rows = batch.with_columns(reward=pl.lit(1.0), weights_version=pl.lit(learner.version, pl.Int32))
        return prepare(with_cohorts(rows, BatchConfig()), PLAIN)

    before = weights(learner)
    report = learner.update(equal())
    assert (report.gradient_norm, report.skipped.value, report.optimizer_steps, report.passed_tokens) == (0, 1, 0, 0)
    assert torch.equal(before, weights(learner))
    # Nothing is there to sync.
    assert learner.version == 0
    learner.update(prepare(with_cohorts(batch, BatchConfig()), PLAIN))
    assert learner.version == 1
    moved = weights(learner)
    report = learner.update(equal())
    assert (report.gradient_norm, report.optimizer_steps, learner.version) == (0, 1, 2)
    assert not (moved == weights(learner)).all()
