"""A policy's tensors by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import adapter
from .sharding import copy_into, let_go, whole


class WholeTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, of which one that ranks share is gathered each time that it is read: all of them must read it.

    Args:
        live: The tensors, whole or this rank's shares.
        adapted: Layers whose adapter is added to a tensor as it is read, by the tensor's name.
        dtype: Type in which numbers are given; None: their own.
    """

    def __init__(
        self,
        live: Mapping[str, torch.Tensor],
        *,
        adapted: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._live, self._adapted, self._dtype = live, adapted or {}, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = whole(self._live[name])
        if name in self._adapted:
            tensor = adapter.merged(tensor, self._adapted[name])
        return tensor.to(self._type(tensor)).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor when it is whole."""
        return {name: tensor.numel() * self._type(tensor).itemsize for name, tensor in self._live.items()}

    def _type(self, tensor: torch.Tensor) -> torch.dtype:
        return tensor.dtype if self._dtype is None or not tensor.is_floating_point() else self._dtype


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
    """The model's tensors by their Hugging Face names, as a saved model has them: one that is tied to another once.

    A model that ties its embeddings has ``model.embed_tokens.weight`` and no ``lm_head.weight``. An adapter is no part
    of them.

    Args:
        policy: From ``load_policy``.
    """
    adapted = adapter.layers(policy)
    named = ((adapter.model_name(name, adapted), tensor) for name, tensor in _held(policy).items())
    return {name: tensor for name, tensor in named if name is not None}


def learnt(policy: Any) -> dict[str, torch.Tensor]:
    """What updates change, by the names of parameters: the tensors of an adapter, or all of a policy without one.

    Args:
        policy: From ``load_policy``.
    """
    adapted = adapter.layers(policy)
    return {
        name: tensor
        for name, tensor in _held(policy).items()
        if not adapted or adapter.model_name(name, adapted) is None
    }


def weights(policy: Any) -> WholeTensors:
    """The ``tensors`` of the model that a policy is, one at a time: with an adapter, W + s·B·A, in the adapter's type.

    Args:
        policy: From ``load_policy``. Ranks that share it must all take all of them.
    """
    layers = {f"{name}.weight": layer for name, layer in adapter.layers(policy).items()}
    dtype = next((tensor.dtype for tensor in learnt(policy).values()), None) if layers else None
    return WholeTensors(tensors(policy), adapted=layers, dtype=dtype)


def load_tensors(policy: Any, given: Mapping[str, torch.Tensor]) -> None:
    """Give a policy other values, which are copied.

    Args:
        policy: From ``load_policy``.
        given: Its ``tensors``, all of them or some.
    """
    mine = tensors(policy)
    for name in given:
        copy_into(mine[name], given[name])


def _held(policy: Any) -> dict[str, torch.Tensor]:
    let_go(policy)
    # Parameters and buffers with several names are listed under the first.
    names = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())}
    return {name: tensor for name, tensor in policy.state_dict().items() if name in names}
