"""Micro-batches: the responses that pass through the model together, as packed or padded tensors.

A packed micro-batch holds each prompt once and has no padding.
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
    """Copies of a tensor's rows, some of them many times, with a fixed order for summing the gradients of the copies.

    torch's ``index_select`` sums them in the tensor's own type, and on CUDA in any order. In bfloat16 that loses small
    terms of a prompt that many responses share, and no two runs are equal. Here the gradients of each row are added one
    after another, in float32 or better.

    Attributes:
        index: The source row of each copy, shape ``(copies,)``.
        order: The copies sorted by source row; copies without a gradient may be left out.
        begins: Where each row's copies begin in ``order``, and where the last ones end; shape ``(rows + 1,)``.
    """

    index: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copies, shape ``(copies, size)``, of a tensor of shape ``(rows, size)``."""
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
        # A segmented sum over rows, which torch has only under this name. It sums rows of a lower type in float32.
        order, begins = context.saved_tensors
        return embedding_bag(order, gradient, begins, mode="sum", include_last_offset=True), None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Which positions of a packed sequence attend to which: rows of whole responses, each after its prompt.

    A prompt of 2 tokens has two responses of 3 and 2 tokens. The responses' last tokens predict nothing and do not run,
    so the sequence is ``p0 p1 a0 a1 b0``. The blocks hold the rows ``[[0, 1, 2, 3], [0, 1, 4, 0]]`` (the last 0 is
    padding), and ``take`` is ``[0, 1, 2, 3, 6]``.

    Attributes:
        blocks: The position of each token, for rows of about the same length; shapes ``(rows, length)``. A token
            attends only to earlier tokens of its row, so padding at the end changes nothing.
        keys: The joined blocks as copies of positions, for keys and values.
        queries: The same for queries; a copy has a gradient only if its result is used.
    """

    blocks: tuple[torch.Tensor, ...]
    keys: Gather
    queries: Gather

    @property
    def take(self) -> torch.Tensor:
        """Index of each position's result in the joined rows, a prompt's in its first row; shape ``(positions,)``."""
        return self.queries.order


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Responses that pass through the model together; ``tokens`` holds the sampled tokens, row by row.

    Tokens that the policy did not sample, such as those of a forced interruption, are context like the prompt. They
    appear only in ``input_ids``.

    Attributes:
        input_ids: Shape ``(1, positions)`` when packed, else ``(responses, length)``.
        position_ids: The same shape.
        attention_mask: 1 on tokens and 0 on padding, the same shape; None when packed.
        passed: Tokens of prompts and responses that pass through the model, without padding.
        keys: Total number of keys that these tokens attend to; see ``rate.training_operations``.
        predicts: The positions of the flattened input that predict the sampled tokens, in their order.
        tokens: The sampled tokens, shape ``(tokens,)``.
        response: Index of each sampled token's response, shape ``(tokens,)``.
        sampler_logprobs: Their log-probabilities under the sampler (nats), shape ``(tokens,)``.
        weights: Weight of each token's term in the loss, shape ``(tokens,)``.
        zero_variance: Whether the rewards of the token's group are equal, shape ``(tokens,)``.
        measured: Measurements from before the update, by name (``old_logprobs``, ``reference_logprobs``,
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
        rows: Their rows in the ``Responses``, shape ``(responses,)``.
        prompt: Index of each response's prompt within the piece, shape ``(responses,)``.
    """

    rows: np.ndarray
    prompt: np.ndarray
    packed: bool


