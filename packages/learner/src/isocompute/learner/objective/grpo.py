"""The GRPO objective of a micro-batch: a pure function of tensors and settings, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import LearnerConfig
from ..errors import LearnerError
from .losses import TokenTerms, importance_weights, kl_k3, policy_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """What the objective is a function of; tensors have the shape ``(tokens,)``, row by row of the micro-batch.

    Attributes:
        terms: Log-probabilities and entropies under the policy, with their gradients.
        sampler_logprobs: Log-probabilities of the same tokens under the sampler (nats).
        advantages: The advantage of each token's response.
        reference_logprobs: Log-probabilities under the base model; None where ``kl_coefficient`` is 0.
        batch_tokens: Response tokens of the whole batch, over all micro-batches and ranks.
    """

    terms: TokenTerms
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    reference_logprobs: torch.Tensor | None = None
    batch_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSums:
    """Sums over the tokens of a micro-batch, without gradient: each a scalar, to be added up and divided by tokens.

    Attributes:
        loss: The per-token objective.
        importance_weight: The truncated importance weight.
        kl: The KL estimate (nats); 0 when the term is off.
        entropy: The entropy (nats).
    """

    loss: torch.Tensor
    importance_weight: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor


def objective(inputs: ObjectiveInputs, config: LearnerConfig) -> tuple[torch.Tensor, ObjectiveSums]:
    """Compute a micro-batch's share of the objective.

    Over the T tokens of the batch, Σ_t (−w·A·π/π_old + β·k3 − η·H) / T, with w = min(π_learner/π_sampler, cap) the
    truncated importance weight, A the advantage, β and η the coefficients of KL and entropy. Dividing by the tokens
    of the batch, and not of each response, is the token-level loss of DAPO (arXiv 2503.14476, section 3.3); w is
    truncated importance sampling (TIS). Shares add up to the mean over the batch however it was cut.

    Args:
        inputs: The tokens.
        config: The coefficients and the cap.

    Returns:
        The share as a scalar with its gradient, and the sums behind it.

    Raises:
        LearnerError: ``kl_coefficient`` is above 0 and there are no ``reference_logprobs``.
    """
    terms = inputs.terms
    weights = importance_weights(terms.logprobs, inputs.sampler_logprobs, cap=config.importance_cap)
    per_token = policy_loss(terms.logprobs, inputs.advantages, weights)
    kl = torch.zeros_like(per_token)
    if config.kl_coefficient:
        if inputs.reference_logprobs is None:
            raise LearnerError(f"kl_coefficient is {config.kl_coefficient:g}, which needs reference_logprobs")
        kl = kl_k3(terms.logprobs, inputs.reference_logprobs)
        per_token = per_token + config.kl_coefficient * kl
    if config.entropy_coefficient:
        per_token = per_token - config.entropy_coefficient * terms.entropy
    total = per_token.sum()
    sums = ObjectiveSums(
        loss=total.detach(),
        importance_weight=weights.sum(),
        kl=kl.detach().sum(),
        entropy=terms.entropy.detach().sum(),
    )
    return total / inputs.batch_tokens, sums
