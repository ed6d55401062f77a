"""How an update is computed: what it takes of memory and time, and nothing of what is learnt but rounding."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import one_of, truth, whole

LAYOUTS = ("auto", "packed", "padded")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig:
    """How an update is computed.

    Attributes:
        micro_batch_tokens: Tokens per forward and backward pass of a rank, prompts included; a single response may
            have more.
        layout: ``packed``: without padding, a group's prompt once for all its responses; ``padded``: a row for each
            response; ``auto``: packed where the model gives the same log-probabilities that way.
        precision: Type of activations: ``float32``, or ``bfloat16`` with weights, gradients and moments in float32.
        float32_head: Compute logits in float32 where ``precision`` is not (MiniMax-M1, arXiv 2506.13585, section 3.2).
        head_chunk_tokens: Tokens whose logits are held at a time; they are computed again in the backward pass.
        gradient_checkpointing: Keep only the inputs of layers and compute the rest again in the backward pass.

    Raises:
        LearnerError: A value is out of its range.
    """

    micro_batch_tokens: int = 8192
    layout: str = "auto"
    precision: str = "float32"
    float32_head: bool = True
    head_chunk_tokens: int = 2048
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        whole(self, "micro_batch_tokens", "head_chunk_tokens", least=1)
        one_of(self, "layout", LAYOUTS)
        one_of(self, "precision", PRECISIONS)
        truth(self, "float32_head", "gradient_checkpointing")
