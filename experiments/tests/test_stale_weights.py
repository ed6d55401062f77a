"""Weights that were stamped as new and are not, 10 of every 100 faults: the learner finds out before it updates."""

import os
import random
from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner import Learner, LearnerConfig, SyncError, prepare, with_cohorts
from isocompute.rollout import Sampling, open_sampler
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytestmark = [pytest.mark.slow("vLLM"), pytest.mark.xdist_group("vllm")]

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "28"))
PROBLEMS = pl.DataFrame(
    {"problem_id": ["a", "b", "c"], "prompt": ["1+1=", "2+2=", "3-1="], "answer": ["2", "4", "2"], "verifier": "exact",
     "source": "s", "split": "train"}
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {token: i for i, token in enumerate(("<pad>", "<eos>", *"0123456789+-="))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3, eos_token_id=1, pad_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("number", range(FAULTS * 10 // 100))
def test_weights_that_are_not_the_learners_stop_it_before_an_update(number: int, model: Path) -> None:
    source = random.Random(number)
    config = LearnerConfig(learning_rate=1e-2)
    learner = Learner(model, config)
    sampler = open_sampler("transformers", str(model), Sampling(max_new_tokens=8, max_prompt_tokens=8))

    def batch(step: int) -> pl.DataFrame:
        rollouts = sampler.sample(PROBLEMS, samples=8, seed=number, step=step, run_id="r")
        # Rewards of a random model are rarely both 0 and 1.
        rewards = pl.Series([float(row % 2) for row in range(len(rollouts))], dtype=pl.Float32)
        return prepare(with_cohorts(rollouts.with_columns(reward=rewards), config.batch), config)

    learner.update(batch(1))
    fresh = {name: tensor.clone() for name, tensor in learner.weights()}
    old = {name: tensor.clone() for name, tensor in LlamaForCausalLM.from_pretrained(model).state_dict().items()}
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
