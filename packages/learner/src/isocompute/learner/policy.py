"""A causal language model as the learner sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from .batch import MicroBatch
from .errors import LearnerError
from .losses import TokenTerms, token_terms


def load_policy(model: str | Path, *, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """Load a transformers model.

    Raises:
        LearnerError: The model cannot be loaded, or ties its embeddings (a sampler may then keep its old
            output head after a sync).
    """
    try:
        policy = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LearnerError(f"the base model {model} cannot be loaded ({reason})") from None
    if policy.config.get_text_config().tie_word_embeddings:
        raise LearnerError(
            f"the base model {model} ties its embeddings, and a sampler may keep the old output head after a sync: "
            "save it with tie_word_embeddings=false"
        )
    # Dropout would make log-probabilities random; nothing is trained with it.
    return policy.to(device).eval()


def terms(policy: Any, batch: MicroBatch, *, temperature: float) -> TokenTerms:
    """Log-probability and entropy of every response token; logits are made for these alone."""
    hidden = policy.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
    ).last_hidden_state
    logits = policy.get_output_embeddings()(hidden[batch.predicts])
    return token_terms(logits, batch.tokens, temperature=temperature)
