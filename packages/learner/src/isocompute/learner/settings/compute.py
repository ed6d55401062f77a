"""How an update is computed: what it takes of memory and time, and nothing of what is learnt but rounding."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import one_of, truth, whole

LAYOUTS = ("auto", "packed", "padded")
PRECISIONS = ("float32", "bfloat16")
SHARDINGS = ("auto", "none")
ATTENDED = 4
"""Most tokens that attention sees in a micro-batch, for each token of ``micro_batch_tokens``."""


def fits(tokens: int, *, positions: int, attended: int) -> bool:
    """Whether so much may pass through the model together.

    Args:
        tokens: ``ComputeConfig.micro_batch_tokens``.
        attended: Tokens of the rows of attention: packed prompts are repeated there for each response.
    """
    return positions <= tokens and attended <= ATTENDED * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig:
    """How an update is computed.

    Attributes:
        micro_batch_tokens: Most tokens per forward and backward pass of a rank, prompts and padding included;
            attention, which sees a packed prompt again before each of its responses, may see four times as many. A
            single response may have more.
        layout: ``packed``: without padding, a group's prompt once for all its responses; ``padded``: a row for each
            response; ``auto``: packed where the model gives the same log-probabilities that way, and padded where a
            response exceeds a sliding window of the model.
        precision: Type of activations: ``float32``, or ``bfloat16`` with weights, gradients and moments in float32.
            The reference of a KL then has its weights in bfloat16 too, which takes half the memory: it is the base
            model rounded, and the KL of a policy that is the base model still is not 0 (5e-5 nats for a small one).
        float32_head: Compute logits in float32 where ``precision`` is not (MiniMax-M1, arXiv 2506.13585, section 3.2):
            the four products of the head with the vocabulary, one forward and three backward, which a GPU multiplies
            several times more slowly than in bfloat16. Without it those products are in bfloat16, and the softmax,
            log-probabilities and the sum of the head's gradient in float32 all the same.
        head_chunk_tokens: Tokens whose logits are held at a time; they are computed again in the backward pass.
        sharding: ``auto``: several ranks share one policy, so that each holds and computes a part of its weights,
            gradients and moments, and of the weights of a KL's reference (FSDP2); ``none``: each rank has the whole
            of them, which takes as much memory on each, and less time where the model is small.
        gradient_checkpointing: Keep only the inputs of layers and compute the rest again in the backward pass.

    Raises:
        LearnerError: A value is out of its range.
    """

    micro_batch_tokens: int = 8192
    layout: str = "auto"
    precision: str = "float32"
    float32_head: bool = True
    head_chunk_tokens: int = 2048
    sharding: str = "auto"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        whole(self, "micro_batch_tokens", "head_chunk_tokens", least=1)
        one_of(self, "layout", LAYOUTS)
        one_of(self, "precision", PRECISIONS)
        one_of(self, "sharding", SHARDINGS)
        truth(self, "float32_head", "gradient_checkpointing")
