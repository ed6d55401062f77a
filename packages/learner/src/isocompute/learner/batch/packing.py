"""Micro-batches: the responses that pass through the model together, as tensors that are packed or padded.

Packed, each prompt is there once and there is no padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.nn.functional import embedding_bag

from ..config import ATTENDED
from .responses import Responses, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Rows of a tensor that are copied, some of them often, and the order in which gradients of copies are added up.

    torch's ``index_select`` adds them up in their own type, and on CUDA in any order: in bfloat16 small terms of a
    prompt that many responses share are lost, and no two runs are equal. Here each row's are added one after another,
    in float32 or better.

    Attributes:
        index: The row that each copy is of, shape ``(copies,)``.
        order: The copies by their row; one that has no gradient may be left out.
        begins: Where each row's copies begin in ``order``, and where the last ones end; shape ``(rows + 1,)``.
    """

    index: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copies, shape ``(copies, size)``, of a tensor of the shape ``(rows, size)``."""
        found: torch.Tensor = _Copies.apply(tensor, self.index, self.order, self.begins)
        return found


class _Copies(torch.autograd.Function):  # type: ignore[misc]
    """See ``Gather``."""

    @staticmethod
    def forward(
        context: Any, tensor: torch.Tensor, index: torch.Tensor, order: torch.Tensor, begins: torch.Tensor
    ) -> torch.Tensor:
        context.save_for_backward(order, begins)
        return tensor.index_select(0, index)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        # A sum of rows by segments, which torch has under this name alone. Sums are kept in float32 where rows are not.
        order, begins = context.saved_tensors
        return embedding_bag(order, gradient, begins, mode="sum", include_last_offset=True), None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Which positions of a packed sequence attend to which: rows of whole responses, each behind its prompt.

    Two responses of 3 and 2 tokens to one prompt of 2, whose last tokens predict nothing and do not run, are packed as
    ``p0 p1 a0 a1 b0``: the blocks hold the rows ``[[0, 1, 2, 3], [0, 1, 4, 0]]`` (the last 0 is padding), and
    ``take`` is ``[0, 1, 2, 3, 6]``.

    Attributes:
        blocks: For rows of about the same length, the position of each of their tokens; shapes ``(rows, length)``.
            A row attends to what is before it in the row, so padding at its end changes nothing.
        keys: The blocks joined, as copies of positions; of keys and of values.
        queries: The same of queries, whose copies have a gradient only where their result is taken.
    """

    blocks: tuple[torch.Tensor, ...]
    keys: Gather
    queries: Gather

    @property
    def take(self) -> torch.Tensor:
        """Where each position's result is in the joined rows, a prompt's in its first; shape ``(positions,)``."""
        return self.queries.order


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Responses that pass through the model together; ``tokens`` are those that the policy sampled, row by row.

    Tokens that the policy did not sample, such as those that a forced interruption inserted, are context like the
    prompt: they are in ``input_ids`` and nowhere else.

    Attributes:
        input_ids: Shape ``(1, positions)`` when packed, else ``(responses, length)``.
        position_ids: The same shape.
        attention_mask: 1 on tokens and 0 on padding, the same shape; None when packed.
        passed: How many tokens pass through the model: prompts and responses, and no padding.
        keys: How many keys these attend to, all together; see ``rate.training_operations``.
        predicts: The positions of the flattened input that predict the sampled tokens, in their order.
        tokens: The sampled tokens, shape ``(tokens,)``.
        response: The index of each one's response, shape ``(tokens,)``.
        sampler_logprobs: Their log-probabilities under the sampler (nats), shape ``(tokens,)``.
        weights: What each one's term is multiplied by in the loss, shape ``(tokens,)``.
        zero_variance: Whether the rewards of its group are equal, shape ``(tokens,)``.
        measured: What was measured before the update, by name (``old_logprobs``, ``reference_logprobs``,
            ``old_values``, ``returns``), each of shape ``(tokens,)``.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    rows: PackedRows | None
    passed: int
    keys: int
    predicts: Gather
    tokens: torch.Tensor
    response: torch.Tensor
    responses: int
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    zero_variance: torch.Tensor
    measured: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Responses that pass through the model together, packed or padded.

    Attributes:
        rows: Their rows among the ``Responses``, shape ``(responses,)``.
        prompt: The index of each one's prompt among those of the piece, shape ``(responses,)``.
    """

    rows: np.ndarray
    prompt: np.ndarray
    packed: bool


def micro_batches(
    responses: Responses, rows: np.ndarray, *, tokens: int, share_prompts: bool = True
) -> Iterator[Piece]:
    """Cut rows into pieces of at most so many tokens, each with one response or more, in the order of the rows.

    A padded piece costs its rows times the longest of them. A packed one costs each of its prompts once, and may have
    ``config.ATTENDED`` times as many tokens in its rows of attention, where a prompt is before each of its responses.

    Args:
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
        if not first and (held > tokens or seen > ATTENDED * tokens):
            yield _piece(rows[start:i], same[start:i], packed=share_prompts)
            start, held, seen = i, whole, whole
        positions, attended = held, seen
    if len(rows):
        yield _piece(rows[start:], same[start:], packed=share_prompts)


