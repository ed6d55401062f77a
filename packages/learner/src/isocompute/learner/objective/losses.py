"""The GRPO objective, token by token. Pure functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What the objective is made of; each tensor has the shape ``(tokens,)``.

    Attributes:
        logprobs: Log-probability of the sampled token under the policy, with its gradient.
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


def importance_weights(learner: torch.Tensor, sampler: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Truncated importance weights min(π_learner / π_sampler, cap), without gradient.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        cap: Largest weight (the TIS cap).

    Returns:
        One weight per token, shape ``(tokens,)``.
    """
    return (learner.detach() - sampler).exp().clamp(max=cap)


def kl_k3(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Per-token estimate of KL(policy ‖ reference): exp(d) − d − 1 with d = log π_ref − log π (Schulman's k3).

    Args:
        policy: Log-probabilities under the policy (nats), shape ``(tokens,)``.
        reference: Log-probabilities of the same tokens under the reference model (nats), shape ``(tokens,)``.

    Returns:
        One estimate per token (nats), shape ``(tokens,)``.
    """
    difference = reference - policy
    return difference.exp() - difference - 1.0


def policy_loss(logprobs: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Per-token surrogate −w · A · π/π_old, whose ratio is 1 in value and carries the gradient.

    One update is taken per batch, so π_old is the policy itself and clipping never acts.

    Args:
        logprobs: Log-probabilities under the policy, with their gradient, shape ``(tokens,)``.
        advantages: The advantage of each token's response, shape ``(tokens,)``.
        weights: Importance weights, shape ``(tokens,)``.

    Returns:
        One term per token, with its gradient, shape ``(tokens,)``.
    """
    ratio = (logprobs - logprobs.detach()).exp()
    return -weights * advantages * ratio
