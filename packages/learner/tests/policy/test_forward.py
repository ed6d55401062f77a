"""A packed forward pass gives what transformers itself gives, for every kind of model that can be packed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from isocompute.learner.batch.responses import read
from isocompute.learner.config import ComputeConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy import attention
from isocompute.learner.policy.forward import Forward
from isocompute.learner.policy.loading import at_least_float32, load_policy, reference_of
from tiny_models import micro_batches, of_learner, of_transformers, rollouts, tiny_config, tiny_model
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = {
    "vocab_size": 12,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}

MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=1, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=4)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, num_key_value_heads=2, head_dim=8, sliding_window=4)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=64, n_embd=32, n_layer=2, n_head=4)),
}

PACKED = ("llama", "qwen2", "qwen3", "gpt2")


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A random model of each kind."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp(request.param)
    MODELS[request.param]().save_pretrained(folder)
    return request.param, folder


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 16, 9999])
@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_log_probabilities_are_those_of_transformers(saved: tuple[str, Path], layout: str, tokens: int) -> None:
    _, folder = saved
    table = rollouts()
    compute = ComputeConfig(layout=layout, micro_batch_tokens=tokens, head_chunk_tokens=5)
    forward = Forward(load_policy(folder, device="cpu"), compute, temperature=0.7, device="cpu")
    found = of_learner(forward, table)
    assert torch.allclose(found, of_transformers(folder, table), atol=2e-5)


def test_a_model_is_packed_where_that_means_the_same_and_warned_of_elsewhere(
    saved: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    name, folder = saved
    policy = load_policy(folder, device="cpu")
    assert Forward(policy, ComputeConfig(), temperature=1.0, device="cpu").packs == (name in PACKED)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [message.startswith("responses are padded, since") for message in warned] == [True] * (name not in PACKED)


def test_a_layout_that_is_asked_for_and_impossible_is_an_error(tmp_path: Path) -> None:
    MODELS["mistral"]().save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match=r"layout is packed.*window"):
        Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(layout="packed"), temperature=1.0, device="cpu")


def test_a_packed_policy_still_answers_as_transformers_does(tmp_path: Path) -> None:
    """Padded and unpadded inputs that are not packed, as whoever holds the policy may give it."""
    MODELS["llama"]().save_pretrained(tmp_path)
    policy = load_policy(tmp_path, device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert Forward(policy, ComputeConfig(), temperature=1.0, device="cpu").packs
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad():
        assert torch.allclose(policy(ids).logits, plain(ids).logits, atol=1e-6)
        left = mask.flip(1)
        assert torch.allclose(
            policy(ids, attention_mask=left).logits, plain(ids, attention_mask=left).logits, atol=1e-6
        )


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path, layout: str) -> None:
    MODELS["qwen2"]().save_pretrained(tmp_path)
    gradients = []
    for checkpointing in (False, True):
        policy = load_policy(tmp_path, device="cpu")
        compute = ComputeConfig(layout=layout, gradient_checkpointing=checkpointing)
        forward = Forward(policy, compute, temperature=1.0, device="cpu")
        responses = read(rollouts(), vocabulary=12)
        (piece,) = forward.pieces(responses, np.arange(len(responses)))
        batch = forward.micro_batch(responses, piece)
        with forward.attending(batch):
            forward.run(batch)[1].logprobs.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
    assert torch.allclose(*gradients, atol=1e-5)
    assert gradients[0].norm() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_to_bfloat16_does_not_look_like_another_meaning(tmp_path: Path, dtype: torch.dtype) -> None:
    """Eager attention and that of packed rows differ by more in bfloat16 than the probe allows in float32."""
    MODELS["llama"]().save_pretrained(tmp_path)
    policy = load_policy(tmp_path, device="cpu", dtype=dtype)
    policy.set_attn_implementation("eager")
    before = {name: tensor.clone() for name, tensor in (*policy.named_parameters(), *policy.named_buffers())}
    assert Forward(policy, ComputeConfig(precision="bfloat16"), temperature=1.0, device="cpu").packs
    for name, tensor in (*policy.named_parameters(), *policy.named_buffers()):
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_a_model_in_bfloat16_is_tried_with_one_layer_in_float32_at_a_time(tmp_path: Path) -> None:
    MODELS["llama"]().save_pretrained(tmp_path)
    policy = load_policy(tmp_path, device="cpu", dtype=torch.bfloat16)
    layers = list(policy.model.layers)
    seen: list[list[torch.dtype]] = []
    for layer in layers:
        layer.register_forward_hook(lambda *_: seen.append([next(each.parameters()).dtype for each in layers]))
    ids = torch.arange(4)[None]
    with torch.no_grad(), at_least_float32(policy):
        found = policy(ids).logits
    assert len(seen) == len(layers) > 1
    for number, dtypes in enumerate(seen):
        assert dtypes == [torch.float32 if place == number else torch.bfloat16 for place in range(len(layers))]
    assert torch.equal(found, policy.float()(ids).logits)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_reference_is_run_as_its_policy_is(tmp_path: Path, layout: str) -> None:
    MODELS["llama"]().save_pretrained(tmp_path)
    compute = ComputeConfig(layout=layout, precision="bfloat16")
    forward = Forward(load_policy(tmp_path, device="cpu"), compute, temperature=1.0, device="cpu")
    base = reference_of(tmp_path, device="cpu", dtype=torch.bfloat16)
    # Alone it would choose packed.
    reference = Forward(base, ComputeConfig(precision="bfloat16"), temperature=1.0, device="cpu", like=forward)
    assert reference.packs == forward.packs == (layout == "packed")
    for batch in micro_batches(forward, rollouts()):
        assert torch.allclose(reference.logprobs(batch), forward.logprobs(batch), atol=0.2)


def test_a_packed_micro_batch_is_refused_by_a_model_that_is_padded(tmp_path: Path) -> None:
    MODELS["llama"]().save_pretrained(tmp_path)
    packed, padded = (
        Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(layout=layout), temperature=1.0, device="cpu")
        for layout in ("packed", "padded")
    )
    (batch,) = micro_batches(packed, rollouts())
    with pytest.raises(LearnerError, match="packed micro-batch"):
        padded.logprobs(batch)


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    """A model whose window holds the probe of the layout, and not every response."""
    torch.manual_seed(1)
    MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=32)).save_pretrained(tmp_path)
    return tmp_path


def test_responses_beyond_a_sliding_window_are_padded_and_the_others_packed(windowed: Path) -> None:
    table = rollouts(groups=4, samples=12, longest=53)
    compute = ComputeConfig(micro_batch_tokens=64)
    forward = Forward(load_policy(windowed, device="cpu"), compute, temperature=0.7, device="cpu")
    batches = micro_batches(forward, table)
    assert {batch.rows is None for batch in batches} == {True, False}
    for batch in batches:
        assert batch.rows is None or max(block.shape[1] for block in batch.rows.blocks) <= 32
    found = of_learner(forward, table)
    assert torch.allclose(found, of_transformers(windowed, table), atol=2e-5)


def test_a_packed_layout_that_was_asked_for_ends_at_a_response_beyond_the_window(windowed: Path) -> None:
    forward = Forward(
        load_policy(windowed, device="cpu"), ComputeConfig(layout="packed"), temperature=1.0, device="cpu"
    )
    batches = micro_batches(forward, rollouts(longest=53))
    with pytest.raises(LearnerError, match=r"window of 32 .*layout"):
        [forward.logprobs(batch) for batch in batches]


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_gradient_checkpointing_turns_no_dropout_on(tmp_path: Path, layout: str) -> None:
    """OPT drops by numbers of its layers and of its decoder, and not by modules alone."""
    torch.manual_seed(1)
    config = OPTConfig(
        vocab_size=12,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.3,
        attention_dropout=0.3,
        layerdrop=0.3,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        init_std=0.3,
    )
    OPTForCausalLM(config).save_pretrained(tmp_path)
    table = rollouts()
    compute = ComputeConfig(layout=layout, gradient_checkpointing=True)
    forward = Forward(load_policy(tmp_path, device="cpu"), compute, temperature=0.7, device="cpu")
    (batch,) = micro_batches(forward, table)
    with forward.attending(batch):
        found = forward.run(batch)[1].logprobs.detach()
    assert torch.allclose(found, of_transformers(tmp_path, table), atol=2e-5)


def test_a_model_that_is_another_in_training_mode_is_not_checkpointed(tmp_path: Path) -> None:
    MODELS["llama"]().save_pretrained(tmp_path)
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
    MODELS["llama"]().save_pretrained(tmp_path)
    forward = Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(), temperature=1.0, device="cpu")
    (batch,) = micro_batches(forward, rollouts())
    shared = forward.logprobs(batch)
    monkeypatch.setattr(attention, "copies_keys", lambda *_: True)
    assert torch.allclose(forward.logprobs(batch), shared, atol=1e-5)


def test_under_autocast_keys_are_shared_though_rotation_gives_them_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2.5-7B has 7 query heads to a key: a copy for each would be 7 times its keys and values."""
    MODELS["llama"]().save_pretrained(tmp_path)
    config = ComputeConfig(precision="bfloat16")
    forward = Forward(load_policy(tmp_path, device="cpu"), config, temperature=1.0, device="cpu")
    asked: list[bool] = []
    copies = attention.copies_keys
    monkeypatch.setattr(attention, "copies_keys", lambda _, dtype: asked.append(copies("cuda", dtype)))
    (batch,) = micro_batches(forward, rollouts())
    forward.logprobs(batch)
    assert asked == [False, False]


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_model_whose_logits_are_capped_is_refused(tmp_path: Path) -> None:
    tiny_model(tiny_config("gemma2")).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="caps its logits"):
        load_policy(tmp_path, device="cpu")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    """As an embedding model made of a causal one, which transformers loads as a causal one."""
    tiny_model(tiny_config("llama", is_causal=False)).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="what follows"):
        Forward(load_policy(tmp_path, device="cpu"), ComputeConfig(layout="padded"), temperature=1.0, device="cpu")
