"""Attention of packed responses: the linear layers see each prompt once, attention sees it before each response.

It is registered with transformers under ``NAME``, so that any model that uses its attention interface can be packed.
Rows of whole responses are gathered, right-padded, and causal: no mask is needed, and the fastest kernels apply. An
input that is not packed is answered as torch's own attention (``sdpa``) does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..batch.micro import PackedRows
from ..errors import LearnerError

NAME = "isocompute_packed"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What a model may ask of attention besides, which this one does not compute."""


@dataclass(slots=True)
class Passing:
    """A packed sequence on its way through a model.

    Attributes:
        rows: The rows that it consists of.
        window: The smallest sliding window that a layer has asked for (tokens); None where none has.
    """

    rows: PackedRows
    window: int | None = None


_current: list[Passing] = []


def no_mask(device: str) -> torch.Tensor:
    """What stands for a mask with a packed input: with one of four dimensions transformers makes none itself.

    Args:
        device: A torch device.
    """
    return torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)


@contextmanager
def attending(rows: PackedRows | None) -> Iterator[Passing | None]:
    """Say which rows the next packed sequence consists of, during its forward and backward pass.

    It is one for the whole process, and not for a thread: torch runs backward passes on threads of its own.

    Args:
        rows: The rows; None for an input that is not packed.

    Yields:
        What is found out about them on the way; None for an input that is not packed.
    """
    if rows is None:
        yield None
        return
    _current.append(Passing(rows))
    try:
        yield _current[-1]
    finally:
        _current.pop()


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **asked: Any,
) -> tuple[torch.Tensor, Any]:
    """Causal attention within each row; see transformers' ``AttentionInterface``.

    Args:
        module: The layer that asks.
        query: Shape ``(1, heads, positions, size)``.
        key: Shape ``(1, key heads, positions, size)``.
        value: The same.
        attention_mask: ``no_mask``.
        scaling: What scores are multiplied by.
        dropout: 0, as policies are in evaluation mode.
        asked: What else the layer asks for.

    Returns:
        The results, shape ``(1, positions, heads, size)``, and no weights.

    Raises:
        LearnerError: The layer asks for something that is not computed here.
    """
    if not _current:
        plain: tuple[torch.Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **asked
        )
        return plain
    passing = _current[-1]
    rows = passing.rows
    _check(passing, asked, dropout)
    flat = [states[0].transpose(0, 1).flatten(1) for states in (query, key, value)]
    size, heads, groups = query.shape[-1], query.shape[1], query.shape[1] != key.shape[1]
    copied = groups and copies_keys(query.device.type, query.dtype)
    joined = []
    for block in rows.blocks:
        # One row of numbers for each position, gathered by the rows of the block.
        q, k, v = (
            states.index_select(0, block.flatten()).view(*block.shape, -1, size).transpose(1, 2) for states in flat
        )
        if copied:
            k, v = (states.repeat_interleave(heads // key.shape[1], dim=1) for states in (k, v))
        found = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=groups and not copied)
        joined.append(found.transpose(1, 2).reshape(block.numel(), -1))
    results = (joined[0] if len(joined) == 1 else torch.cat(joined)).index_select(0, rows.take)
    return results.view(1, query.shape[2], heads, value.shape[-1]), None


def copies_keys(device: str, dtype: torch.dtype) -> bool:
    """Whether each head is given keys and values of its own where heads share them (*unverified*).

    Of CUDA's kernels for shared ones the fast one takes half precision only, and the other holds the scores of all
    pairs of tokens; with a copy for each head there is one that takes float32 and holds none.

    Args:
        device: Type of the device.
        dtype: Type of the states.
    """
    return device == "cuda" and dtype not in (torch.float16, torch.bfloat16)


def _check(passing: Passing, asked: dict[str, Any], dropout: float) -> None:
    refused = [name for name in UNSUPPORTED if asked.get(name) is not None]
    if dropout:
        refused.append("dropout")
    window = asked.get("sliding_window")
    if window is not None:
        passing.window = min(window, passing.window or window)
        if max(block.shape[1] for block in passing.rows.blocks) > window:
            refused.append(f"a sliding window of {window} tokens, which responses exceed")
    if refused:
        raise LearnerError(
            f"the model's attention uses {', '.join(refused)}, which a packed batch does not have: "
            "set compute.layout to auto or padded"
        )


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