def _piece(rows: np.ndarray, same: list[bool], *, packed: bool) -> Piece:
    # The prompt of the first row begins with the piece, whatever was before it.
    return Piece(rows=rows, prompt=np.cumsum([False, *(not own for own in same[1:])]), packed=packed)


def _shared(responses: Responses, rows: np.ndarray) -> np.ndarray:
    """Return whether each of some rows has the prompt of the one before it among them."""
    # A run of equal prompts has one number; where rows between two are left out, it is the same still.
    run = np.cumsum(~responses.shares_prompt)[rows]
    same: np.ndarray = np.diff(run, prepend=-1) == 0
    return same


def shares(batch: pl.DataFrame, ranks: int, *, free: np.ndarray | None = None) -> list[pl.DataFrame]:
    """Cut a batch into a share for each rank, in order, of nearly the same number of tokens; some may be empty.

    A prompt whose group is cut passes through the model on both ranks.

    Args:
        batch: A ``rollouts`` table in which the responses of a group follow one another.
        free: Whether each response costs nothing; None: each costs its tokens.
    """
    prompts, responses = (batch[name].list.len().to_numpy().astype(np.int64) for name in ("prompt_ids", "response_ids"))
    cost = np.maximum(responses - 1, 0)
    # Where a group begins, its prompt is paid for.
    begins = batch["problem_id"].ne_missing(batch["problem_id"].shift(1)).to_numpy()
    cost = cost + np.where(begins, prompts, 0)
    if free is not None:
        cost = np.where(free, 0, cost)
    before = np.concatenate([[0], np.cumsum(cost)])
    aims = before[-1] * np.arange(1, ranks) / ranks
    cuts = [0, *np.searchsorted(before, aims).tolist(), len(batch)]
    return [batch[start:end] for start, end in pairwise(cuts)]


PADDING = 1.25
"""Most that padding may add to the rows of a block of attention, as a multiple of their tokens."""


def packed(responses: Responses, piece: Piece, device: str, dtype: torch.dtype) -> MicroBatch:
    """Pack a piece into one sequence: all prompts, then all responses without their last tokens."""
    rows = piece.rows
    prompt_rows = rows[np.unique(piece.prompt, return_index=True)[1]]
    prompt_lengths, run = responses.prompts.lengths[prompt_rows], responses.run_lengths[rows]
    prompt_starts = np.cumsum(prompt_lengths) - prompt_lengths
    starts = prompt_lengths.sum() + np.cumsum(run) - run
    running = positions(responses.responses.offsets[rows], run)
    ids = np.concatenate([responses.prompts.joined(prompt_rows), responses.responses.values[running]])
    before = prompt_lengths[piece.prompt]
    place = np.concatenate([positions(np.zeros_like(prompt_lengths), prompt_lengths), positions(before, run)])
    # Each token is predicted by the one before it in its response, and the first one by the prompt's last.
    last = (prompt_starts + prompt_lengths - 1)[piece.prompt]
    predicts = _predicting(last, starts, responses.responses.lengths[rows])
    return MicroBatch(
        input_ids=_sent(ids, torch.long, device)[None],
        position_ids=_sent(place, torch.long, device)[None],
        attention_mask=None,
        rows=_attending(prompt_starts[piece.prompt], before, starts, run, piece.prompt, device),
        passed=len(ids),
        keys=int(place.sum()) + len(ids),
        **_of_tokens(responses, rows, predicts, len(ids), device, dtype),
    )


