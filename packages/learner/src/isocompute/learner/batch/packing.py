"""A piece of a batch as tensors: packed, with each prompt once and no padding, or padded to one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .micro import MicroBatch, PackedRows
from .responses import Responses, positions
from .splitting import Piece

PADDING = 1.25
"""Most that padding may add to the rows of a block of attention, as a multiple of their tokens."""


def packed(responses: Responses, piece: Piece, device: str, dtype: torch.dtype) -> MicroBatch:
    """Pack a piece into one sequence: all prompts, then all responses without their last tokens."""
    prompt_rows, rows = piece.first_rows, piece.rows
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
        **_of_tokens(responses, rows, predicts, device, dtype),
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
    return MicroBatch(
        input_ids=_sent(ids, torch.long, device),
        position_ids=_sent(np.broadcast_to(place, ids.shape).copy(), torch.long, device),
        attention_mask=_sent(in_prompt | in_response, torch.long, device),
        rows=None,
        passed=int(whole.sum()),
        keys=int((whole * (whole + 1) // 2).sum()),
        **_of_tokens(
            responses, rows, _predicting(starts - 1, starts, responses.responses.lengths[rows]), device, dtype
        ),
    )


def _sent(values: np.ndarray, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of some numbers on a device; to a GPU it is sent while this goes on (*unverified*)."""
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


def _of_tokens(
    responses: Responses, rows: np.ndarray, predicts: np.ndarray, device: str, dtype: torch.dtype
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
        "predicts": _sent(predicts[sampled], torch.long, device),
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
    take = np.zeros(int(run.sum() + prompts[np.unique(prompt, return_index=True)[1]].sum()), dtype=np.int64)
    firsts = np.zeros(len(run), dtype=bool)
    firsts[np.unique(prompt, return_index=True)[1]] = True
    blocks, done = [], 0
    for chosen in _blocks(lengths):
        width = int(lengths[chosen].max())
        block = np.zeros((len(chosen), width), dtype=np.int64)
        places = np.arange(width)[None, :]
        in_prompt = places < prompts[chosen][:, None]
        in_response = ~in_prompt & (places < lengths[chosen][:, None])
        block[in_prompt] = positions(prompt_starts[chosen], prompts[chosen])
        block[in_response] = positions(starts[chosen], run[chosen])
        at = done + np.arange(block.size).reshape(block.shape)
        take[block[in_response]] = at[in_response]
        # The same prompt stands in many rows, and is taken from that of its first response.
        own = in_prompt & firsts[chosen][:, None]
        take[block[own]] = at[own]
        blocks.append(_sent(block, torch.long, device))
        done += block.size
    return PackedRows(blocks=tuple(blocks), take=_sent(take, torch.long, device))


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
