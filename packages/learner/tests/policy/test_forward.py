"""A packed forward pass gives what transformers itself gives, for every kind of model that can be packed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from families import LIMITS, of_family
from isocompute.learner.config import ComputeConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy import attention
from isocompute.learner.policy.forward import Forward
from isocompute.learner.policy.loading import load_policy
from tiny_models import micro_batches, of_learner, of_transformers, rollouts, tiny_config, tiny_model

SMALL = {"vocab_size": 12, "num_hidden_layers": 2, "n_layer": 2, "max_position_embeddings": 64, "n_positions": 64}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    "mistral": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 4},
    "gpt2": {},
}


def save(name: str, folder: Path, **changed: Any) -> Path:
    tiny_model(tiny_config(name, **{**SMALL, **MODELS[name], **changed})).save_pretrained(folder)
    return folder


PACKED = ("llama", "qwen2", "qwen3", "gpt2")


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "tokens"), [("auto", 1), ("auto", 16), ("padded", 16)])
def test_log_probabilities_are_those_of_transformers(saved: tuple[str, Path], layout: str, tokens: int) -> None:
    _, folder = saved
    table = rollouts()
    compute = ComputeConfig(layout=layout, micro_batch_tokens=tokens, head_chunk_tokens=5)
    forward = Forward(load_policy(folder, device="cpu"), compute, temperature=0.7, device="cpu")
    found = of_learner(forward, table)
    assert torch.allclose(found, of_transformers(folder, table), atol=1e-4)


def test_a_model_is_packed_where_that_means_the_same_and_warned_of_elsewhere(
    saved: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    name, folder = saved
    policy = load_policy(folder, device="cpu")
    assert Forward(policy, ComputeConfig(), temperature=1.0, device="cpu").packs == (name in PACKED)
    assert ("responses are padded, since" in caplog.text) == (name not in PACKED)
    if name not in PACKED:
        with pytest.raises(LearnerError, match="layout is packed"):
            Forward(policy, ComputeConfig(layout="packed"), temperature=1.0, device="cpu")


def test_rounding_to_bfloat16_does_not_look_like_another_meaning(tmp_path: Path) -> None:
    """Eager attention and that of packed rows differ by more in bfloat16 than the probe allows in float32."""
    save("llama", tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        policy = load_policy(tmp_path, device="cpu", dtype=dtype)
        policy.set_attn_implementation("eager")
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        assert Forward(policy, ComputeConfig(precision="bfloat16"), temperature=1.0, device="cpu").packs
        for name, tensor in policy.state_dict().items():
            assert tensor.dtype == before[name].dtype
            assert torch.equal(tensor, before[name])


def test_responses_beyond_a_sliding_window_are_padded_and_the_others_packed(tmp_path: Path) -> None:
    """The window holds the probe of the layout, and not every response."""
    windowed = save("mistral", tmp_path, sliding_window=32)
    table = rollouts(groups=4, samples=12, longest=53)
    compute = ComputeConfig(micro_batch_tokens=64)
    forward = Forward(load_policy(windowed, device="cpu"), compute, temperature=0.7, device="cpu")
    batches = micro_batches(forward, table)
    assert {batch.rows is None for batch in batches} == {True, False}
    for batch in batches:
        assert batch.rows is None or max(block.shape[1] for block in batch.rows.blocks) <= 32
    found = of_learner(forward, table)
    assert torch.allclose(found, of_transformers(windowed, table), atol=1e-4)
    # A packed layout that was asked for ends there.
    packs = ComputeConfig(layout="packed")
    forward = Forward(load_policy(windowed, device="cpu"), packs, temperature=1.0, device="cpu")
    with pytest.raises(LearnerError, match=r"window of 32 .*layout"):
        [forward.logprobs(batch) for batch in micro_batches(forward, table)]


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_gradient_checkpointing_turns_no_dropout_on(tmp_path: Path, layout: str) -> None:
    """OPT drops by numbers of its layers and of its decoder, and not by modules alone."""
    drops = dict.fromkeys(("dropout", "attention_dropout", "layerdrop"), 0.3)
    tiny_model(tiny_config("opt", **SMALL, word_embed_proj_dim=32, **drops)).save_pretrained(tmp_path)
    table = rollouts()
    compute = ComputeConfig(layout=layout, gradient_checkpointing=True)
    forward = Forward(load_policy(tmp_path, device="cpu"), compute, temperature=0.7, device="cpu")
    (batch,) = micro_batches(forward, table)
    with forward.attending(batch):
        found = forward.run(batch)[1].logprobs.detach()
    assert torch.allclose(found, of_transformers(tmp_path, table), atol=1e-4)


def test_a_model_that_is_another_in_training_mode_is_not_checkpointed(tmp_path: Path) -> None:
    save("llama", tmp_path)
    policy = load_policy(tmp_path, device="cpu")
    policy.model.layers[0].register_forward_hook(lambda layer, _, found: found * 1.1 if layer.training else found)
    with pytest.raises(LearnerError, match=r"gradient_checkpointing is"):
        Forward(policy, ComputeConfig(gradient_checkpointing=True), temperature=1.0, device="cpu")


def test_keys_that_are_copied_for_each_head_give_what_shared_ones_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU in float32, where they are copied."""
    assert attention.copies_keys("cuda", torch.float32)
    assert not attention.copies_keys("cuda", torch.bfloat16)
    save("llama", tmp_path)
    forward = Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(), temperature=1.0, device="cpu")
    (batch,) = micro_batches(forward, rollouts())
    shared = forward.logprobs(batch)
    monkeypatch.setattr(attention, "copies_keys", lambda *_: True)
    assert torch.allclose(forward.logprobs(batch), shared, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    # A window, chunks, a mask of its own, and DeepSeek's sparse attention; ``nox -s families`` tries all.
    "family",
    ["mistral", "llama4_text", "doge", "glm_moe_dsa"],
)
def test_log_probabilities_are_those_of_transformers_beyond_a_window_or_a_chunk(
    family: str, limit: int, tmp_path: Path
) -> None:
    done, difference = of_family(family, limit, tmp_path)
    assert done.startswith(("packs", "pads"))
    assert difference < 1e-4


@pytest.mark.slow
def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    """As an embedding model made of a causal one, which transformers loads as a causal one."""
    tiny_model(tiny_config("llama", is_causal=False)).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="what follows"):
        Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(layout="padded"), temperature=1.0, device="cpu")
