"""Log-probabilities and entropies of logits: the plain form, which holds all logits at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What the objective is made of; each tensor has the shape ``(tokens,)``.

    Attributes:
        logprobs: Log-probability of the sampled token under the policy (nats), with its gradient.
        entropy: Entropy of the policy's next-token distribution (nats), with its gradient.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor


def token_terms(logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float) -> TokenTerms:
    """Log-probabilities and entropies at a temperature.

    Args:
        logits: Shape ``(tokens, vocabulary)``.
        tokens: The tokens sampled, shape ``(tokens,)``.
        temperature: The sampling temperature.

    Returns:
        Log-probabilities of ``tokens`` and entropies, each of shape ``(tokens,)``.
    """
    log_distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    logprobs = log_distribution.gather(-1, tokens[:, None]).squeeze(-1)
    entropy = -(log_distribution.exp() * log_distribution).sum(-1)
    return TokenTerms(logprobs=logprobs, entropy=entropy)