def padded(responses: Responses, piece: Piece, device: str, dtype: torch.dtype) -> MicroBatch:
    """Pad a piece to one length, a row for each response: prompt, response without its last token, padding."""
    rows = piece.rows
    prompt_lengths, run = responses.prompts.lengths[rows], responses.run_lengths[rows]
    whole = responses.whole_lengths[rows]
    length = int(whole.max())
    place = np.arange(length)[None, :]
    in_prompt = place < prompt_lengths[:, None]
    in_response = ~in_prompt & (place < whole[:, None])
    ids = np.zeros((len(rows), length), dtype=np.int64)
    # Row-major boolean assignment visits a row's positions in order, as the joined values are.
    ids[in_prompt] = responses.prompts.joined(rows)
    ids[in_response] = responses.responses.values[positions(responses.responses.offsets[rows], run)]
    starts = np.arange(len(rows)) * length + prompt_lengths
    predicts = _predicting(starts - 1, starts, responses.responses.lengths[rows])
    return MicroBatch(
        input_ids=_sent(ids, torch.long, device),
        position_ids=_sent(np.broadcast_to(place, ids.shape).copy(), torch.long, device),
        attention_mask=_sent(in_prompt | in_response, torch.long, device),
        rows=None,
        passed=int(whole.sum()),
        keys=int((whole * (whole + 1) // 2).sum()),
        **_of_tokens(responses, rows, predicts, ids.size, device, dtype),
    )


def _sent(values: np.ndarray, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of some numbers on a device; to a GPU it is sent while this goes on."""
    made = torch.tensor(values, dtype=dtype)
    if torch.device(device).type != "cuda":
        return made.to(device)
    # From memory that is not pinned a copy would wait for all that the device has been given to do.
    return made.pin_memory().to(device, non_blocking=True)


def _predicting(last: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The position that predicts each token of each response: the prompt's last one, then the response's own."""
    predicts = positions(starts - 1, lengths)
    predicts[np.cumsum(lengths) - lengths] = last
    return predicts


def _gather(index: np.ndarray, rows: int, device: str, *, copies: np.ndarray | None = None) -> Gather:
    """A gather of so many rows; ``copies`` says of each copy whether it has a gradient; None: all have."""
    left = np.arange(len(index)) if copies is None else np.flatnonzero(copies)
    order = left[np.argsort(index[left], kind="stable")]
    begins = np.searchsorted(index[order], np.arange(rows + 1))
    given = {"index": index, "order": order, "begins": begins}
    return Gather(**{name: _sent(values, torch.long, device) for name, values in given.items()})


def _of_tokens(
    responses: Responses, rows: np.ndarray, predicts: np.ndarray, size: int, device: str, dtype: torch.dtype
) -> dict[str, Any]:
    """The fields of a micro-batch that have a number for each sampled token."""
    every = positions(responses.responses.offsets[rows], responses.responses.lengths[rows])
    sampled = responses.sampled[every]
    counts = responses.counts[rows]

    def numbers(values: np.ndarray) -> torch.Tensor:
        return _sent(np.asarray(values, dtype=np.float64), dtype, device)

    def repeated(name: str) -> np.ndarray:
        return np.repeat(responses.of_rows[name][rows], counts)

    measured = {name: lists.joined(rows) for name, lists in responses.of_tokens.items()}
    # Advantages may be a response's or each token's own.
    advantages = measured.pop("advantages", repeated("advantage"))
    return {
        "predicts": _gather(predicts[sampled], size, device),
        "tokens": _sent(responses.responses.values[every][sampled], torch.long, device),
        "response": _sent(np.repeat(np.arange(len(rows)), counts), torch.long, device),
        "responses": len(rows),
        "sampler_logprobs": numbers(responses.logprobs.values[every][sampled]),
        "advantages": numbers(advantages),
        "weights": numbers(repeated("loss_weight")),
        "zero_variance": _sent(repeated("zero_variance").astype(bool), torch.bool, device),
        "measured": {name: numbers(values) for name, values in measured.items()},
    }


def _attending(
    prompt_starts: np.ndarray, prompts: np.ndarray, starts: np.ndarray, run: np.ndarray, prompt: np.ndarray, device: str
) -> PackedRows:
    """Lay the rows of attention out in blocks of about one length, the longest first."""
    lengths = prompts + run
    firsts = np.zeros(len(run), dtype=bool)
    firsts[np.unique(prompt, return_index=True)[1]] = True
    blocks, real, taken = [], [], []
    for chosen in _blocks(lengths):
        width = int(lengths[chosen].max())
        block = np.zeros((len(chosen), width), dtype=np.int64)
        places = np.arange(width)[None, :]
        in_prompt = places < prompts[chosen][:, None]
        in_response = ~in_prompt & (places < lengths[chosen][:, None])
        block[in_prompt] = positions(prompt_starts[chosen], prompts[chosen])
        block[in_response] = positions(starts[chosen], run[chosen])
        blocks.append(block)
        real.append((in_prompt | in_response).ravel())
        # The same prompt stands in many rows, and is taken from that of its first response.
        taken.append((in_response | in_prompt & firsts[chosen][:, None]).ravel())
    joined = np.concatenate([block.ravel() for block in blocks])
    size = int(joined.max()) + 1
    # Nothing that is taken has seen the padding behind it.
    keys, queries = (_gather(joined, size, device, copies=np.concatenate(each)) for each in (real, taken))
    parts = keys.index.split([block.size for block in blocks])
    shaped = tuple(part.view(block.shape) for part, block in zip(parts, blocks, strict=True))
    return PackedRows(blocks=shaped, keys=keys, queries=queries)


def _blocks(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows in blocks, so that padding to the longest of a block adds little."""
    order = np.argsort(-lengths, kind="stable")
    blocks, start, held = [], 0, 0
    for i, row in enumerate(order.tolist()):
        held += int(lengths[row])
        if (i + 1 - start) * int(lengths[order[start]]) > PADDING * held and i > start:
            blocks.append(order[start:i])
            start, held = i, int(lengths[row])
    blocks.append(order[start:])
    return blocks
