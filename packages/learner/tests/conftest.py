"""A tiny random model and rollouts recorded from it."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.advantages import with_advantages
from isocompute.learner.config import LearnerConfig
from isocompute.learner.learner import Learner
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Llama of two layers with untied embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def record(model: Path, *, groups: int = 4, n: int = 4, version: int = 0, seed: int = 0) -> pl.DataFrame:
    """Rollouts with random tokens and rewards, and the log-probabilities that the model gives them."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 12, rng.integers(2, 6)).tolist() for _ in range(groups)]
    rows = [
        {
            "run_id": "r", "step": 1, "phase": "train", "problem_id": f"p{g}", "sample": s,
            "prompt_ids": prompts[g], "response_ids": rng.integers(0, 12, rng.integers(1, 8)).tolist(),
            "reward": float(s < 1 + g % 2), "finish_reason": "stop", "weights_version": version,
        }
        for g in range(groups) for s in range(n)
    ]  # fmt: skip
    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            scores = torch.log_softmax(policy(ids).logits[0], -1)
        begin = len(row["prompt_ids"])
        row["logprobs"] = [float(scores[begin + i - 1, t]) for i, t in enumerate(row["response_ids"])]
    return with_advantages(pl.DataFrame(rows), filter_zero_variance=False)


@pytest.fixture
def rollouts(model: Path) -> pl.DataFrame:
    """Four groups of four."""
    return record(model)


@pytest.fixture
def config() -> LearnerConfig:
    """All terms of the objective on."""
    return LearnerConfig(learning_rate=1e-2, kl_coefficient=0.01, entropy_coefficient=0.01)


@pytest.fixture
def learner(model: Path, config: LearnerConfig) -> Learner:
    """A learner at version 0."""
    return Learner(model, config)
