"""Attention of packed responses: linear layers see each prompt once, attention sees it before each response.

It is registered with transformers under ``NAME``, so any model that uses transformers' attention interface can be
packed. Rows of whole responses are gathered and right-padded. Attention is causal, so no mask is needed and the fastest
kernels apply. A model can limit attention by a window or a chunk in three ways: in the mask that it requests from
transformers, in its arguments of attention, or in a mask of its own. The first two tell up to which length a row is
seen whole; the last is refused. An input that is not packed is computed by torch's own attention (``sdpa``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..batch.packing import PackedRows
from ..errors import LearnerError

NAME = "isocompute_packed"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Attention features that a model may request and that are not implemented here."""
BEYOND_ANY = 2**20
"""A row length beyond any window (tokens)."""


@dataclass(slots=True)
class Passing:
    """A packed sequence on its way through a model.

    Attributes:
        reach: Length of the longest row to check (tokens); None: that of ``rows``.
        window: Row length (tokens) up to which every layer so far sees a row whole; None if no layer is limited.
    """

    rows: PackedRows
    reach: int | None = None
    window: int | None = None

    @property
    def longest(self) -> int:
        """Length of the longest row (tokens)."""
        return max(int(block.shape[1]) for block in self.rows.blocks)

    def limit(self, window: int) -> None:
        """Record a window, and refuse rows that exceed it."""
        self.window = min(window, self.window or window)
        if self.longest > window:
            raise _refused(f"a sliding window of {window} tokens, or a chunk, which responses exceed")


_current: list[Passing] = []


@contextmanager
def attending(rows: PackedRows | None, *, reach: int | None = None) -> Iterator[Passing | None]:
    """Set the rows of the next packed sequence, for its forward and backward pass, in all threads; None: not packed."""
    if rows is None:
        yield None
        return
    _current.append(Passing(rows, reach))
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
    **requested: Any,
) -> tuple[torch.Tensor, Any]:
    """Causal attention within each row; see transformers' ``AttentionInterface``.

    Args:
        query: Shape ``(1, heads, positions, size)``.
        key: Shape ``(1, key heads, positions, size)``.
        attention_mask: The result of ``packed_mask``; None if the model requests no mask.

    Returns:
        The results, shape ``(1, positions, heads, size)``, and None instead of weights.
    """
    if not _current:
        plain: tuple[torch.Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **requested
        )
        return plain
    passing = _current[-1]
    rows = passing.rows
    _check(passing, requested, attention_mask, dropout)
    flat = [states[0].transpose(0, 1).flatten(1) for states in (query, key, value)]
    sizes = [states.shape[-1] for states in (query, key, value)]
    heads, groups = query.shape[1], query.shape[1] != key.shape[1]
    kind = query.device.type
    # Rotary embeddings give float32 under autocast; the kernel gets the autocast type.
    multiplied = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    copied = groups and copies_keys(kind, multiplied)
    # One row of numbers per position, copied to the rows of attention.
    copies = [
        gather(states).split([block.numel() for block in rows.blocks])
        for gather, states in zip((rows.queries, rows.keys, rows.keys), flat, strict=True)
    ]
    joined = []
    for block, *parts in zip(rows.blocks, *copies, strict=True):
        q, k, v = (part.view(*block.shape, -1, size).transpose(1, 2) for part, size in zip(parts, sizes, strict=True))
        if copied:
            k, v = (states.repeat_interleave(heads // key.shape[1], dim=1) for states in (k, v))
        found = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=groups and not copied)
        joined.append(found.transpose(1, 2).reshape(block.numel(), -1))
    results = (joined[0] if len(joined) == 1 else torch.cat(joined)).index_select(0, rows.take)
    return results.view(1, query.shape[2], heads, value.shape[-1]), None


def copies_keys(device: str, dtype: torch.dtype) -> bool:
    """Return whether to give each head its own keys and values where heads share them.

    CUDA has two kernels for shared keys and values: the fast one takes half precision only, and the other stores the
    scores of all pairs of tokens. The choice made here takes less memory in both types (H100,
    ``tests/updates/test_cuda.py``).
    """
    return device == "cuda" and dtype not in (torch.float16, torch.bfloat16)


def packed_mask(
    *, mask_function: Callable[..., torch.Tensor], device: torch.device | str = "cpu", **requested: Any
) -> torch.Tensor | None:
    """Make no mask for packed rows, but find how far back their mask would let a token see; see ``sdpa_mask``.

    Args:
        mask_function: Whether a query sees a key, from broadcastable indices of batch, head, query and key.

    Returns:
        For a packed input a single entry, which differs from any mask that a model makes itself.
    """
    if not _current:
        plain: torch.Tensor | None = sdpa_mask(mask_function=mask_function, device=device, **requested)
        return plain
    if requested.get("use_vmap"):
        raise _refused("a mask of its own")
    passing = _current[-1]
    first = torch.zeros(1, dtype=torch.long, device=device)
    # The first token of a row is the first to go out of sight.
    seen = mask_function(first, first, torch.arange(passing.reach or passing.longest, device=device), first)
    if not bool(seen.all()):
        passing.limit(int(seen.flatten().int().argmin()))
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def _check(passing: Passing, requested: dict[str, Any], mask: torch.Tensor | None, dropout: float) -> None:
    refused = [name for name in UNSUPPORTED if requested.get(name) is not None]
    if dropout:
        refused.append("dropout")
    if mask is not None and (mask.dtype != torch.bool or mask.numel() != 1):
        refused.append("a mask of its own")
    if refused:
        raise _refused(", ".join(refused))
    if requested.get("sliding_window") is not None:
        passing.limit(requested["sliding_window"])


def _refused(what: str) -> LearnerError:
    return LearnerError(
        f"the model's attention uses {what}, which a packed batch does not have: set compute.layout to auto or padded"
    )


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, packed_mask)
