"""Which tensors a model has: what a sync must bring, whole and in shape, before any engine is touched.

An engine takes what it is given: vLLM loads a checkpoint without its last tensor and keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RolloutError

Shapes = dict[str, tuple[int, ...]]


def shapes_of(weights: Iterable[tuple[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of named tensors, in their order."""
    return [(name, tuple(tensor.shape)) for name, tensor in weights]


def manifest(model: str) -> Shapes:
    """Return the names and shapes of a model's tensors, from its configuration alone: nothing is allocated.

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


def check(wanted: Mapping[str, tuple[int, ...]], given: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Compare what a sync brings with what the model has.

    Raises:
        RolloutError: A tensor is missing, unknown, twice there or of another shape; the message names it.
    """
    seen: set[str] = set()
    for name, shape in given:
        if name not in wanted:
            raise RolloutError(f"a sync brings the tensor {name}, which the model has not")
        if name in seen:
            raise RolloutError(f"a sync brings the tensor {name} twice")
        if tuple(shape) != wanted[name]:
            raise RolloutError(f"a sync brings the tensor {name} as {tuple(shape)}; the model has it as {wanted[name]}")
        seen.add(name)
    missing = [name for name in wanted if name not in seen]
    if missing:
        also = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RolloutError(f"a sync lacks the tensor {missing[0]}{also}")


def not_loaded(model: str, error: BaseException) -> RolloutError:
    """Return what to raise for a model that a library could not load, with the first words of its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RolloutError(f"the base model {model} cannot be loaded ({lines[0] if lines else type(error).__name__})")
