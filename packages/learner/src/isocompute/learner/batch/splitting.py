"""Which responses pass through the model together, and which on which rank: by what they cost, in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from ..settings.compute import fits
from .responses import Responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Responses that pass through the model together.

    Attributes:
        rows: Their rows among the ``Responses``, shape ``(responses,)``.
        prompt: The index of each response's prompt among those of the piece, shape ``(responses,)``; those that
            share one have the same.
        packed: Whether it is meant to be packed; else it is padded.
    """

    rows: np.ndarray
    prompt: np.ndarray
    packed: bool

    @property
    def first_rows(self) -> np.ndarray:
        """For each prompt the first row that has it."""
        rows: np.ndarray = self.rows[np.unique(self.prompt, return_index=True)[1]]
        return rows


def micro_batches(
    responses: Responses, rows: np.ndarray, *, tokens: int, share_prompts: bool = True
) -> Iterator[Piece]:
    """Cut rows into pieces of at most so many tokens, each with one response or more, in the order of the rows.

    A padded piece costs its rows times the longest of them. A packed one costs each of its prompts once, and may have
    no more than ``settings.compute.ATTENDED`` times as many tokens in its rows of attention, where a prompt stands
    before each of its responses.

    Args:
        rows: Their rows that pass through the model, in order.
        tokens: Most tokens of a piece, prompts and padding included; a single response may have more.
        share_prompts: Whether pieces are packed: a prompt passes through the model once for all responses in a row
            that have it.
    """
    runs = responses.run_lengths[rows].tolist()
    wholes = responses.whole_lengths[rows].tolist()
    same = (_shared(responses, rows) if share_prompts else np.zeros(len(rows), dtype=bool)).tolist()
    start, positions, attended = 0, 0, 0
    for i, whole in enumerate(wholes):
        first = i == start
        if share_prompts:
            held, seen = positions + (runs[i] if same[i] and not first else whole), attended + whole
        else:
            longest = whole if first else max(positions // (i - start), whole)
            held = seen = longest * (i - start + 1)
        if not first and not fits(tokens, positions=held, attended=seen):
            yield _piece(rows[start:i], same[start:i], packed=share_prompts)
            start, held, seen = i, whole, whole
        positions, attended = held, seen
    if len(rows):
        yield _piece(rows[start:], same[start:], packed=share_prompts)


def _piece(rows: np.ndarray, same: list[bool], *, packed: bool) -> Piece:
    # The prompt of the first row begins with the piece, whatever was before it.
    return Piece(rows=rows, prompt=np.cumsum([False, *(not own for own in same[1:])]), packed=packed)


def _shared(responses: Responses, rows: np.ndarray) -> np.ndarray:
    """Whether each of some rows has the prompt of the one before it among them."""
    # A run of equal prompts has one number; where rows between two are left out, it is the same still.
    run = np.cumsum(~responses.shares_prompt)[rows]
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = run[1:] == run[:-1]
    return same


def shares(batch: pl.DataFrame, ranks: int, *, free: np.ndarray | None = None) -> list[pl.DataFrame]:
    """Cut a batch into a share for each rank, of nearly the same number of tokens.

    A cut falls between any two responses: where it is within a group, the prompt passes through the model on both
    ranks.

    Args:
        batch: A ``rollouts`` table in which the responses of a group follow one another.
        ranks: How many shares.
        free: Whether each response costs nothing, shape ``(responses,)``; None: each costs its tokens.

    Returns:
        The shares, in order; some may be empty.
    """
    prompts, responses = (batch[name].list.len().to_numpy().astype(np.int64) for name in ("prompt_ids", "response_ids"))
    cost = np.maximum(responses - 1, 0)
    # Where a group begins, its prompt is paid for.
    groups = batch["problem_id"].rle_id().to_numpy()
    begins = np.ones(len(batch), dtype=bool)
    begins[1:] = groups[1:] != groups[:-1]
    cost = cost + np.where(begins, prompts, 0)
    if free is not None:
        cost = np.where(free, 0, cost)
    before = np.concatenate([[0], np.cumsum(cost)])
    aims = before[-1] * np.arange(1, ranks) / ranks
    cuts = [0, *np.searchsorted(before, aims).tolist(), len(batch)]
    return [batch[start:end] for start, end in pairwise(cuts)]
