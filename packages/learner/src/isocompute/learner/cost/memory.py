"""What an update needs of a device's memory, from numbers alone: before a model is loaded, and without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..config import LearnerConfig
from ..errors import LearnerError
from ..settings.compute import fits
from .shape import ModelShape

GIB, MIB = 2**30, 2**20
FLOAT32 = 4
WIDTHS = {"float32": 4, "bfloat16": 2}
INDEX = 8
"""Bytes of an index, as torch has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What passes through the model together.

    Two prompts of 4 tokens with 3 responses of 10 each, packed: 62 positions (2·4 + 6·9, since a last token predicts
    nothing), 78 attended (6·13), 60 sampled.

    Attributes:
        positions: Tokens that the layers see, padding included.
        attended: Tokens of the rows of attention: prompts are repeated there for each response.
        sampled: Sampled tokens.
        passes: Micro-batches of the rank.
        masked: Entries of the mask of attention, which a padded micro-batch has: its rows times the square of their
            length.
    """

    positions: int
    attended: int
    sampled: int
    passes: int
    masked: int = 0

    @classmethod
    def of(
        cls,
        *,
        prompt_tokens: int,
        response_tokens: int,
        rollouts_per_problem: int,
        problems: int,
        micro_batch_tokens: int,
        packed: bool = True,
    ) -> Load:
        """Return the load of a rank's share of a batch whose prompts and responses are of one length.

        Args:
            response_tokens: Tokens of a response; where lengths differ the mean when packed, the longest when padded.
            problems: Problems of the rank's share.
            micro_batch_tokens: As in ``ComputeConfig``.
            packed: Whether responses are packed; see ``ComputeConfig``.

        Raises:
            LearnerError: A number is not positive.
        """
        for name, value in (
            ("prompt_tokens", prompt_tokens), ("response_tokens", response_tokens),
            ("rollouts_per_problem", rollouts_per_problem), ("problems", problems),
        ):  # fmt: skip
            if value < 1:
                raise LearnerError(f"{name} is {value}; it must be 1 or more")
        run, most = response_tokens - 1, problems * rollouts_per_problem

        def cost(count: int) -> int:
            prompts = ceil(count / rollouts_per_problem) if packed else count
            return prompts * prompt_tokens + count * run

        count, whole = 1, prompt_tokens + run
        while count < most and fits(micro_batch_tokens, positions=cost(count + 1), attended=(count + 1) * whole):
            count += 1
        return cls(
            positions=cost(count),
            attended=count * whole,
            sampled=count * response_tokens,
            passes=ceil(most / count),
            masked=0 if packed else count * whole**2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a rank holds at the peak of an update (bytes); nothing of it is sharded over ranks.

    Attributes:
        parameters: Number of parameters.
        load: What passes through the model together.
        weights: The policy.
        moments: AdamW's two moments.
        base: The base model as the reference of a KL; 0 without one.
        lower: Copies of the weights in the type of the activations, where that is another.
        gradients: Gradients that are there at the peak.
        activations: What layers keep for the backward pass.
        transient: Logits of a chunk or gradients within a layer, whichever is more.
        batch: The tensors of a micro-batch.
    """

    parameters: int
    load: Load
    weights: float
    moments: float
    base: float
    lower: float
    gradients: float
    activations: float
    transient: float
    batch: float

    @property
    def peak(self) -> float:
        """All together (bytes)."""
        return sum(size for _, size in self._rows())

    @property
    def unit(self) -> tuple[str, int]:
        """The unit that it is printed in, and its bytes."""
        return ("GiB", GIB) if self.peak >= GIB else ("MiB", MIB)

    def _rows(self) -> list[tuple[str, float]]:
        load = f"{self.load.positions:,} tokens"
        return [
            ("weights", self.weights),
            ("base model", self.base),
            ("moments of AdamW", self.moments),
            ("gradients", self.gradients),
            ("weights in the type of the activations", self.lower),
            (f"activations of {load}", self.activations),
            ("logits of a chunk, or gradients within a layer", self.transient),
            ("the micro-batch", self.batch),
        ]

    def __str__(self) -> str:
        rows = [*[row for row in self._rows() if row[1]], ("in all", self.peak)]
        name, unit = self.unit
        return "\n".join(f"{row:<60}{size / unit:>9.2f} {name}" for row, size in rows)


