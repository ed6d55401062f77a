"""Loading a model with all of its weights, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from ..errors import LearnerError
from ..saving.stored import stored_tensors
from ..settings.adapter import AdapterConfig
from .adapter import adapt, begin
from .sharding import Sharding, copy_into, inside, own, rows_of, shard
from .weights import body, tensors

logger = logging.getLogger(__name__)


def load_policy(
    model: str | Path,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    sharding: Sharding | None = None,
    adapter: AdapterConfig | None = None,
) -> Any:
    """Load a transformers model, in evaluation mode: dropout would make log-probabilities random.

    Args:
        model: A folder or a name, in the Hugging Face format.
        sharding: The ranks that share the model, of which each reads its part and all call this; None: it is whole.
        adapter: What is learnt in place of the weights, which are frozen then; in float32 or better. None: nothing.

    Returns:
        The model.

    Raises:
        LearnerError: The model cannot be loaded, lacks weights (they would be random), or scales or caps its logits
            after the head, which is computed apart here; or the adapter does not fit it.
    """
    if sharding is None:
        policy = _whole(model, device, dtype)
        policy = policy if adapter is None else adapt(policy, adapter)
    else:
        policy = _shared(model, device, dtype, sharding, adapter)
    begin(policy)
    policy.eval()
    try:
        with torch.no_grad():
            changed = inside(policy, partial(_changes_logits, device=device))
    except Exception as error:
        raise LearnerError(
            f"a {type(policy).__name__} does not give hidden states and logits as decoder-only models do "
            f"({_reason(error)}): the base model {model} must be one"
        ) from error
    if changed:
        raise LearnerError(
            f"the base model {model} scales or caps its logits after the output head, which the learner does not "
            "reproduce: use a model whose head gives the logits"
        )
    return policy


def reference_of(model: str | Path, *, device: str, dtype: torch.dtype, sharding: Sharding | None = None) -> Any:
    """Load the base model as the reference of a KL: no gradient.

    Args:
        model: As for ``load_policy``.
        sharding: As for ``load_policy``.

    Raises:
        LearnerError: As for ``load_policy``.
    """
    return load_policy(model, device=device, dtype=dtype, sharding=sharding).requires_grad_(False)


def _whole(model: str | Path, device: str, dtype: torch.dtype) -> Any:
    with _refused(model):
        policy, found = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype, output_loading_info=True)
    _refuse_missing(model, found["missing_keys"])
    return policy.to(device)


def _shared(
    model: str | Path, device: str, dtype: torch.dtype, sharding: Sharding, adapter: AdapterConfig | None
) -> Any:
    """The model shared out, without ever being whole on a rank where its files hold its tensors as they are."""
    with _refused(model):
        with _parameters_on_meta():
            policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)), dtype=dtype)
        stored = stored_tensors(str(model), policy)
    if stored is not None:
        _refuse_missing(model, tensors(policy).keys() - stored.keys())
    given: Mapping[str, torch.Tensor] = tensors(_whole(model, "cpu", dtype)) if stored is None else {}
    if stored is None:
        logger.warning("every rank loads %s whole before it keeps its share: its files must be converted", model)
    policy = policy if adapter is None else adapt(policy, adapter)
    computed = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    policy = shard(policy, sharding).to_empty(device=device)
    policy.tie_weights()
    for name, buffer in policy.named_buffers():
        buffer.copy_(computed[name])
    for name, tensor in tensors(policy).items():
        rows = rows_of(tensor)
        if stored is None:
            copy_into(tensor, given[name])
        else:
            own(tensor).copy_(stored[name] if rows is None else stored.rows(name, rows))
    return policy


@contextmanager
def _refused(model: str | Path) -> Iterator[None]:
    """Say of whatever goes wrong that the model cannot be loaded."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise LearnerError(f"the base model {model} cannot be loaded ({_reason(error)})") from None


def _refuse_missing(model: str | Path, names: Collection[str]) -> None:
    missing = sorted(names)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise LearnerError(
            f"the base model {model} has no weights for {', '.join(missing[:3])}{more}: they would be random; "
            "save the model whole"
        )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Keep parameters that are made meanwhile without memory. Buffers are real: some are computed, and in no file."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        # One that is tied to another stays the same.
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = without_memory
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _changes_logits(policy: Any, device: str) -> bool:
    """Whether the model's own logits are others than those of its head, as with Gemma 2, Cohere or Granite."""
    ids = torch.arange(2, device=device)[None]
    mask = torch.ones_like(ids)
    # Not the call of a module, with which the forward pass that this is part of would end.
    whole = policy.forward(input_ids=ids, attention_mask=mask, use_cache=False).logits
    hidden = body(policy)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    head = policy.get_output_embeddings()(hidden)
    return not torch.allclose(whole, head, rtol=1e-3, atol=1e-3)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
