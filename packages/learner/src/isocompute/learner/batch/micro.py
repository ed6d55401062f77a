"""A micro-batch: tensors of the responses that pass through the model together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Which positions of a packed sequence attend to which: rows of whole responses, each behind its prompt.

    Two responses of 3 and 2 tokens to one prompt of 2, whose last tokens predict nothing and do not run, are packed as
    ``p0 p1 a0 a1 b0``: the blocks hold the rows ``[[0, 1, 2, 3], [0, 1, 4, 0]]`` (the last 0 is padding), and
    ``take`` is ``[0, 1, 2, 3, 6]``.

    Attributes:
        blocks: For rows of about the same length, the position of each of their tokens; shapes ``(rows, length)``.
            A row attends to what is before it in the row, so padding at its end changes nothing.
        take: Where each packed position's result is in the blocks' rows, joined; shape ``(positions,)``. A prompt's is
            in the row of its first response.
    """

    blocks: tuple[torch.Tensor, ...]
    take: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Responses that pass through the model together; ``tokens`` are those that the policy sampled, row by row.

    Tokens that the policy did not sample, such as those that a forced interruption inserted, are context like the
    prompt: they are in ``input_ids`` and nowhere else.

    Attributes:
        input_ids: Shape ``(1, positions)`` when packed, else ``(responses, length)``.
        position_ids: The same shape.
        attention_mask: 1 on tokens and 0 on padding, the same shape; None when packed.
        rows: What attends to what when packed; None otherwise.
        passed: How many tokens pass through the model: prompts and responses, and no padding.
        keys: How many keys these attend to, all together; see ``rate.training_operations``.
        predicts: For each sampled token the position, in the flattened input, that predicts it; shape ``(tokens,)``.
        tokens: The sampled tokens, shape ``(tokens,)``.
        response: The index of each one's response, shape ``(tokens,)``.
        responses: How many responses there are.
        sampler_logprobs: Their log-probabilities under the sampler (nats), shape ``(tokens,)``.
        advantages: The advantage of each, shape ``(tokens,)``.
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
    predicts: torch.Tensor
    tokens: torch.Tensor
    response: torch.Tensor
    responses: int
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    zero_variance: torch.Tensor
    measured: Mapping[str, torch.Tensor]
