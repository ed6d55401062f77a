"""Loading a model whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from ..errors import LearnerError
from .weights import body


def load_policy(model: str | Path, *, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """Load a transformers model, in evaluation mode: dropout would make log-probabilities random.

    Args:
        model: A folder or a name, in the Hugging Face format.
        dtype: Type of the weights.

    Returns:
        The model.

    Raises:
        LearnerError: The model cannot be loaded, lacks weights (they would be random), or scales or caps its logits
            after the head, which is computed apart here.
    """
    try:
        policy, found = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LearnerError(f"the base model {model} cannot be loaded ({reason})") from None
    missing = sorted(found["missing_keys"])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise LearnerError(
            f"the base model {model} has no weights for {', '.join(missing[:3])}{more}: they would be random; "
            "save the model whole"
        )
    policy = policy.to(device).eval()
    try:
        changed = _changes_logits(policy, device)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LearnerError(
            f"a {type(policy).__name__} does not give hidden states and logits as decoder-only models do ({reason}): "
            f"the base model {model} must be one"
        ) from error
    if changed:
        raise LearnerError(
            f"the base model {model} scales or caps its logits after the output head, which the learner does not "
            "reproduce: use a model whose head gives the logits"
        )
    return policy


def reference_of(model: str | Path, *, device: str, dtype: torch.dtype) -> Any:
    """Load the base model as the reference of a KL: no gradient.

    Args:
        model: As for ``load_policy``.
        dtype: Type of the weights.

    Raises:
        LearnerError: As for ``load_policy``.
    """
    return load_policy(model, device=device, dtype=dtype).requires_grad_(False)


def _changes_logits(policy: Any, device: str) -> bool:
    """Whether the model's own logits are others than those of its head, as with Gemma 2, Cohere or Granite."""
    ids = torch.arange(2, device=device)[None]
    mask = torch.ones_like(ids)
    with torch.no_grad():
        whole = policy(input_ids=ids, attention_mask=mask, use_cache=False).logits
        hidden = body(policy)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        head = policy.get_output_embeddings()(hidden)
    return not torch.allclose(whole, head, rtol=1e-3, atol=1e-3)
