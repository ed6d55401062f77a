"""From a ``rollouts`` table to padded tensors, through Arrow's offsets and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from .errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Responses padded to one length.

    Two responses of 3 and 1 tokens after prompts of 2 and 4 give ``input_ids`` of shape (2, 5) and
    4 response tokens.

    Attributes:
        input_ids: Prompt, response, then padding; shape ``(rows, length)``.
        attention_mask: 1 on prompt and response; the same shape.
        predicts: True where a position's logits predict a response token; the same shape.
        tokens: The response tokens, row by row; shape ``(tokens,)``.
        sampler_logprobs: Their log-probabilities under the sampler; shape ``(tokens,)``.
        advantages: The advantage of each token's response; shape ``(tokens,)``.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    predicts: torch.Tensor
    tokens: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor


def micro_batches(rollouts: pl.DataFrame, rows: int, device: str, *, vocabulary: int) -> Iterator[MicroBatch]:
    """Yield the responses of a ``rollouts`` table with an ``advantage`` column, ``rows`` at a time.

    Responses without a token are left out: they add nothing to a sum over tokens.

    Args:
        rollouts: The table.
        rows: Responses per micro-batch.
        device: Torch device of its tensors.
        vocabulary: Number of tokens that the policy knows.

    Raises:
        LearnerError: A row has no prompt, other than one log-probability per token, or an unknown token.
    """
    rollouts = rollouts.filter(pl.col("response_ids").list.len() > 0)
    _check(rollouts, vocabulary)
    prompts = _lists(rollouts["prompt_ids"])
    responses = _lists(rollouts["response_ids"])
    logprobs = _lists(rollouts["logprobs"])
    advantages = rollouts["advantage"].to_numpy()
    for start in range(0, len(rollouts), rows):
        chosen = slice(start, min(start + rows, len(rollouts)))
        yield _pad(prompts, responses, logprobs, advantages[chosen], chosen, device)


def _check(rollouts: pl.DataFrame, vocabulary: int) -> None:
    prompt, response, logprobs = (pl.col(name).list for name in ("prompt_ids", "response_ids", "logprobs"))
    unknown = (prompt.max() >= vocabulary) | (response.max() >= vocabulary) | (prompt.min() < 0) | (response.min() < 0)
    faults = {
        "no prompt token, from which its first token would be predicted": prompt.len() == 0,
        "a number of log-probabilities that differs from its number of tokens": logprobs.len() != response.len(),
        f"a token outside the model's vocabulary of {vocabulary}": unknown,
    }
    for fault, condition in faults.items():
        rows = rollouts.filter(condition)
        if len(rows):
            problem, sample = rows.select("problem_id", "sample").row(0)
            raise LearnerError(f"response {sample} to problem {problem} has {fault}")


@dataclass(frozen=True, slots=True)
class _Lists:
    offsets: np.ndarray
    values: np.ndarray

    def of(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Lengths and joined values of some rows."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        return np.diff(offsets), self.values[offsets[0] : offsets[-1]]


def _lists(column: pl.Series) -> _Lists:
    array = column.rechunk().to_arrow()
    return _Lists(array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False))


def _pad(
    prompts: _Lists, responses: _Lists, logprobs: _Lists, advantages: np.ndarray, rows: slice, device: str
) -> MicroBatch:
    prompt_length, prompt = prompts.of(rows)
    response_length, response = responses.of(rows)
    _, sampled = logprobs.of(rows)
    total = prompt_length + response_length
    position = np.arange(total.max())[None, :]
    in_prompt = position < prompt_length[:, None]
    in_response = ~in_prompt & (position < total[:, None])
    ids = np.zeros(in_prompt.shape, dtype=np.int64)
    # Row-major boolean assignment visits a row's positions in order, as the joined values are.
    ids[in_prompt] = prompt
    ids[in_response] = response
    predicts = np.zeros_like(in_response)
    predicts[:, :-1] = in_response[:, 1:]

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(np.array(array), dtype=dtype, device=device)

    return MicroBatch(
        input_ids=tensor(ids, torch.long),
        attention_mask=tensor(in_prompt | in_response, torch.long),
        predicts=tensor(predicts, torch.bool),
        tokens=tensor(response, torch.long),
        sampler_logprobs=tensor(sampled, torch.float32),
        advantages=tensor(np.repeat(advantages, response_length), torch.float32),
    )
