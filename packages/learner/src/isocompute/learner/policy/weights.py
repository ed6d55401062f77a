"""A policy's tensors by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .sharding import copy_into, let_go


def vocabulary(policy: Any) -> int:
    """Number of tokens that the policy knows.

    Args:
        policy: From ``load_policy``.
    """
    return int(policy.get_input_embeddings().weight.shape[0])


def body(policy: Any) -> Any:
    """The part of a policy that gives hidden states, without its head."""
    # Llama 4's class names another attribute than it has, and is its own base model then.
    return policy.model if policy.base_model is policy else policy.base_model


def tensors(policy: Any) -> dict[str, torch.Tensor]:
    """The policy's tensors by their Hugging Face names, as a saved model has them: one that is tied to another once.

    A model that ties its embeddings has ``model.embed_tokens.weight`` and no ``lm_head.weight``.

    Args:
        policy: From ``load_policy``.
    """
    let_go(policy)
    # Parameters and buffers with several names are listed under the first.
    names = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())}
    return {name: tensor for name, tensor in policy.state_dict().items() if name in names}


def load_tensors(policy: Any, given: Mapping[str, torch.Tensor]) -> None:
    """Give a policy other values, which are copied.

    Args:
        policy: From ``load_policy``.
        given: Its ``tensors``, all of them or some.
    """
    mine = tensors(policy)
    for name in given:
        copy_into(mine[name], given[name])
