"""One pass of a policy over a micro-batch: hidden states, and the terms of the objective from them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from ..batch.packing import MicroBatch, Piece, micro_batches, packed, padded
from ..batch.responses import OF_ROWS, Lists, Responses
from ..config import ComputeConfig
from ..contract.files import reason_of
from ..errors import LearnerError
from . import adapter, attention
from .head import Terms, token_terms
from .loading import blocks, body, inside, is_sharded, vocabulary

logger = logging.getLogger(__name__)
SAME = 1e-3
"""Largest rounding difference (nats) between float32 log-probabilities from two ways through a model."""


class Forward:
    """The forward pass of a policy: packed if that gives the same results as the model, otherwise padded.

    Args:
        like: Run this policy like another ``Forward`` of the same architecture, since both get the same micro-batches,
            as a reference runs like the policy. None: find out how to run it.

    Raises:
        LearnerError: The model is not causal; or the layout ``packed`` was requested and changes the results; or
            gradient checkpointing was requested and the results differ in training mode.
    """

    def __init__(
        self, policy: Any, config: ComputeConfig, *, temperature: float, device: str, like: Forward | None = None
    ) -> None:
        self.policy, self._temperature, self._device = policy, temperature, device
        # Beneath an adapter, the model may be of a lower type.
        self._dtype: torch.dtype = reduce(torch.promote_types, (each.dtype for each in policy.parameters()))
        self._adapted = True
        # Probe the model in float32: in bfloat16 rounding would look like a different result.
        self._config = replace(config, precision="float32", float32_head=True)
        self.packs = False
        self._window: int | None = None if like is None else like._window
        self._rotated = rotated_otherwise_beyond(policy.config)
        if like is not None and like.packs:
            policy.set_attn_implementation(attention.NAME)
            self.packs = True
        elif like is None:
            with at_least_float32(policy):
                self._settle()
        if like is not None and config.gradient_checkpointing and any(p.requires_grad for p in policy.parameters()):
            _checkpointed(policy)
        self._config = config

    def without_adapter(self) -> Forward:
        """Return the forward pass of the model beneath the policy's adapter; the policy is shared, not copied."""
        base = copy(self)
        base._adapted = False
        return base

    @property
    def dtype(self) -> torch.dtype:
        """Type of matrix products."""
        lower = self._config.precision == "bfloat16" and self._dtype == torch.float32
        return torch.bfloat16 if lower else self._dtype

    def micro_batch(self, responses: Responses, piece: Piece) -> MicroBatch:
        """Make the tensors of a piece."""
        numbers = torch.float64 if self._dtype == torch.float64 else torch.float32
        return (packed if piece.packed else padded)(responses, piece, self._device, numbers)

    def pieces(self, responses: Responses, rows: np.ndarray) -> Iterator[Piece]:
        """Cut rows into pieces that pass through the model together; see ``batch.micro_batches``."""
        lengths = responses.whole_lengths[rows]
        check_rotation(self.policy.config, longest=int(lengths.max(initial=0)))
        limits = [limit for limit in (self._window, self._rotated) if limit is not None]
        # Responses on one side of a limit pass together. Beyond a window they are padded. Beyond the model's original
        # training length, all tokens of an input are rotated differently.
        for side in np.unique(sides := sum((lengths > limit for limit in limits), np.zeros(len(rows), dtype=int))):
            packs = self.packs and (self._window is None or lengths[sides == side].max() <= self._window)
            tokens = self._config.micro_batch_tokens
            yield from micro_batches(responses, rows[sides == side], tokens=tokens, share_prompts=packs)

    def attending(self, batch: MicroBatch) -> AbstractContextManager[attention.Passing | None]:
        """Set a micro-batch's rows for its forward and its backward pass."""
        return attention.attending(batch.rows)

    def run(
        self, batch: MicroBatch, *, entropy: bool = False, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, Terms]:
        """Compute the hidden state that predicts each sampled token, shape ``(tokens, hidden size)``, and its terms."""
        if batch.rows is not None and not self.packs:
            raise LearnerError("a packed micro-batch was given to a model that is run padded; it must be padded")

        terms = partial(
            token_terms,
            tokens=batch.tokens,
            temperature=self._temperature,
            chunk=self._config.head_chunk_tokens,
            dtype=torch.promote_types(self.dtype, torch.float32) if self._config.float32_head else self.dtype,
            entropy=entropy,
            entropy_gradient=entropy_gradient,
        )

        def use(policy: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
            hidden = self._hidden(policy, batch)
            return hidden, *inside(policy.get_output_embeddings(), terms, hidden)

        with nullcontext() if self._adapted else adapter.without_adapter(self.policy):
            hidden, logprobs, entropies = inside(self.policy, use)
        return hidden, Terms(logprobs, entropies)

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Compute log-probabilities of the sampled tokens without gradient, shape ``(tokens,)``."""
        with torch.no_grad(), self.attending(batch):
            return self.run(batch)[1].logprobs

    def _hidden(self, policy: Any, batch: MicroBatch) -> torch.Tensor:
        # A sharded policy is cast when its blocks are gathered.
        cast = self.dtype != self._dtype and not is_sharded(policy)
        with torch.autocast(torch.device(self._device).type, dtype=self.dtype) if cast else nullcontext():
            states = body(policy)(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                attention_mask=torch.ones_like(batch.input_ids) if batch.rows is not None else batch.attention_mask,
                use_cache=False,
            ).last_hidden_state
        return batch.predicts(states.flatten(0, 1))

    def _settle(self) -> None:
        """Probe with a few responses whether the model is causal, can be packed and can be checkpointed."""
        rows, altered, before = probe(vocabulary(self.policy))
        padded_rows, packed_rows, altered_rows = (
            self.micro_batch(
                tried, next(micro_batches(tried, np.arange(len(tried)), tokens=10**9, share_prompts=packs))
            )
            for tried, packs in ((rows, False), (rows, True), (altered, False))
        )
        try:
            expected = self.logprobs(padded_rows)
            ahead = _largest((self.logprobs(altered_rows) - expected)[torch.from_numpy(before)])
        except Exception as error:
            raise LearnerError(
                f"a {type(self.policy).__name__} cannot be run on token ids, positions and a mask alone "
                f"({reason_of(error)}): use a decoder-only model"
            ) from error
        if not ahead < SAME:
            raise LearnerError(
                f"the log-probability of a token changes by {ahead:.2g} nats with what follows it: this "
                f"{type(self.policy).__name__} is no causal model (is_decoder and is_causal of its configuration must "
                "be on, where it has them)"
            )
        if self._config.layout != "padded":
            self._try_packing(packed_rows, expected)
        if self._config.gradient_checkpointing:
            _checkpointed(self.policy)
            difference = _largest(self.logprobs(packed_rows if self.packs else padded_rows) - expected)
            if not difference < SAME:
                raise LearnerError(
                    f"compute.gradient_checkpointing is on, and in training mode, which it needs, this model gives "
                    f"log-probabilities that differ by {difference:.2g} nats: set it to false"
                )

    def _try_packing(self, batch: MicroBatch, expected: torch.Tensor) -> None:
        """Switch to packed attention if a micro-batch shows that it gives the same results."""
        own = self.policy.config._attn_implementation
        try:
            refuse_by_place(self.policy.config)
            self.policy.set_attn_implementation(attention.NAME)
            self.packs = True
            with torch.no_grad(), attention.attending(batch.rows, reach=attention.BEYOND_ANY) as passing:
                difference = _largest(self.run(batch)[1].logprobs - expected)
            reason = "" if difference < SAME else f"a log-probability differs by {difference:.2g} nats"
        except Exception as error:
            reason = reason_of(error)
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
    """Let layers keep only their inputs. They do so only in training mode, so dropout is turned off."""
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


PROMPTS, RESPONSES = (3, 3, 2, 2), np.array([4, 2, 3, 5])
"""Token counts of the probe's prompts, two of which are equal, and of its responses."""


def probe(vocabulary: int) -> tuple[Responses, Responses, np.ndarray]:
    """Two prompts with two responses each; the same with one token changed; and a mask of the tokens before the change.

    The changed token is the second last of each response, the last that passes through the model.
    """
    generator = np.random.default_rng(0)
    values = generator.integers(0, vocabulary, RESPONSES.sum())
    first, second = generator.integers(0, vocabulary, 3), generator.integers(0, vocabulary, 2)
    prompts = Lists(offsets=np.cumsum([0, *PROMPTS]), values=np.concatenate([first, first, second, second]))
    offsets = np.cumsum([0, *RESPONSES])
    other, before = values.copy(), np.ones(len(values), dtype=bool)
    other[offsets[1:] - 2] = (other[offsets[1:] - 2] + vocabulary // 2) % vocabulary
    before[offsets[1:] - 2] = before[offsets[1:] - 1] = False

    def answered(tokens: np.ndarray) -> Responses:
        responses = Lists(offsets=offsets, values=tokens)
        return Responses(
            prompts=prompts,
            responses=responses,
            sampled=np.ones(len(tokens), dtype=bool),
            counts=responses.lengths,
            logprobs=Lists(offsets=offsets, values=np.zeros(len(tokens))),
            shares_prompt=np.array([False, True, False, True]),
            of_rows={name: np.zeros(4) for name in OF_ROWS},
            of_tokens={},
        )

    return answered(values), answered(other), before


BY_PLACE = ("attn_temperature_tuning", "index_topk", "index_topk_blocks")
"""Settings of transformers models that depend on a token's place in the input instead of its position id.

Llama 4 scales queries beyond 8,192 tokens (``floor_scale``). Models with DeepSeek's sparse attention choose keys from
the whole input beyond 2,048 tokens. Both are too many tokens to probe.
"""


def refuse_by_place(config: Any) -> None:
    """Refuse to pack a model with a setting of ``BY_PLACE``."""
    for name in BY_PLACE:
        if getattr(config.get_text_config(), name, None):
            raise LearnerError(f"it scales or chooses by a token's place in the input ({name})")


def rotated_otherwise_beyond(config: Any) -> int | None:
    """Length (tokens) beyond which one response makes a model rotate its whole input differently (LongRoPE)."""
    limits = [
        each.get("original_max_position_embeddings") or config.get_text_config().max_position_embeddings
        for each in _rotations(config)
        if each.get("rope_type") == "longrope"
    ]
    return min(limits, default=None)


def check_rotation(config: Any, *, longest: int) -> None:
    """Refuse responses so long that, with dynamic NTK scaling, their rotation depends on earlier responses."""
    dynamic = any(each.get("rope_type") == "dynamic" for each in _rotations(config))
    limit = config.get_text_config().max_position_embeddings if dynamic else longest
    if longest > limit:
        raise LearnerError(
            f"a response has {longest} tokens with its prompt, more than the model's {limit}, beyond which its "
            "rope_type dynamic makes log-probabilities depend on what was computed before: it must be shorter"
        )


def _rotations(config: Any) -> list[dict[str, Any]]:
    """The RoPE parameters of each kind of layer."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [given] if "rope_type" in given else [each for each in given.values() if isinstance(each, dict)]


@contextmanager
def at_least_float32(policy: Any) -> Iterator[None]:
    """Run a policy in float32 within this context, one layer at a time; its weights are restored bit for bit.

    In bfloat16 two attention kernels give log-probabilities that differ by 0.03 nats, which would look like another
    result.
    """
    layers = {layer: _lower(layer) for layer in blocks(policy)}
    inside = {id(tensor) for held in layers.values() for tensor, _ in held}
    outside = [(tensor, dtype) for tensor, dtype in _lower(policy) if id(tensor) not in inside]
    hooks = []
    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(lambda module, _: _cast(layers[module], torch.float32)))
        hooks.append(layer.register_forward_hook(lambda module, *_: _cast(layers[module]), always_call=True))
    _cast(outside, torch.float32)
    try:
        yield
    finally:
        _cast(outside)
        for hook in hooks:
            hook.remove()


Lower = list[tuple[torch.Tensor, torch.dtype]]
"""Tensors of a lower type than float32, each with its type."""


def _lower(module: torch.nn.Module) -> Lower:
    return [
        (tensor, tensor.dtype)
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32
    ]


def _cast(held: Lower, dtype: torch.dtype | None = None) -> None:
    for tensor, own in held:
        tensor.data = tensor.data.to(dtype or own)


def without_dropout(policy: Any) -> None:
    """Set all dropout rates of a model to 0, wherever it stores them."""
    config = policy.config
    for holder in (config, config.get_text_config(), *policy.modules()):
        for name, value in list(vars(holder).items()):
            if "drop" in name.lower() and isinstance(value, float):
                setattr(holder, name, 0.0)
        if isinstance(holder, torch.nn.modules.dropout._DropoutNd):
            holder.p = 0.0
