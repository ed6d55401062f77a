"""Every family of causal models that transformers has, tiny and random: does the learner give what transformers does?

``python packages/learner/tests/families.py`` prints a table and fails where a family is silently wrong; names after it
are the families that are tried.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from isocompute.learner.config import ComputeConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy.forward import Forward
from isocompute.learner.policy.loading import load_policy
from tiny_models import of_learner, of_transformers, rollouts, tiny_config, tiny_model
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LIMITS = (4, 24)
"""Windows, chunks and the like: below what the learner's probe would show, and above it."""
SAME = 1e-3
"""Largest difference (nats) that is rounding."""
LARGEST = 20_000_000
"""Parameters of a model that is still tiny."""
LATENT = {"head_dim": 4, "qk_rope_head_dim": 4, "num_key_value_heads": 4}
HYBRID = ["sliding_attention", "full_attention"] * 2
PER_LAYER = {"vocab_size_per_layer_input": 32, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v3", "longcat_flash", "youtu"), LATENT),
    **dict.fromkeys(("axk2", "deepseek_v2", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"), LATENT),
    **{name: {"pad_token_id": 1} for name in ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm")},
    **{name: {"pad_token_id": 1} for name in ("xlm-roberta", "xlm-roberta-xl", "xlm", "modernbert-decoder")},
    **dict.fromkeys(("gemma4", "gemma4_text"), PER_LAYER),
    "gemma3n": {**PER_LAYER, "layer_types": HYBRID},
    "gemma3n_text": {**PER_LAYER, "layer_types": HYBRID},
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "codegen": {"rotary_dim": 4},
    "dots1": {"n_shared_experts": 1},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gemma3_text": {"sliding_window_pattern": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "xmod": {"default_language": "en_XX", "pad_token_id": 1},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a family needs besides the sizes of ``tiny_models``."""


def of_family(family: str, limit: int, folder: Path) -> tuple[str, float]:
    """What becomes of a family, and the largest difference from transformers (nats)."""
    settings = SETTINGS.get(family, {})
    try:
        config = tiny_config(family, limit=limit, **settings)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in transformers.AutoModelForCausalLM.from_config(config).parameters())
        if size > LARGEST:
            return f"not built: {size:,} parameters", 0.0
        tiny_model(config).save_pretrained(folder)
        table = rollouts(groups=3, samples=6, longest=53)
        expected = of_transformers(folder, table)
    except Exception as error:
        return f"not built: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}", 0.0
    try:
        compute = ComputeConfig(micro_batch_tokens=400)
        forward = Forward(load_policy(folder, device="cpu"), compute, temperature=0.7, device="cpu")
        found = of_learner(forward, table)
    except LearnerError as error:
        return f"refused: {error}".replace(str(folder), "MODEL"), 0.0
    done = ("packs" if forward._window is None else f"packs up to {forward._window}") if forward.packs else "pads"
    difference = float((found - expected).abs().nan_to_num(torch.inf).max())
    return done, difference


def main(families: list[str]) -> int:
    """Print a row for every family and limit; the number of those that are wrong."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    for family in families or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        rows = []
        for limit in LIMITS:
            with tempfile.TemporaryDirectory() as folder:
                done, difference = of_family(family, limit, Path(folder))
            bad = not difference < SAME
            wrong += bad
            rows.append(f"{done}{f', WRONG by {difference:.2g} nats' if bad else ''}")
        told = rows[0] if len(set(rows)) == 1 else "; ".join(f"{n}: {row}" for n, row in zip(LIMITS, rows, strict=True))
        print(f"{family:<28}{told}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
