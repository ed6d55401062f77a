"""Weights that were stamped as new and are not, 10 of every 100 faults: the learner finds out before it updates."""

import os
import random

import polars as pl
import pytest
import torch
from isocompute.learner import Learner, LearnerConfig, SyncError
from isocompute.rollout import Sampling, open_sampler
from transformers import LlamaForCausalLM

from .made import BASE, learnt_from, sums

pytestmark = [pytest.mark.slow("vLLM"), pytest.mark.xdist_group("vllm")]

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "28"))
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