def predict(shape: ModelShape, config: LearnerConfig, load: Load) -> MemoryPlan:
    """Predict the peak of an update: the tensors that a rank holds then.

    It is reached in one of three places of a backward pass: in the output head, with the activations of all layers
    kept; in the last layer; or in the first one, where of activations none are left and of gradients all are there.
    Not modelled: what allocators keep and fragment, workspaces of libraries, the process and its code, the rollouts in
    main memory, other feed-forward layers than gated ones, adapters, buffers of collectives (they reduce in place), and
    the copies of shared keys and values for each head that a GPU makes in float32, and transformers of padded batches.

    Args:
        config: The learner's settings.
        load: What passes through the model together.
    """
    compute = config.compute
    lower, width = compute.precision != "float32", WIDTHS[compute.precision]
    layer, within = _layer(shape, load, width), _within_layer(shape, load, width)
    inputs = float(load.positions * shape.hidden * FLOAT32)
    if compute.gradient_checkpointing:
        # A layer that is computed again has its input already.
        kept, in_layer = shape.layers * inputs, shape.layers * inputs + layer - inputs
    else:
        kept = in_layer = shape.layers * layer
    # After the layers: the last norm, and the hidden states that predict sampled tokens.
    after = 2 * inputs + load.positions * FLOAT32 + load.sampled * shape.hidden * FLOAT32
    gradients, of_head = float(shape.parameters * FLOAT32), float(shape.vocabulary * shape.hidden * FLOAT32)
    # From a first micro-batch on, those of all weights are there, and the head's once more until it is added.
    before = 0.0 if load.passes == 1 else gradients
    gradients_then, activations, transient = max(
        (before, kept + after, _head(shape, load, config) + of_head),
        (before, in_layer, within + of_head),
        (gradients, 0.0, within + (of_head if before else 0.0)),
        key=sum,
    )
    return MemoryPlan(
        parameters=shape.parameters,
        load=load,
        weights=shape.parameters * FLOAT32,
        moments=2 * shape.parameters * FLOAT32,
        base=shape.parameters * width if config.kl.coefficient else 0.0,
        # A layer that is computed again casts its weights again.
        lower=(shape.linear if compute.gradient_checkpointing else shape.linears) * width if lower else 0.0,
        gradients=gradients_then,
        activations=activations,
        transient=transient,
        batch=_micro_batch(load, config),
    )


def _layer(shape: ModelShape, load: Load, width: int) -> float:
    """Bytes that a layer keeps for its backward pass.

    Of each position the residual stream and its norm before attention and before the feed-forward layer, what its
    matrices multiply (its three and two uses of a normed input are copies of their own where the type is lower), and
    four vectors of the feed-forward layer: gate, its activation, up, their product. Of each attended token queries,
    keys, values, results and a normaliser for each head.
    """
    lower = width != FLOAT32
    streams = 4 * shape.hidden * FLOAT32 + 2 * FLOAT32
    multiplied = (5 if lower else 2) * shape.hidden * width + shape.query_width * width
    # An expert is given copies of its tokens.
    copies = shape.mixture.per_token * shape.hidden if shape.mixture else 0
    feed_forward = (4 * shape.passed + copies) * width
    attention = 2 * (shape.query_width + shape.key_width) * width + shape.heads * FLOAT32
    # Each layer adds a mask of numbers of its own.
    mask = load.masked * width
    return load.positions * (streams + multiplied + feed_forward) + load.attended * attention + mask


def _within_layer(shape: ModelShape, load: Load, width: int) -> float:
    """Gradients beyond what is freed meanwhile within the backward pass of a layer's feed-forward part."""
    return load.positions * (2 * shape.passed * width + 2 * shape.hidden * FLOAT32)


def _head(shape: ModelShape, load: Load, config: LearnerConfig) -> float:
    """Logits of a chunk as often as they are there together, the gradient of what the head is given, and its cast."""
    compute, gradient = config.compute, bool(config.entropy.coefficient)
    chunk = min(compute.head_chunk_tokens, load.sampled)
    copies = 4 if gradient else 2
    logits, given = float(copies * chunk * shape.vocabulary * FLOAT32), load.sampled * shape.hidden * FLOAT32
    if compute.precision == "float32" or compute.float32_head:
        return logits + given
    # The head is cast, and a chunk's part of its gradient is a product of that type before it is added.
    cast = shape.vocabulary * shape.hidden * WIDTHS[compute.precision]
    product = cast + chunk * shape.vocabulary * WIDTHS[compute.precision]
    return max(logits, product) + given + cast


def _micro_batch(load: Load, config: LearnerConfig) -> float:
    """Indices of positions, of the rows of attention and of sampled tokens, and numbers for each sampled token."""
    numbers = 3 + (2 if config.measures_first else 0)
    indices = INDEX * (3 * load.positions + load.attended + 3 * load.sampled)
    return indices + FLOAT32 * numbers * load.sampled + load.masked
