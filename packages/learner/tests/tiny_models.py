"""Tiny random models of any family that transformers knows, and the log-probabilities of a few responses."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from isocompute.learner.batch.packing import MicroBatch
from isocompute.learner.batch.responses import read
from isocompute.learner.config import BatchConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.policy.forward import Forward
from small_run import scored
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

NAMES = {
    32: "vocab_size hidden_size n_embd d_model",
    48: "intermediate_size ffn_dim d_ff decoder_ffn_dim encoder_ffn_dim",
    4: "num_hidden_layers num_attention_heads n_layer n_head n_layers n_heads decoder_layers decoder_attention_heads "
    "encoder_attention_heads num_experts num_local_experts n_routed_experts qk_rope_head_dim qk_nope_head_dim "
    "linear_num_value_heads",
    256: "max_position_embeddings n_positions",
    16: "moe_intermediate_size kv_lora_rank q_lora_rank",
    8: "head_dim v_head_dim mamba_n_heads mamba_d_head mamba_d_state mamba_chunk_size mamba_num_heads "
    "mamba_head_dim state_size ssm_state_size chunk_size linear_key_head_dim linear_value_head_dim linear_head_dim",
    2: "num_key_value_heads num_experts_per_tok linear_num_key_heads",
    1: "encoder_layers n_group topk_group mamba_n_groups eos_token_id",
    64: "mamba_d_ssm",
    0: "bos_token_id",
}
SMALL: dict[str, Any] = {name: size for size, names in NAMES.items() for name in names.split()}
SMALL |= {"pad_token_id": None, "dropout": 0.0}
"""Sizes, by every name that families have for them; a family takes those that it knows."""

TWO_LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
TWO_LAYERS |= {"vocab_size": 12, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
TWO_LAYERS |= {"initializer_range": 0.3}
"""Sizes of the model that is trained in most tests."""

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
    sizes = {"problems": 1, "samples": samples, "lengths": (1, longest), "vocabulary": 12}
    parts = [unsampled([3, g], prompt=2 + g, **sizes).with_columns(problem_id=pl.lit(f"p{g}")) for g in range(groups)]
    return pl.concat(parts)


def unsampled(
    seed: Any, *, problems: int, samples: int, prompt: int, lengths: tuple[int, int], vocabulary: int, version: int = 0
) -> pl.DataFrame:
    """Responses that no model gave, of so many tokens or between, to prompts of one length."""
    random = np.random.default_rng(seed)
    rows = []
    for problem in range(problems):
        asked = random.integers(0, vocabulary, prompt).tolist()
        for sample in range(samples):
            length = int(random.integers(lengths[0], lengths[1] + 1))
            rows.append(
                {
                    "problem_id": f"p{problem}",
                    "sample": sample,
                    "prompt_ids": asked,
                    "response_ids": random.integers(0, vocabulary, length).tolist(),
                    "logprobs": [-6.0] * length,
                    "reward": float(sample % 3 == 0),
                    "finish_reason": "stop",
                    "weights_version": version,
                }
            )
    return with_cohorts(pl.DataFrame(rows), BatchConfig())


def of_transformers(folder: Path, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities one response at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return torch.tensor(scored(model, table, temperature=0.7)["logprobs"].explode().to_list())


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
