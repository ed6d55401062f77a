"""The four figures by which a sampler is judged, and a sampler in bfloat16 that only the maximum would refuse."""

import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner import (
    Learner,
    LearnerConfig,
    SyncConfig,
    SyncError,
    prepare,
    with_cohorts,
)
from isocompute.learner.records.steps import Agreement
from isocompute.learner.updates.sync import agreement, check_sync, compare
from small_run import recorded, scored
from transformers import LlamaForCausalLM

FLOAT32 = LearnerConfig(learning_rate=1e-2)
BFLOAT16 = replace(FLOAT32, sampler_dtype="bfloat16")
"""Its tolerances follow the type: ``sync: auto``."""
TIGHT = replace(BFLOAT16, sync=SyncConfig(mean=0.03, k3=0.003, quantile=0.2))
PAIRS = st.lists(st.tuples(st.floats(-9, 0, width=32), st.floats(-9, 0, width=32)), min_size=1, max_size=300)


def alone(tensor: torch.Tensor) -> None:
    """One rank."""


def compared(pairs: list[tuple[float, float]]) -> torch.Tensor:
    return compare(*torch.tensor(pairs).T)


def figures(pairs: list[tuple[float, float]]) -> Agreement:
    return agreement(compared(pairs), step=1, largest=alone, total=alone)


@pytest.mark.slow
@given(PAIRS)
@settings(max_examples=50)
def test_the_figures_are_their_formulas(pairs: list[tuple[float, float]]) -> None:
    found = figures(pairs)
    differences = sorted(abs(learner - sampler) for learner, sampler in pairs)
    k3 = [math.exp(learner - sampler) - 1 - (learner - sampler) for learner, sampler in pairs]
    assert found.maximum == pytest.approx(differences[-1], rel=1e-5, abs=1e-6)
    assert found.mean == pytest.approx(sum(differences) / len(pairs), rel=1e-5, abs=1e-6)
    assert found.k3 == pytest.approx(sum(k3) / len(pairs), rel=1e-5, abs=1e-5)
    assert sum(d <= found.quantile * (1 + 1e-5) + 1e-6 for d in differences) >= 0.99 * len(pairs)
    assert min(abs(d - found.quantile) for d in differences) < 1e-5


def test_a_log_probability_of_the_sampler_that_is_not_finite_is_no_agreement() -> None:
    for value in (math.nan, -math.inf, math.inf):
        found = figures([(-1.0, -1.0), (-1.0, value)])
        assert found.maximum == found.mean == found.quantile == math.inf
        for off in (FLOAT32, replace(FLOAT32, sync=SyncConfig(mean=1e9)), BFLOAT16):
            with pytest.raises(SyncError):
                check_sync(found, off, step=1)


def test_the_message_names_all_four_figures_and_those_that_are_above() -> None:
    found = Agreement(maximum=0.5, mean=0.02, k3=0.001, quantile=0.3)
    config = replace(TIGHT, sync=replace(TIGHT.sync, tolerance=0.4, k3=None))
    named = r"step 7 .*above sync.tolerance = 0.4.*0.02 \(sync.mean.*above sync.quantile = 0.2.*sync.k3 is off"
    with pytest.raises(SyncError, match=named):
        check_sync(found, config, step=7)
    check_sync(found, replace(config, sync=replace(config.sync, tolerance=0.6, quantile=0.4)), step=7)


def test_ranks_together_have_the_figures_of_all_tokens() -> None:
    """Sums and counts, not means of means; and the quantile of all is never above the largest of the ranks."""
    shares = [[(-1.0, -1.0 - 0.01 * i) for i in range(150)], [(-2.0, -2.5)] * 3, []]
    parts = [compared(share) if share else torch.zeros(3, 0, dtype=torch.float64) for share in shares]
    sent: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for part in parts:
        keep = [lambda tensor, kept=kept: kept.append(tensor.clone()) for kept in sent]
        agreement(part, step=1, largest=keep[0], total=keep[1])

    def largest(tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(sent[0]).amax(0))

    def total(tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(sent[1]).sum(0))

    whole = figures([pair for share in shares for pair in share])
    for part in parts:
        found = agreement(part, step=1, largest=largest, total=total)
        assert (found.maximum, found.mean, found.k3) == pytest.approx((whole.maximum, whole.mean, whole.k3))
        assert found.quantile >= whole.quantile


def in_bfloat16(weights: dict[str, torch.Tensor], learner: Learner, rows: pl.DataFrame) -> pl.DataFrame:
    """What a sampler answers that holds weights rounded."""
    sampler = LlamaForCausalLM(learner.policy.config).eval()
    sampler.load_state_dict(weights)
    return prepare(with_cohorts(scored(sampler.to(torch.bfloat16), rows), FLOAT32.batch), FLOAT32)


def test_a_healthy_sampler_in_bfloat16_passes_its_tolerances_and_a_stale_one_does_not(model: Path) -> None:
    learner = Learner(model, BFLOAT16)
    rollouts = in_bfloat16(dict(learner.weights()), learner, recorded(groups=16, n=16))
    with pytest.raises(SyncError, match=r"sync.tolerance = 0.0001"):
        Learner(model, FLOAT32).update(rollouts)
    report = learner.update(rollouts)
    assert 1e-3 < report.sync_mean < report.sync_quantile < report.sync_error
    assert 0 < report.sync_k3 < BFLOAT16.tolerances.k3
    # The sampler kept the weights of before that one update: stamped as new, they are found out.
    before = {name: tensor.clone() for name, tensor in learner.weights()}
    with pytest.raises(SyncError, match=r"mean .*quantile .*k3"):
        learner.update(rollouts.with_columns(weights_version=pl.lit(1, dtype=pl.Int64)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.weights())


def test_rounding_is_named_where_mean_and_k3_are_of_its_size_and_only_there() -> None:
    rounded = Agreement(maximum=0.3, mean=0.02, k3=0.001, quantile=0.1)
    with pytest.raises(SyncError, match=r"size of rounding in 16 bits.* sampler_dtype, which is float32, must be"):
        check_sync(rounded, FLOAT32, step=1)
    with pytest.raises(SyncError, match=r"size of rounding in 16 bits.* sync\.quantile must be larger"):
        check_sync(replace(rounded, quantile=0.5), BFLOAT16, step=1)
    for other in (replace(rounded, mean=0.2), replace(rounded, k3=0.1)):
        for config in (FLOAT32, BFLOAT16):
            with pytest.raises(SyncError) as refused:
                check_sync(other, config, step=1)
            assert "rounding" not in str(refused.value)


def test_a_tensor_that_a_sampler_in_bfloat16_took_wrongly_stops_the_run(model: Path) -> None:
    learner, rows = Learner(model, BFLOAT16), recorded(groups=4, n=8)
    right = {name: tensor.clone() for name, tensor in learner.weights()}
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"):
        given = in_bfloat16({**right, name: right[name].flip(0)}, learner, rows)
        with pytest.raises(SyncError, match="does not hold the learner's weights"):
            learner.update(given)
    assert learner.version == 0
