"""A model that attends to less than all that came before, or scales by place, gives what transformers itself gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from forwards import micro_batches, of_learner, of_transformers, rollouts
from isocompute.learner.config import ComputeConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy.forward import Forward
from isocompute.learner.policy.loading import load_policy
from tiny_models import tiny_config, tiny_model

pytestmark = pytest.mark.slow("models of many families")

FAMILIES: dict[str, dict[str, Any]] = {
    "phimoe": {},
    "qwen2_moe": {},
    "doge": {},
    "llama4_text": {},
    "mistral": {},
    "gemma3_text": {"sliding_window_pattern": 2},
    "gpt_oss": {},
    # DeepSeek's sparse attention.
    "glm_moe_dsa": {"head_dim": 4, "num_key_value_heads": 4},
}


@pytest.mark.parametrize("limit", [4, 24])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_transformers_beyond_a_window_or_a_chunk(
    family: str, limit: int, tmp_path: Path
) -> None:
    """The limit is below, or above, what a few short responses would show; the responses are on both sides of it."""
    tiny_model(tiny_config(family, limit=limit, **FAMILIES[family])).save_pretrained(tmp_path)
    table = rollouts(groups=3, samples=6, longest=53)
    forward = Forward(
        load_policy(tmp_path, device="cpu"), ComputeConfig(micro_batch_tokens=400), temperature=0.7, device="cpu"
    )
    found = of_learner(forward, table)
    assert torch.allclose(found, of_transformers(tmp_path, table), atol=1e-4)


def test_a_model_whose_logits_are_capped_is_refused(tmp_path: Path) -> None:
    tiny_model(tiny_config("gemma2")).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="caps its logits"):
        load_policy(tmp_path, device="cpu")


@pytest.mark.parametrize("family", ["phimoe", "qwen2_moe", "mistral", "llama4_text"])
def test_responses_within_a_window_are_packed_still(family: str, tmp_path: Path) -> None:
    settings = {"attn_temperature_tuning": False} if family == "llama4_text" else {}
    tiny_model(tiny_config(family, limit=24, **settings)).save_pretrained(tmp_path)
    forward = Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(), temperature=1.0, device="cpu")
    batches = micro_batches(forward, rollouts(groups=3, samples=6, longest=53))
    packed = [max(block.shape[1] for block in batch.rows.blocks) for batch in batches if batch.rows is not None]
    assert packed
    assert max(packed) <= 24
    assert any(batch.rows is None for batch in batches)


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    """As an embedding model made of a causal one, which transformers loads as a causal one."""
    tiny_model(tiny_config("llama", is_causal=False)).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="what follows"):
        Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(layout="padded"), temperature=1.0, device="cpu")
