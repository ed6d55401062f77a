"""A packed forward pass gives what transformers itself gives, for every kind of model that can be packed."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.batch import read
from isocompute.learner.config import ComputeConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy import Forward, load_policy
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
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = {
    "vocab_size": 12, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
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


def rollouts(*, groups: int = 3, samples: int = 4) -> pl.DataFrame:
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, 12, 2 + g).tolist() for g in range(groups)]
    responses = [generator.integers(0, 12, 1 + (5 * i) % 7).tolist() for i in range(groups * samples)]
    return pl.DataFrame({
        "problem_id": [f"p{i // samples}" for i in range(len(responses))], "sample": list(range(len(responses))),
        "prompt_ids": [prompts[i // samples] for i in range(len(responses))], "response_ids": responses,
        "logprobs": [[0.0] * len(r) for r in responses],
    })  # fmt: skip


def of_transformers(folder: Path, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities one response at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt, response in table.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([prompt + response])).logits[0] / 0.7, -1)
        found += [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)]
    return torch.tensor(found)


@pytest.mark.parametrize("tokens", [1, 16, 9999])
@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_log_probabilities_are_those_of_transformers(saved: tuple[str, Path], layout: str, tokens: int) -> None:
    _, folder = saved
    table = rollouts()
    compute = ComputeConfig(layout=layout, micro_batch_tokens=tokens, head_chunk_tokens=5)
    forward = Forward(load_policy(folder, device="cpu"), compute, temperature=0.7, device="cpu")
    responses = read(table, vocabulary=12)
    batches = [forward.micro_batch(responses, piece) for piece in forward.pieces(responses, np.arange(len(responses)))]
    found = torch.cat([forward.logprobs(batch) for batch in batches])
    assert torch.allclose(found, of_transformers(folder, table), atol=2e-5)


def test_a_model_is_packed_where_that_means_the_same(saved: tuple[str, Path]) -> None:
    name, folder = saved
    policy = load_policy(folder, device="cpu")
    assert Forward(policy, ComputeConfig(), temperature=1.0, device="cpu").packs == (name in PACKED)


def test_a_layout_that_is_asked_for_and_impossible_is_an_error(tmp_path: Path) -> None:
    MODELS["mistral"]().save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match=r"compute.layout is packed, which this model cannot be run as \(.*window"):
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
            forward.terms(forward.hidden(batch), batch).logprobs.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
    assert torch.allclose(*gradients, atol=1e-5)
    assert gradients[0].norm() > 1
