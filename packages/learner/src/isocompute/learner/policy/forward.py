"""One pass of a policy over a micro-batch: hidden states, and what the objective needs of them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from ..batch.micro import MicroBatch
from ..batch.packing import packed, padded
from ..batch.responses import Lists, Responses
from ..batch.splitting import Piece, micro_batches
from ..errors import LearnerError
from ..settings.compute import ComputeConfig
from . import attention
from .head import Terms, token_terms
from .weights import vocabulary

logger = logging.getLogger(__name__)

SAME = 1e-3
"""Largest difference (nats) between a log-probability of the packed and of the padded model that is rounding."""


class Forward:
    """How a policy is run: packed where that gives what the model gives, otherwise padded.

    Args:
        policy: From ``load_policy``.
        config: How an update is computed.
        temperature: The sampling temperature.
        device: A torch device.

    Raises:
        LearnerError: The layout ``packed`` is asked for, and the model gives something else that way.
    """

    def __init__(self, policy: Any, config: ComputeConfig, *, temperature: float, device: str) -> None:
        self.policy, self._config, self._temperature, self._device = policy, config, temperature, device
        self._dtype: torch.dtype = next(policy.parameters()).dtype
        self.packs = False
        if config.layout != "padded":
            self._try_packing(required=config.layout == "packed")
        if config.gradient_checkpointing:
            policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            # Layers are checkpointed in training mode only; dropout stays off by the configuration of the layers.
            _only_checkpointing(policy)

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
        return (packed if self.packs else padded)(responses, piece, self._device, numbers)

    def pieces(self, responses: Responses, rows: np.ndarray) -> Any:
        """Cut rows into what passes through the model together; see ``batch.micro_batches``.

        Args:
            responses: The responses.
            rows: Their rows that pass through the model.
        """
        return micro_batches(responses, rows, tokens=self._config.micro_batch_tokens, share_prompts=self.packs)

    def attending(self, batch: MicroBatch) -> AbstractContextManager[None]:
        """Hold on to what a micro-batch consists of, during its forward and its backward pass.

        Args:
            batch: The micro-batch.
        """
        return attention.attending(batch.rows)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """The hidden state that predicts each sampled token, shape ``(tokens, hidden size)``.

        Args:
            batch: The micro-batch; ``attending`` holds it.
        """
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

    def _try_packing(self, *, required: bool) -> None:
        """Switch to packed attention where a probe shows that the model means the same by it."""
        own = self.policy.config._attn_implementation
        probe = _probe(vocabulary(self.policy))
        piece = next(micro_batches(probe, np.arange(len(probe)), tokens=10**9))
        apart = next(micro_batches(probe, np.arange(len(probe)), tokens=10**9, share_prompts=False))
        expected = self.logprobs(self.micro_batch(probe, apart))
        try:
            self.policy.set_attn_implementation(attention.NAME)
            self.packs = True
            difference = float((self.logprobs(self.micro_batch(probe, piece)) - expected).abs().max())
            reason = "" if difference < SAME else f"a log-probability differs by {difference:.2g} nats"
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not reason:
            return
        self.packs = False
        self.policy.set_attn_implementation(own)
        if required:
            raise LearnerError(
                f"compute.layout is packed, which this model cannot be run as ({reason}): set it to auto"
            )
        logger.info("responses are padded, since the model cannot be run on packed ones (%s)", reason)


def _only_checkpointing(policy: Any) -> None:
    for module in policy.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.training = True
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def _probe(vocabulary: int) -> Responses:
    """Two prompts with two responses each, of different lengths."""
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