def micro_batches(
    responses: Responses, rows: np.ndarray, *, tokens: int, share_prompts: bool = True
) -> Iterator[Piece]:
    """Cut rows, in order, into pieces of at most ``tokens`` tokens and at least one response each.

    A padded piece costs its number of rows times its longest row. A packed piece costs each of its prompts once. Its
    attention repeats the prompt before each response, and may see up to ``config.ATTENDED`` times as many tokens.

    Args:
        tokens: Most tokens per piece, prompts and padding included; a single response may have more.
        share_prompts: Whether to pack pieces: consecutive responses with the same prompt pass it through the model
            once.
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
    # A piece always starts a new prompt, even if the row before it has the same one.
    return Piece(rows=rows, prompt=np.cumsum([False, *(not own for own in same[1:])]), packed=packed)


def _shared(responses: Responses, rows: np.ndarray) -> np.ndarray:
    """Return whether each of these rows has the same prompt as the previous one of them."""
    # A run of equal prompts has one number, which stays the same if rows within the run are left out.
    run = np.cumsum(~responses.shares_prompt)[rows]
    same: np.ndarray = np.diff(run, prepend=-1) == 0
    return same


def shares(batch: pl.DataFrame, ranks: int, *, free: np.ndarray | None = None) -> list[pl.DataFrame]:
    """Split a batch, in order, into one share per rank with nearly equal numbers of tokens; some may be empty.

    If a group is split, its prompt passes through the model on both ranks.

    Args:
        batch: A ``rollouts`` table in which the responses of a group follow one another.
        free: Whether each response costs nothing; None: each costs its tokens.
    """
    prompts, responses = (batch[name].list.len().to_numpy().astype(np.int64) for name in ("prompt_ids", "response_ids"))
    cost = np.maximum(responses - 1, 0)
    # The first response of a group pays for the prompt.
    begins = batch["problem_id"].ne_missing(batch["problem_id"].shift(1)).to_numpy()
    cost = cost + np.where(begins, prompts, 0)
    if free is not None:
        cost = np.where(free, 0, cost)
    before = np.concatenate([[0], np.cumsum(cost)])
    aims = before[-1] * np.arange(1, ranks) / ranks
    cuts = [0, *np.searchsorted(before, aims).tolist(), len(batch)]
    return [batch[start:end] for start, end in pairwise(cuts)]


PADDING = 1.25
"""Largest padded size of an attention block, as a multiple of its tokens."""


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
    # Each token is predicted by the previous one of its response, and the first one by the prompt's last token.
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
    """Pad a piece to one length, with one row per response: prompt, response without its last token, padding."""
    rows = piece.rows
    prompt_lengths, run = responses.prompts.lengths[rows], responses.run_lengths[rows]
    whole = responses.whole_lengths[rows]
    length = int(whole.max())
    place = np.arange(length)[None, :]
    in_prompt = place < prompt_lengths[:, None]
    in_response = ~in_prompt & (place < whole[:, None])
    ids = np.zeros((len(rows), length), dtype=np.int64)
    # Boolean assignment in row-major order visits each row's positions in order, which matches the joined values.
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
    """Copy numbers to a tensor on a device; the copy to a GPU is asynchronous."""
    made = torch.tensor(values, dtype=dtype)
    if torch.device(device).type != "cuda":
        return made.to(device)
    # A copy from unpinned memory would wait for all work queued on the device.
    return made.pin_memory().to(device, non_blocking=True)


def _predicting(last: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Position that predicts each response token: the prompt's last token, then the response's own."""
    predicts = positions(starts - 1, lengths)
    predicts[np.cumsum(lengths) - lengths] = last
    return predicts


def _gather(index: np.ndarray, rows: int, device: str, *, copies: np.ndarray | None = None) -> Gather:
    """Make a gather from ``rows`` rows; ``copies`` marks the copies that have a gradient (None: all)."""
    left = np.arange(len(index)) if copies is None else np.flatnonzero(copies)
    order = left[np.argsort(index[left], kind="stable")]
    begins = np.searchsorted(index[order], np.arange(rows + 1))
    given = {"index": index, "order": order, "begins": begins}
    return Gather(**{name: _sent(values, torch.long, device) for name, values in given.items()})


def _of_tokens(
    responses: Responses, rows: np.ndarray, predicts: np.ndarray, size: int, device: str, dtype: torch.dtype
) -> dict[str, Any]:
    """The fields of a micro-batch that hold one number per sampled token."""
    every = positions(responses.responses.offsets[rows], responses.responses.lengths[rows])
    sampled = responses.sampled[every]
    counts = responses.counts[rows]

    def numbers(values: np.ndarray) -> torch.Tensor:
        return _sent(np.asarray(values, dtype=np.float64), dtype, device)

    def repeated(name: str) -> np.ndarray:
        return np.repeat(responses.of_rows[name][rows], counts)

    measured = {name: lists.joined(rows) for name, lists in responses.of_tokens.items()}
    # Advantages are per response or per token.
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
    """Arrange the rows of attention in blocks of similar length, longest first."""
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
        # Many rows contain the same prompt; its result is taken from the first of them.
        taken.append((in_response | in_prompt & firsts[chosen][:, None]).ravel())
    joined = np.concatenate([block.ravel() for block in blocks])
    size = int(joined.max()) + 1
    # No result that is taken depends on the padding after it.
    keys, queries = (_gather(joined, size, device, copies=np.concatenate(each)) for each in (real, taken))
    parts = keys.index.split([block.size for block in blocks])
    shaped = tuple(part.view(block.shape) for part, block in zip(parts, blocks, strict=True))
    return PackedRows(blocks=shaped, keys=keys, queries=queries)


def _blocks(lengths: np.ndarray) -> list[np.ndarray]:
    """Group rows into blocks so that padding to a block's longest row adds little."""
    order = np.argsort(-lengths, kind="stable")
    blocks, start, held = [], 0, 0
    for i, row in enumerate(order.tolist()):
        held += int(lengths[row])
        if (i + 1 - start) * int(lengths[order[start]]) > PADDING * held and i > start:
            blocks.append(order[start:i])
            start, held = i, int(lengths[row])
    blocks.append(order[start:])
    return blocks
