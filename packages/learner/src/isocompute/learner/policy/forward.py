"""One pass of a policy over a micro-batch: hidden states, and what the objective needs of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..batch.micro import MicroBatch
from ..batch.packing import packed, padded
from ..batch.responses import Responses
from ..batch.splitting import Piece, micro_batches
from ..errors import LearnerError
from ..settings.compute import ComputeConfig
from . import attention
from .head import Terms, token_terms
from .probe import SAME, at_least_float32, probe, without_dropout
from .weights import vocabulary

logger = logging.getLogger(__name__)


class Forward:
    """How a policy is run: packed where that gives what the model gives, otherwise padded.

    Args:
        policy: From ``load_policy``.
        config: How an update is computed.
        temperature: The sampling temperature.
        device: A torch device.
        like: How another policy of the same architecture is run, which is to be given the same micro-batches: a
            reference is run as the policy is, and without gradient; None: how this one can be run is found out.

    Raises:
        LearnerError: The layout ``packed`` is asked for, and the model gives something else that way; or gradient
            checkpointing is, and it gives something else in training mode.
    """

    def __init__(
        self, policy: Any, config: ComputeConfig, *, temperature: float, device: str, like: Forward | None = None
    ) -> None:
        self.policy, self._temperature, self._device = policy, temperature, device
        self._dtype: torch.dtype = next(policy.parameters()).dtype
        # What the model means is found out in float32: in bfloat16 rounding would look like another meaning.
        self._config = replace(config, precision="float32")
        self.packs = False
        self._window: int | None = None if like is None else like._window
        if like is not None and like.packs:
            policy.set_attn_implementation(attention.NAME)
            self.packs = True
        elif like is None and (config.layout != "padded" or config.gradient_checkpointing):
            with at_least_float32(policy):
                self._settle()
        self._config = config

    @property
    def dtype(self) -> torch.dtype:
        """Type that matrices are multiplied in."""
        lower = self._config.precision == "bfloat16" and self._dtype == torch.float32
        return torch.bfloat16 if lower else self._dtype

    def micro_batch(self, responses: Responses, piece: Piece) -> MicroBatch:
        """The tensors of a piece.

        Args:
            responses: The responses.
            piece: Those that pass through the model together.
        """
        numbers = torch.float64 if self._dtype == torch.float64 else torch.float32
        return (packed if piece.packed else padded)(responses, piece, self._device, numbers)

    def pieces(self, responses: Responses, rows: np.ndarray) -> Iterator[Piece]:
        """Cut rows into what passes through the model together; see ``batch.micro_batches``.

        Args:
            responses: The responses.
            rows: Their rows that pass through the model.
        """
        tokens = self._config.micro_batch_tokens
        for piece in micro_batches(responses, rows, tokens=tokens, share_prompts=self.packs):
            if self._window is not None and responses.whole_lengths[piece.rows].max() > self._window:
                yield from micro_batches(responses, piece.rows, tokens=tokens, share_prompts=False)
            else:
                yield piece

    def attending(self, batch: MicroBatch) -> AbstractContextManager[attention.Passing | None]:
        """Hold on to what a micro-batch consists of, during its forward and its backward pass.

        Args:
            batch: The micro-batch.
        """
        return attention.attending(batch.rows)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """The hidden state that predicts each sampled token, shape ``(tokens, hidden size)``.

        Args:
            batch: The micro-batch; ``attending`` holds it.

        Raises:
            LearnerError: It is packed, and this model is run on padded ones.
        """
        if batch.rows is not None and not self.packs:
            raise LearnerError("a packed micro-batch was given to a model that is run padded; it must be padded")
        kind, lower = torch.device(self._device).type, self.dtype != self._dtype
        with torch.autocast(kind, dtype=self.dtype) if lower else nullcontext():
            states = self.policy.base_model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                attention_mask=attention.no_mask(self._device) if batch.rows is not None else batch.attention_mask,
                use_cache=False,
            ).last_hidden_state
        found: torch.Tensor = states.flatten(0, 1).index_select(0, batch.predicts)
        return found

    def terms(
        self, hidden: torch.Tensor, batch: MicroBatch, *, entropy: bool = False, entropy_gradient: bool = False
    ) -> Terms:
        """Log-probabilities and entropies of the sampled tokens; see ``head.token_terms``.

        Args:
            hidden: From ``hidden``.
            batch: The micro-batch.
            entropy: Whether entropies are measured.
            entropy_gradient: Whether they have a gradient.
        """
        lower = self._config.precision == "bfloat16" and not self._config.float32_head
        return token_terms(
            hidden,
            self.policy.get_output_embeddings(),
            batch.tokens,
            temperature=self._temperature,
            chunk=self._config.head_chunk_tokens,
            dtype=torch.bfloat16 if lower else torch.promote_types(self._dtype, torch.float32),
            entropy=entropy,
            entropy_gradient=entropy_gradient,
        )

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities of the sampled tokens without gradient, shape ``(tokens,)``.

        Args:
            batch: The micro-batch.
        """
        with torch.no_grad(), self.attending(batch):
            return self.terms(self.hidden(batch), batch).logprobs

    def _settle(self) -> None:
        """Find out by a few responses whether the model can be packed, and whether it can be checkpointed."""
        rows = probe(vocabulary(self.policy))
        every = np.arange(len(rows))
        batches = {
            packs: self.micro_batch(rows, next(micro_batches(rows, every, tokens=10**9, share_prompts=packs)))
            for packs in (False, True)
        }
        expected = self.logprobs(batches[False])
        if self._config.layout != "padded":
            self._try_packing(batches[True], expected)
        if self._config.gradient_checkpointing:
            _checkpointed(self.policy)
            difference = _largest(self.logprobs(batches[self.packs]) - expected)
            if not difference < SAME:
                raise LearnerError(
                    f"compute.gradient_checkpointing is on, and in training mode, which it needs, this model gives "
                    f"log-probabilities that differ by {difference:.2g} nats: set it to false"
                )

    def _try_packing(self, batch: MicroBatch, expected: torch.Tensor) -> None:
        """Switch to packed attention where a micro-batch shows that the model means the same by it."""
        own = self.policy.config._attn_implementation
        try:
            self.policy.set_attn_implementation(attention.NAME)
            self.packs = True
            with torch.no_grad(), self.attending(batch) as passing:
                difference = _largest(self.terms(self.hidden(batch), batch).logprobs - expected)
            reason = "" if difference < SAME else f"a log-probability differs by {difference:.2g} nats"
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not reason:
            self._window = passing.window if passing is not None and self._config.layout == "auto" else None
            return
        self.packs = False
        self.policy.set_attn_implementation(own)
        if self._config.layout == "packed":
            raise LearnerError(
                f"compute.layout is packed, which this model cannot be run as ({reason}): set it to auto"
            )
        logger.warning("responses are padded, since the model cannot be run on packed ones (%s)", reason)


def _checkpointed(policy: Any) -> None:
    """Let layers keep their inputs only, which they do in training mode alone, and drop nothing at random."""
    try:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise LearnerError(
            f"compute.gradient_checkpointing is on, which this model does not have ({error}): set it to false"
        ) from None
    without_dropout(policy)
    for module in policy.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.training = True


def _largest(differences: torch.Tensor) -> float:
    return float(differences.abs().max())
