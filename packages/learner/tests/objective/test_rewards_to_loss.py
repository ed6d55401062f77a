"""From rewards to the loss, on tensors alone: each setting changes the numbers that it should, and no other."""

from dataclasses import replace
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
from isocompute.learner.objective.cohorts import with_cohorts
from isocompute.learner.objective.loss import ObjectiveInputs, objective
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.objective.ragged import Ragged, listed
from isocompute.learner.records.metrics import numbers

BASE = LearnerConfig(
    learning_rate=1.0,
    objective=ObjectiveConfig(updates_per_batch=2, constant_length=9),
    kl=KLConfig(coefficient=0.1),
    entropy=EntropyConfig(coefficient=0.01),
    importance=ImportanceConfig(cap=1.2),
)
LOSS = {"policy_loss", "loss"}
ADVANTAGE = {"advantage", "advantage_std"} | LOSS
CLIPPED = {"clip_fraction_low", "clip_fraction_high"} | LOSS
OPTIONS: dict[str, tuple[Any, set[str]]] = {
    "another name of the same parts": (replace(BASE.objective, surrogate="clip", clip_low=0.2, clip_high=0.2), set()),
    "clip-higher": (replace(BASE.objective, algorithm="dapo"), CLIPPED - {"clip_fraction_low"}),
    "a lower bound": (replace(BASE.objective, clip_low=0.1), CLIPPED - {"clip_fraction_high"}),
    "policy gradient": (replace(BASE.objective, surrogate="policy_gradient"), CLIPPED),
    "a ratio per response": (replace(BASE.objective, surrogate="gspo"), CLIPPED | {"ratio"}),
    "cispo": (replace(BASE.objective, surrogate="cispo"), CLIPPED),
    "no scale": (replace(BASE.objective, scale="none"), ADVANTAGE),
    "the batch's scale": (replace(BASE.objective, scale="batch"), ADVANTAGE),
    "the batch's mean": (replace(BASE.objective, baseline="batch", scale="batch"), ADVANTAGE | CLIPPED),
    "population": (replace(BASE.objective, std="population"), ADVANTAGE),
    "by response": (replace(BASE.objective, aggregation="sequence"), {"loss_weight"} | LOSS),
    "by problem": (replace(BASE.objective, aggregation="prompt"), {"loss_weight"} | LOSS),
    "by a constant": (replace(BASE.objective, aggregation="constant"), {"loss_weight"} | LOSS),
    "other splits of the batch": (replace(BASE.objective, updates_per_batch=4, epochs=3), set()),
    "more KL": (replace(BASE.kl, coefficient=0.2), {"loss"}),
    "k1": (replace(BASE.kl, estimator="k1"), {"kl", "loss"}),
    "k2": (replace(BASE.kl, estimator="k2"), {"kl", "loss"}),
    "KL where rewards differ": (replace(BASE.kl, mask_zero_variance=True), {"loss"}),
    "KL in the reward": (replace(BASE.kl, place="reward"), ADVANTAGE | CLIPPED),
    "more entropy": (replace(BASE.entropy, coefficient=0.02), {"loss"}),
    "entropy where rewards differ": (replace(BASE.entropy, mask_zero_variance=True), {"loss"}),
    "a wider cap": (ImportanceConfig(cap=1.4), {"importance_weight"} | LOSS),
    "weights of responses": (ImportanceConfig(level="sequence", cap=1.2), {"importance_weight"} | LOSS),
    "no weights": (ImportanceConfig(level="none"), {"importance_weight"} | LOSS),
    "a critic that is not asked": (CriticConfig(discount=0.5, gae_lambda=0.5, clip=None), set()),
    "another memory": (ComputeConfig(micro_batch_tokens=64, head_chunk_tokens=8), set()),
    "another optimizer": (OptimizerConfig(gradient_clip=0.1, weight_decay=0.1), set()),
    "another agreement": (SyncConfig(tolerance=None, mean=0.1), set()),
}
GROUP_OF = {
    ObjectiveConfig: "objective", KLConfig: "kl", EntropyConfig: "entropy", ImportanceConfig: "importance",
    CriticConfig: "critic", ComputeConfig: "compute", OptimizerConfig: "optimizer", SyncConfig: "sync",
}  # fmt: skip


def recorded() -> tuple[pl.DataFrame, dict[str, torch.Tensor]]:
    """Three groups of four, all of one of them right; and numbers for each token."""
    random = np.random.default_rng(5)
    lengths = random.integers(2, 8, 12)
    count = int(lengths.sum())
    # As float32, in which the table has them.
    old = -np.abs(random.normal(1.0, 1.0, count)).astype(np.float32).astype(np.float64) - 0.125
    reference = (old + random.normal(0.0, 0.4, count)).astype(np.float32).astype(np.float64)
    rows = pl.DataFrame({
        "problem_id": np.repeat(["a", "b", "c"], 4), "sample": list(range(4)) * 3, "finish_reason": ["stop"] * 12,
        "reward": [1.0, 0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0, 1.0, 0.0],
        "response_ids": [[1] * length for length in lengths],
    })  # fmt: skip
    rows = rows.with_columns(
        listed("old_logprobs", Ragged(values=old, lengths=lengths)),
        listed("reference_logprobs", Ragged(values=reference, lengths=lengths)),
    )
    numbers_of = {"old": old, "reference": reference, "sampler": old + random.normal(0, 0.3, count)}
    numbers_of |= {"policy": old + random.normal(0, 0.3, count), "row": np.repeat(np.arange(12), lengths)}
    return rows, {name: torch.from_numpy(values) for name, values in numbers_of.items()}


def computed(config: LearnerConfig) -> dict[str, Any]:
    """The columns of the batch and the metrics of its loss."""
    rows, tokens = recorded()
    batch = prepare(with_cohorts(rows, config.batch), config)

    def of_rows(name: str) -> torch.Tensor:
        return torch.from_numpy(batch[name].to_numpy().copy())[tokens["row"]]

    logprobs = tokens["policy"].clone().requires_grad_()
    _, metrics = objective(
        ObjectiveInputs(
            logprobs=logprobs, sampler_logprobs=tokens["sampler"], advantages=of_rows("advantage"),
            weights=of_rows("loss_weight"), response=tokens["row"], responses=12, entropy=-0.5 * logprobs,
            zero_variance=of_rows("zero_variance"), old_logprobs=tokens["old"], reference_logprobs=tokens["reference"],
        ),
        config,
    )  # fmt: skip
    # Each metric as it is logged; the advantage is that of each response.
    return numbers(metrics) | {name: batch[name].to_list() for name in ("advantage", "loss_weight")}


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_a_setting_changes_the_columns_and_metrics_that_it_should(option: str) -> None:
    setting, expected = OPTIONS[option]
    before, after = computed(BASE), computed(replace(BASE, **{GROUP_OF[type(setting)]: setting}))
    assert set(after) == set(before)
    same = {name for name in before if before[name] == pytest.approx(after[name], rel=1e-9, abs=1e-12)}
    assert set(before) - same == expected


def test_a_filter_leaves_the_advantages_of_others_as_they_are() -> None:
    rows = recorded()[0]
    filtered = replace(BASE, batch=BatchConfig(filter_zero_variance=True))
    kept, whole = (prepare(with_cohorts(rows, config.batch), config) for config in (filtered, BASE))
    others = whole.filter(pl.col("problem_id") != "b")
    assert kept["advantage"].to_list() == others["advantage"].to_list()
    assert kept["loss_weight"][0] > others["loss_weight"][0]
