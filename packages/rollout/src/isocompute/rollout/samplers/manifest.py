"""Which tensors a model has, and so what a sync must bring; compared before any engine is touched.

An engine does not compare: vLLM loads a checkpoint without its last tensor and keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RolloutError
from .models import not_loaded

Shapes = dict[str, tuple[int, ...]]
"""From the Hugging Face name of a tensor to its shape."""


def shapes_of(weights: Iterable[tuple[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of (name, tensor) pairs, in their order.

    Args:
        weights: Pairs of a Hugging Face name and a tensor.
    """
    return [(name, tuple(tensor.shape)) for name, tensor in weights]


def manifest(model: str) -> Shapes:
    """Return the names and shapes of a model's tensors, from its configuration alone: nothing is allocated.

    Args:
        model: Directory or name of a model in the Hugging Face format.

    Raises:
        RolloutError: The configuration cannot be read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise not_loaded(model, error) from None
    return dict(shapes_of(built.state_dict().items()))


def check_shapes(wanted: Mapping[str, tuple[int, ...]], given: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Compare what a sync brings with what the model has.

    Args:
        wanted: The model's tensors (``manifest``).
        given: Names and shapes of those brought.

    Raises:
        RolloutError: A tensor is missing, unknown, repeated or of another shape; the message names it.
    """
    seen: set[str] = set()
    for name, shape in given:
        if name not in wanted:
            raise RolloutError(f"a sync brings the tensor {name}, which the model does not have")
        if name in seen:
            raise RolloutError(f"a sync brings the tensor {name} twice")
        if tuple(shape) != wanted[name]:
            raise RolloutError(f"a sync brings the tensor {name} as {tuple(shape)}; the model has it as {wanted[name]}")
        seen.add(name)
    missing = [name for name in wanted if name not in seen]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RolloutError(f"a sync lacks the tensor {missing[0]}{others}")
