"""Which tensors a model has, and so what a sync must bring; compared before any engine is touched.

An engine does not compare: vLLM loads a checkpoint without its last tensor and keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def shapes_of(weights: Iterable[tuple[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of (name, tensor) pairs, in their order.

    Args:
        weights: Pairs of a Hugging Face name and a tensor.
    """
    return [(name, tuple(tensor.shape)) for name, tensor in weights]


def manifest(model: str) -> Manifest:
    """Return which tensors a model has, from its configuration alone: nothing is allocated.

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
    return Manifest(shapes=dict(shapes_of(tensors.items())), tied=tied)


def check_shapes(wanted: Manifest, given: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, str]:
    """Compare what a sync brings with what the model has.

    Args:
        wanted: The model's tensors.
        given: Names and shapes of those brought.

    Returns:
        Of the tied tensors those that are brought under both names, by name: their values must agree.

    Raises:
        RolloutError: A tensor is missing, unknown, repeated or of another shape; the message names it.
    """
    arriving = Arriving(wanted)
    for name, shape in given:
        arriving.add(name, shape)
    return arriving.end()


class Arriving:
    """The tensors of a sync as they arrive, compared one by one with those that the model has.

    Args:
        wanted: The model's tensors.
    """

    def __init__(self, wanted: Manifest) -> None:
        self._wanted = wanted
        self._seen: set[str] = set()

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        """Take note of the next tensor.

        Raises:
            RolloutError: It is unknown, repeated or of another shape; the message names it.
        """
        shapes = self._wanted.shapes
        if name not in shapes:
            raise RolloutError(f"a sync brings the tensor {name}, which the model does not have")
        if name in self._seen:
            raise RolloutError(f"a sync brings the tensor {name} twice")
        if tuple(shape) != shapes[name]:
            raise RolloutError(f"a sync brings the tensor {name} as {tuple(shape)}; the model has it as {shapes[name]}")
        self._seen.add(name)

    def end(self) -> dict[str, str]:
        """Return the tied tensors that came under both names, by name.

        Raises:
            RolloutError: A tensor is missing; the message names it.
        """
        wanted, seen = self._wanted, self._seen
        missing = [name for name in wanted.shapes if name not in seen and name not in wanted.tied]
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise RolloutError(f"a sync lacks the tensor {missing[0]}{others}")
        return {name: source for name, source in wanted.tied.items() if name in seen}


def check_tied(pairs: Mapping[str, str], tensors: Iterable[tuple[str, Any]]) -> None:
    """Compare the values of tensors that a sync brings under two names.

    Args:
        pairs: From one name to the other (``check_shapes``).
        tensors: Pairs of a name and a tensor.

    Raises:
        RolloutError: They differ, so the learner does not tie what the model ties.
    """
    if not pairs:
        return
    brought = dict(tensors)
    for name, source in pairs.items():
        one, other = brought[name], brought[source]
        if one is not other and one.data_ptr() != other.data_ptr() and not bool((one == other).all()):
            raise RolloutError(f"a sync brings {name} and {source} with different values, and the model ties them")
