"""A low-rank adapter (LoRA) on a frozen policy: peft's layers, whose own names stay in this module.

An adapted layer computes x·Wᵀ + s·(x·Aᵀ)·Bᵀ with s = α/r, like a layer with the weight W + s·B·A. Every function here
also accepts a policy without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers.pytorch_utils import Conv1D

from ..config import ALL_LINEAR, AdapterConfig
from ..errors import LearnerError

NAME = "default"
"""Peft's name for the one adapter."""
SEED = 0


def adapt(policy: Any, config: AdapterConfig) -> Any:
    """Freeze a whole policy and add adapters to its linear layers, in place; ``begun`` gives their first values."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise LearnerError('an adapter needs peft: pip install "isocompute-learner[lora]"') from None
    names = _targets(policy, config)
    chosen = LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=names)
    # Create the adapter without memory, so that it draws no numbers from the run's generator. This also works for a
    # traced policy.
    with unset_fake_temporarily():
        inject_adapter_in_model(chosen, policy, adapter_name=NAME, low_cpu_mem_usage=True)
    found = layers(policy)
    if sorted(found) != names:
        others = ", ".join(sorted(set(found) ^ set(names))[:3])
        raise LearnerError(f"peft does not adapt the layers of a {type(policy).__name__} that it was to ({others})")
    for layer in found.values():
        base = layer.base_layer.weight
        held = {"device": base.device, "dtype": torch.promote_types(base.dtype, torch.float32)}
        for part in (layer.lora_A[NAME], layer.lora_B[NAME]):
            part.weight = torch.nn.Parameter(torch.empty_like(part.weight, **held))
    return policy


def begun(policy: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A and B of each layer at the start, which change nothing: A uniform on ±1/√in, the same in every run; B = 0."""
    generator = torch.Generator().manual_seed(SEED)
    for layer in layers(policy).values():
        down, up = factors(layer)
        bound = down.shape[1] ** -0.5
        yield down, torch.empty(down.shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
        yield up, torch.zeros(up.shape)


def layers(policy: Any) -> dict[str, Any]:
    """The adapted layers by name; empty without an adapter."""
    return {
        name: module
        for name, module in policy.named_modules()
        if isinstance(getattr(module, "lora_A", None), torch.nn.ModuleDict)
    }


@contextmanager
def without_adapter(policy: Any) -> Iterator[None]:
    """Run a policy without its adapter within this context."""
    adapted = layers(policy).values()
    try:
        for layer in adapted:
            # Peft's own method also turns gradients off, and sharded parameters keep that setting.
            layer._disable_adapters = True
        yield
    finally:
        for layer in adapted:
            layer._disable_adapters = False


def model_name(name: str, adapted: dict[str, Any]) -> str | None:
    """A tensor's name in the model without its adapter; None for the adapter's own tensors."""
    layer, _, rest = name.rpartition(".base_layer.")
    if layer in adapted:
        return f"{layer}.{rest}"
    return None if name.partition(".lora_")[0] in adapted else name


def factors(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of an adapted layer."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight


def merged(weight: torch.Tensor, layer: Any, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """W + s·B·A of an adapted layer, from whole W, A and B, in the type of A and B."""
    change = (up @ down) * layer.scaling[NAME]
    return weight.to(change.dtype) + (change.T if layer.fan_in_fan_out else change)


def _targets(policy: Any, config: AdapterConfig) -> list[str]:
    """Full names of the layers to adapt, in order."""
    head = policy.get_output_embeddings()
    linear = [
        name
        for name, module in policy.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]
    last = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    if ALL_LINEAR in config.target_modules and any(parameter.dim() == 3 for parameter in policy.parameters()):
        raise LearnerError(
            f"adapter.target_modules has {ALL_LINEAR}, and the experts of a {type(policy).__name__} are one tensor and "
            f"no linear layers, so that they would not be adapted: name layers (it has {last})"
        )
    found: set[str] = set()
    for given in config.target_modules:
        mine = {name for name in linear if given in (name, ALL_LINEAR) or name.endswith(f".{given}")}
        if not mine:
            raise LearnerError(
                f"adapter.target_modules has {given}, and no linear layer of the {type(policy).__name__} beneath its "
                f"output head has that name: it must be one of {last}"
            )
        found |= mine
    return sorted(found)
