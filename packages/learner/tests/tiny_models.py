"""Tiny random models of any family that transformers knows, and the log-probabilities of a few responses."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from isocompute.learner.batch.packing import MicroBatch
from isocompute.learner.batch.responses import read
from isocompute.learner.policy.forward import Forward
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "n_positions": 256,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "d_model": 32,
    "n_layers": 4,
    "n_heads": 4,
    "ffn_dim": 48,
    "d_ff": 48,
    "decoder_layers": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "dropout": 0.0,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "state_size": 8,
    "ssm_state_size": 8,
    "chunk_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_head_dim": 8,
}
"""Sizes, by every name that families have for them; a family takes those that it knows."""

LIMITS = (
    "sliding_window",
    "attention_chunk_size",
    "keep_window_size",
    "floor_scale",
    "index_topk",
    "window_size",
    "attention_window_size",
    "log_scaling_n_floor",
    "original_max_position_embeddings",
)
"""Numbers of tokens beyond which some family attends to less, or otherwise."""


def tiny_config(family: str, *, limit: int | None = None, **more: Any) -> Any:
    """The configuration of a family with every size small.

    Args:
        family: Its ``model_type``.
        limit: What every one of ``LIMITS`` is set to that the family has.
        more: Settings that win over these; one that is None is left at the family's default.
    """
    default = CONFIG_MAPPING[family]().get_text_config()
    limits = (
        {} if limit is None else {**dict.fromkeys(LIMITS, limit), "use_sliding_window": True, "max_window_layers": 1}
    )
    chosen = {name: value for name, value in {**SMALL, **limits}.items() if _takes(default, name)} | more
    return type(default)(**chosen)


def _takes(default: Any, name: str) -> bool:
    of_class = getattr(type(default), name, None)
    if isinstance(of_class, property) and of_class.fset is None:
        return False
    try:
        return hasattr(default, name)
    except Exception:
        # Some raise where layers differ in it.
        return True


def tiny_model(config: Any, *, seed: int = 0) -> Any:
    """A model of random weights: also those that are 0 or 1 at first, as a bias or a norm's, and then do nothing."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim < 2:
                weight += 0.2 * torch.randn_like(weight)
            else:
                weight.normal_(std=1.5 * weight.shape[-1] ** -0.5)
    return model


def with_tokenizer(folder: Path) -> Path:
    """Save a tiny model whose tokens are the characters of sums, and return its folder."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = {word: place for place, word in enumerate(["<end>", *" 0123456789+="])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tiny_model(LlamaConfig(vocab_size=len(words), eos_token_id=0, bos_token_id=None, **sizes)).save_pretrained(folder)
    return folder


def rollouts(*, groups: int = 3, samples: int = 4, longest: int = 7) -> pl.DataFrame:
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, 12, 2 + g).tolist() for g in range(groups)]
    responses = [generator.integers(0, 12, 1 + (5 * i) % longest).tolist() for i in range(groups * samples)]
    return pl.DataFrame(
        {
            "problem_id": [f"p{i // samples}" for i in range(len(responses))],
            "sample": list(range(len(responses))),
            "prompt_ids": [prompts[i // samples] for i in range(len(responses))],
            "response_ids": responses,
            "logprobs": [[0.0] * len(r) for r in responses],
        }
    )


def of_transformers(folder: Path, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities one response at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt, response in table.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([prompt + response])).logits[0] / 0.7, -1)
        found += [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)]
    return torch.tensor(found)


def of_learner(forward: Forward, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities by the learner's way, response by response in the order of the table."""
    responses = read(table, vocabulary=int(1e9))
    found = torch.zeros(int(responses.counts.sum()))
    for piece in forward.pieces(responses, np.arange(len(responses))):
        found[responses.tokens_of(piece.rows)] = forward.logprobs(forward.micro_batch(responses, piece))
    return found


def micro_batches(forward: Forward, table: pl.DataFrame) -> list[MicroBatch]:
    responses = read(table, vocabulary=12)
    return [forward.micro_batch(responses, piece) for piece in forward.pieces(responses, np.arange(len(responses)))]
