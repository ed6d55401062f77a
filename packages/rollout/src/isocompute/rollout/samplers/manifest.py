"""Which tensors a model has, and so what a sync must bring; each is compared before an engine loads it.

An engine does not compare: vLLM loads a checkpoint without its last tensor and keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import RolloutError
from .models import not_loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors of a model.

    Attributes:
        shapes: From the Hugging Face name of each to its shape.
        tied: From the name of each that is only another name of one to that one's name, as ``lm_head.weight`` to
            ``model.embed_tokens.weight``; a sync may leave the former out.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]

    @property
    def elements(self) -> int:
        """Number of the model's parameters, tied ones counted once."""
        return sum(prod(shape) for name, shape in self.shapes.items() if name not in self.tied)


def manifest(model: str) -> Manifest:
    """Return which tensors a model has, from its configuration alone: nothing is allocated.

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
    return manifest_of(built)


def manifest_of(built: Any) -> Manifest:
    """Return which tensors a model has.

    Args:
        built: A model of transformers, on any device.
    """
    tensors = built.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    # Tied tensors are one object; the name that comes first, the embedding's, is its own.
    names = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    tied = {name: source for name, source in names.items() if name != source}
    return Manifest(shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()}, tied=tied)


def checked(weights: Iterable[tuple[str, Any]], wanted: Manifest) -> Iterator[tuple[str, Any]]:
    """Pass on the tensors of a sync, and compare each with those that the model has, as they arrive.

    Of tied tensors the first to come is held until the other does, or to the end.

    Args:
        weights: Pairs of a Hugging Face name and a tensor, read once.

    Raises:
        RolloutError: A tensor is missing, unknown, repeated, of another shape, or differs from the one that it is tied
            to; the message names it.
    """
    tied = {*wanted.tied, *wanted.tied.values()}
    seen: set[str] = set()
    first: dict[str, Any] = {}
    for name, tensor in weights:
        shape = tuple(tensor.shape)
        if name not in wanted.shapes:
            raise RolloutError(f"a sync brings the tensor {name}, which the model does not have")
        if name in seen:
            raise RolloutError(f"a sync brings the tensor {name} twice")
        if shape != wanted.shapes[name]:
            raise RolloutError(f"a sync brings the tensor {name} as {shape}; the model has it as {wanted.shapes[name]}")
        seen.add(name)
        if name in tied:
            first[name] = tensor
            pairs = {n: s for n, s in wanted.tied.items() if n in first and s in first and name in (n, s)}
            check_tied(pairs, first)
        yield name, tensor
    missing = [name for name in wanted.shapes if name not in seen and name not in wanted.tied]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RolloutError(f"a sync lacks the tensor {missing[0]}{others}")


def check_tied(pairs: Mapping[str, str], brought: Mapping[str, Any]) -> None:
    """Compare the values of tensors that a sync brings under two names.

    Args:
        pairs: From one name to the other.
        brought: The tensors by name.

    Raises:
        RolloutError: They differ, so the learner does not tie what the model ties.
    """
    for name, source in pairs.items():
        one, other = brought[name], brought[source]
        if one is not other and one.data_ptr() != other.data_ptr() and not bool((one == other).all()):
            raise RolloutError(f"a sync brings {name} and {source} with different values, and the model ties them")
