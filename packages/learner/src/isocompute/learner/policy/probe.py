"""What a policy is tried with when it is loaded: a few responses, in float32, where a difference is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..batch.responses import Lists, Responses

SAME = 1e-3
"""Largest difference (nats) between log-probabilities in float32, by two ways through a model, that is rounding."""


def probe(vocabulary: int) -> Responses:
    """Two prompts with two responses each, of different lengths.

    Args:
        vocabulary: Number of tokens that the policy knows.
    """
    generator = np.random.default_rng(0)

    def lists(*lengths: int) -> Lists:
        values = generator.integers(0, vocabulary, sum(lengths))
        return Lists(offsets=np.concatenate([[0], np.cumsum(lengths)]), values=values)

    first, second = generator.integers(0, vocabulary, 3), generator.integers(0, vocabulary, 2)
    prompts = Lists(offsets=np.array([0, 3, 6, 8, 10]), values=np.concatenate([first, first, second, second]))
    responses = lists(4, 2, 3, 5)
    return Responses(
        prompts=prompts,
        responses=responses,
        sampled=np.ones(14, dtype=bool),
        counts=responses.lengths,
        logprobs=Lists(offsets=responses.offsets, values=np.zeros(14)),
        shares_prompt=np.array([False, True, False, True]),
        of_rows={name: np.zeros(4) for name in ("advantage", "loss_weight", "zero_variance")},
        of_tokens={},
    )


@contextmanager
def at_least_float32(policy: Any) -> Iterator[None]:
    """Hold weights of a lower type in float32 meanwhile; they are the same afterwards, bit for bit.

    In bfloat16 two kernels of attention give log-probabilities that differ by 0.03 nats, and no tolerance would tell
    that from another meaning.

    Args:
        policy: From ``load_policy``.
    """
    lower = [
        (tensor, tensor.dtype)
        for tensor in (*policy.parameters(), *policy.buffers())
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32
    ]
    for tensor, _ in lower:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, dtype in lower:
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
