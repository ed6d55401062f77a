"""Weights that were stamped as new and are not, 10 of every 100 faults: the learner finds out before it updates."""

import os
import random
from contextlib import closing
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import (
    Learner,
    LearnerConfig,
    LearnerError,
    RunConfig,
    SyncError,
    UpdateSteps,
    sync_and_check,
    train,
)
from isocompute.rollout import EngineConfig, Sampling, open_sampler
from transformers import LlamaForCausalLM

from .made import BASE, learnt_from, sums

pytestmark = [pytest.mark.slow("vLLM"), pytest.mark.xdist_group("vllm")]

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "10"))
PROBLEMS = sums(3, 1).head(3)


@pytest.mark.parametrize("number", range(FAULTS * 10 // 100))
def test_weights_that_are_not_the_learners_stop_it_before_an_update(number: int) -> None:
    source = random.Random(number)
    config = LearnerConfig(learning_rate=1e-2)
    learner = Learner(BASE, config)
    sampler = open_sampler("transformers", str(BASE), Sampling(max_new_tokens=8, max_prompt_tokens=8))

    def batch(step: int) -> pl.DataFrame:
        return learnt_from(sampler.sample(PROBLEMS, samples=8, seed=number, step=step, run_id="r"), config)

    learner.update(batch(1))
    fresh = {name: tensor.clone() for name, tensor in learner.weights()}
    old = {name: tensor.clone() for name, tensor in LlamaForCausalLM.from_pretrained(BASE).state_dict().items()}
    # All of them are stale, or one layer is, or one is mangled.
    wrong = dict(fresh)
    place = source.choice([name for name in fresh if "proj" in name])
    kind = source.choice(["all stale", "one stale", "mangled"])
    if kind == "all stale":
        wrong = old
    elif kind == "one stale":
        wrong[place] = old[place]
    else:
        wrong[place] = fresh[place].flip(0)
    sampler.sync(wrong, 1)
    with pytest.raises(SyncError, match="no update was made"):
        learner.update(batch(2))
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in learner.weights())
    sampler.sync(fresh, 1)
    learner.update(batch(2))


class Alternating:
    """A sampler whose rewards are 0 and 1 in turn."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.sync, self.dtype = sampler, sampler.sync, sampler.dtype

    @property
    def weights_version(self) -> int:
        return int(self._sampler.weights_version)

    def sample(self, problems: pl.DataFrame, **given: Any) -> pl.DataFrame:
        rollouts = self._sampler.sample(problems, **given)
        rewards = pl.Series([float(row % 2) for row in range(len(rollouts))], dtype=pl.Float32)
        return pl.DataFrame(rollouts.with_columns(reward=rewards))


OTHER_ENGINE = pytest.mark.skipif(
    "ISOCOMPUTE_ROLLOUT_FAULTS" not in os.environ, reason="vLLM: python3 -m nox -s faults"
)


@pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=OTHER_ENGINE)])
def test_a_sampler_in_bfloat16_is_trained_through_its_rounding_and_stopped_by_a_mangled_tensor(kind: str) -> None:
    config = LearnerConfig(learning_rate=1e-2, sampler_dtype="bfloat16")
    learner = Learner(BASE, config)
    own: dict[str, Any] = {"engine": EngineConfig(dtype="bfloat16")} if kind == "vllm" else {"dtype": "bfloat16"}
    with closing(open_sampler(kind, str(BASE), Sampling(max_new_tokens=8, max_prompt_tokens=8), **own)) as sampler:
        assert sampler.dtype == "bfloat16"
        records: list[Any] = []
        train(
            run=RunConfig(rollouts_per_problem=8, problems_per_batch=3),
            problems=PROBLEMS,
            sampler=Alternating(sampler),
            learner=learner,
            meter=UpdateSteps(limit=3),
            watch=records.append,
        )
        assert learner.version == 3
        assert all(record.update.sync_error > 1e-4 for record in records)
        wrong = {name: tensor.flip(0) if "lm_head" in name else tensor for name, tensor in learner.weights()}
        sampler.sync(wrong, 3)
        with pytest.raises(SyncError, match="does not hold the learner's weights; no update was made"):
            learner.update(learnt_from(sampler.sample(PROBLEMS, samples=8, seed=1, step=4, run_id="r"), config))
        with pytest.raises(LearnerError, match="sampler_dtype is 'float32', and the sampler's weights are in bfloat16"):
            sync_and_check(
                learner=Learner(BASE, LearnerConfig(learning_rate=1e-2)), sampler=sampler, problems=PROBLEMS, run_id="r"
            )
