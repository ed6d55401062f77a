"""From the same recorded rollouts the same update, however it is computed (invariant 2 of the design).

The reference is computed in float64, one response at a time, padded, with nothing left out. Gradients are compared, and
not weights: Adam's first step is a sign, which rounding decides where a gradient is 0.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    Learner,
    LearnerConfig,
    ObjectiveConfig,
    SyncConfig,
    prepare,
    with_cohorts,
)
from isocompute.learner.objective.prepare import minibatches
from recordings import moved, recorded, scored
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.slow("one update in every way of computing")

OFF = SyncConfig(tolerance=1e9)
PLAIN = LearnerConfig(learning_rate=1e-2, sync=OFF)
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


def moments(learner: Any) -> torch.Tensor:
    """The gradients of all updates so far, as Adam has averaged them."""
    tensors = learner.state()[0]
    return torch.cat([t.flatten().double() for name, t in sorted(tensors.items()) if name.endswith("exp_avg")])


def learnt(learner: Any, rollouts: pl.DataFrame) -> torch.Tensor:
    """The gradients of one batch."""
    config = learner.config
    rollouts = with_cohorts(rollouts, config.batch)
    if config.measures_first:
        rollouts = learner.measure(rollouts)
    parts = list(minibatches(prepare(rollouts, config), config, seed=0, step=1))
    for number, part in enumerate(parts, start=1):
        learner.update(part, advance=number == len(parts))
    return moments(learner)


@pytest.fixture(scope="module", params=OBJECTIVES)
def reference(request: pytest.FixtureRequest, model: Path, batch: pl.DataFrame) -> tuple[LearnerConfig, torch.Tensor]:
    """An objective, and its gradient."""
    config = OBJECTIVES[request.param]
    whole = replace(config, compute=ComputeConfig(layout="padded", micro_batch_tokens=1))
    # Measuring the entropy keeps every response in.
    whole = replace(whole, entropy=replace(config.entropy, measured=True))
    return config, learnt(taught(model, whole, torch.float64), batch)


def test_every_way_of_computing_gives_the_gradient_of_the_reference(
    model: Path, batch: pl.DataFrame, reference: tuple[LearnerConfig, torch.Tensor]
) -> None:
    config, expected = reference
    assert float(expected.norm()) > 1e-2
    for way, compute in WAYS.items():
        found = learnt(taught(model, replace(config, compute=compute), torch.float64), batch)
        assert float((found - expected).norm() / expected.norm()) < 1e-6, way


def test_in_float32_the_difference_is_rounding(
    model: Path, batch: pl.DataFrame, reference: tuple[LearnerConfig, torch.Tensor]
) -> None:
    config, expected = reference
    found = learnt(taught(model, config), batch)
    assert float((found - expected).norm() / expected.norm()) < 2e-5


def test_skipping_leaves_the_normaliser_as_it_is(model: Path, batch: pl.DataFrame) -> None:
    compute = ComputeConfig(layout="padded", micro_batch_tokens=1)
    skipping = Learner(model, replace(PLAIN, compute=compute))
    whole = Learner(model, replace(PLAIN, compute=compute, entropy=EntropyConfig(measured=True)))
    prepared = prepare(with_cohorts(batch, BatchConfig()), PLAIN)
    some, every = skipping.update(prepared), whole.update(prepared)
    assert (some.skipped.total, every.skipped.total) == (6, 0)
    assert some.trained_tokens == every.trained_tokens
    # To rounding: one of them computes entropies, too. A normaliser without the 6 of 16 would be another by 0.6.
    assert float((moments(skipping) - moments(whole)).norm() / moments(whole).norm()) < 1e-6
    assert some.objective["loss"].value == pytest.approx(every.objective["loss"].value, abs=1e-12)


def test_a_batch_of_equal_rewards_moves_what_adam_remembers_and_before_that_nothing(
    model: Path, batch: pl.DataFrame
) -> None:
    learner = Learner(model, PLAIN)

    def equal() -> pl.DataFrame:
        rows = batch.with_columns(reward=pl.lit(1.0), weights_version=pl.lit(learner.version, pl.Int32))
        return prepare(with_cohorts(rows, BatchConfig()), PLAIN)

    before = [tensor.clone() for _, tensor in learner.weights()]
    report = learner.update(equal())
    assert (report.gradient_norm, report.skipped.value, report.optimizer_steps, report.passed_tokens) == (0, 1, 0, 0)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, learner.weights(), strict=True))
    # Nothing is there to sync.
    assert learner.version == 0
    learner.update(prepare(with_cohorts(batch, BatchConfig()), PLAIN))
    assert learner.version == 1
    moved = [tensor.clone() for _, tensor in learner.weights()]
    report = learner.update(equal())
    assert (report.gradient_norm, report.optimizer_steps, learner.version) == (0, 1, 2)
    assert not any(torch.equal(a, b) for a, (_, b) in zip(moved, learner.weights(), strict=True))


def test_on_policy_truncated_importance_sampling_changes_nothing(model: Path) -> None:
    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    rows = scored(policy, recorded(), numbers=pl.Float64)
    expected = learnt(
        Learner(model, replace(PLAIN, importance=ImportanceConfig(level="none")), dtype=torch.float64), rows
    )
    for level in ("token", "sequence"):
        config = replace(PLAIN, importance=ImportanceConfig(level=level))
        found = learnt(Learner(model, config, dtype=torch.float64), rows)
        assert float((found - expected).norm() / expected.norm()) < 1e-12


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_state_continues_bit_for_bit_whatever_the_objective(model: Path, batch: pl.DataFrame, name: str) -> None:
    config = OBJECTIVES[name]
    straight, first, second = (taught(model, config) for _ in range(3))
    again = batch.with_columns(weights_version=pl.lit(1, dtype=pl.Int64))
    learnt(straight, batch)
    learnt(straight, again)
    learnt(first, batch)
    tensors, values = first.state()
    second.load_state({name: tensor.clone() for name, tensor in tensors.items()}, values)
    learnt(second, again)
    mine, theirs = straight.state()[0], second.state()[0]
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
