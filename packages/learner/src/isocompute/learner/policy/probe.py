"""What a policy is tried with when it is loaded: a few responses, in float32, where a difference is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..batch.responses import Lists, Responses
from ..errors import LearnerError
from .sharding import blocks

SAME = 1e-3
"""Largest difference (nats) between log-probabilities in float32, by two ways through a model, that is rounding."""


BY_PLACE = ("attn_temperature_tuning", "index_topk", "index_topk_blocks")
"""Settings by which a model of transformers acts on a token's place in the input, whatever its position is said to be.

Llama 4 scales queries beyond 8,192 tokens (``floor_scale``), and models with DeepSeek's sparse attention choose keys
among all of the input beyond 2,048: too many to be tried.
"""
PROMPTS, RESPONSES = (3, 3, 2, 2), np.array([4, 2, 3, 5])
"""Tokens of the probe's prompts, of which two are the same, and of its responses."""


def probe(vocabulary: int) -> tuple[Responses, Responses, np.ndarray]:
    """Two prompts with two responses each, of different lengths.

    Args:
        vocabulary: Number of tokens that the policy knows.

    Returns:
        The responses; the same with another last token but one, which is the last that passes through the model; and
        which response tokens are before it, shape ``(tokens,)``.
    """
    generator = np.random.default_rng(0)
    values = generator.integers(0, vocabulary, RESPONSES.sum())
    first, second = generator.integers(0, vocabulary, 3), generator.integers(0, vocabulary, 2)
    prompts = Lists(offsets=np.cumsum([0, *PROMPTS]), values=np.concatenate([first, first, second, second]))
    offsets = np.cumsum([0, *RESPONSES])
    other, before = values.copy(), np.ones(len(values), dtype=bool)
    other[offsets[1:] - 2] = (other[offsets[1:] - 2] + vocabulary // 2) % vocabulary
    before[offsets[1:] - 2] = before[offsets[1:] - 1] = False

    def answered(tokens: np.ndarray) -> Responses:
        responses = Lists(offsets=offsets, values=tokens)
        return Responses(
            prompts=prompts,
            responses=responses,
            sampled=np.ones(len(tokens), dtype=bool),
            counts=responses.lengths,
            logprobs=Lists(offsets=offsets, values=np.zeros(len(tokens))),
            shares_prompt=np.array([False, True, False, True]),
            of_rows={name: np.zeros(4) for name in ("advantage", "loss_weight", "zero_variance")},
            of_tokens={},
        )

    return answered(values), answered(other), before


def refuse_by_place(config: Any) -> None:
    """Refuse to pack a model that has one of ``BY_PLACE``.

    Raises:
        LearnerError: It has.
    """
    for name in BY_PLACE:
        if getattr(config.get_text_config(), name, None):
            raise LearnerError(f"it scales or chooses by a token's place in the input ({name})")


def rotated_otherwise_beyond(config: Any) -> int | None:
    """Tokens beyond which one response of an input makes a model rotate all of its tokens otherwise (LongRoPE)."""
    limits = [
        each.get("original_max_position_embeddings") or config.get_text_config().max_position_embeddings
        for each in _rotations(config)
        if each.get("rope_type") == "longrope"
    ]
    return min(limits, default=None)


def check_rotation(config: Any, *, longest: int) -> None:
    """Refuse responses whose rotation depends on those that passed before them, as transformers computes it.

    Raises:
        LearnerError: The model has dynamic NTK scaling, which a response is long enough for.
    """
    limit = config.get_text_config().max_position_embeddings if _dynamic(config) else longest
    if longest > limit:
        raise LearnerError(
            f"a response has {longest} tokens with its prompt, more than the model's {limit}, beyond which its "
            "rope_type dynamic makes log-probabilities depend on what was computed before: it must be shorter"
        )


def _dynamic(config: Any) -> bool:
    return any(each.get("rope_type") == "dynamic" for each in _rotations(config))


def _rotations(config: Any) -> list[dict[str, Any]]:
    """The parameters of RoPE, of each kind of layer."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [given] if "rope_type" in given else [each for each in given.values() if isinstance(each, dict)]


@contextmanager
def at_least_float32(policy: Any) -> Iterator[None]:
    """Run a policy whose weights are of a lower type in float32 meanwhile; they are the same afterwards, bit for bit.

    In bfloat16 two kernels of attention give log-probabilities that differ by 0.03 nats, and no tolerance would tell
    that from another meaning. A layer is in float32 while it runs, so that the whole of them never is.

    Args:
        policy: From ``load_policy``.
    """
    layers = {layer: _lower(layer) for layer in blocks(policy)}
    inside = {id(tensor) for held in layers.values() for tensor, _ in held}
    outside = [(tensor, dtype) for tensor, dtype in _lower(policy) if id(tensor) not in inside]
    hooks = []
    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(lambda module, _: _to_float32(layers[module])))
        hooks.append(layer.register_forward_hook(lambda module, *_: _back(layers[module]), always_call=True))
    _to_float32(outside)
    try:
        yield
    finally:
        _back(outside)
        for hook in hooks:
            hook.remove()


Lower = list[tuple[torch.Tensor, torch.dtype]]
"""Tensors of a lower type than float32, and that type."""


def _lower(module: torch.nn.Module) -> Lower:
    return [
        (tensor, tensor.dtype)
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32
    ]


def _to_float32(held: Lower) -> None:
    for tensor, _ in held:
        tensor.data = tensor.data.float()


def _back(held: Lower) -> None:
    for tensor, dtype in held:
        tensor.data = tensor.data.to(dtype)


def without_dropout(policy: Any) -> None:
    """Set every share that a model drops at random in training mode to 0, wherever it keeps it.

    Args:
        policy: From ``load_policy``.
    """
    config = policy.config
    for holder in (config, config.get_text_config(), *policy.modules()):
        for name, value in list(vars(holder).items()):
            if "drop" in name.lower() and isinstance(value, float):
                setattr(holder, name, 0.0)
        if isinstance(holder, torch.nn.modules.dropout._DropoutNd):
            holder.p = 0.0
