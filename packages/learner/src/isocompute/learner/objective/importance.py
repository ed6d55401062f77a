"""The sampler is not quite the learner: truncated importance sampling (TIS), and how far apart the two are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

LOG_RATIO_BOUND = 20.0
"""Largest |log ratio| of a response in the mismatch metrics (nats): the square of a larger ratio says no more."""


def importance_weights(learner: torch.Tensor, sampler: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Truncated importance weights per token, min(π_learner / π_sampler, cap), without gradient.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        cap: Largest weight (the TIS cap).

    Returns:
        One weight per token, shape ``(tokens,)``.
    """
    return (learner.detach() - sampler).exp().clamp(max=cap)


def sequence_weights(
    learner: torch.Tensor, sampler: torch.Tensor, response: torch.Tensor, responses: int, *, cap: float
) -> torch.Tensor:
    """Truncated importance weights per response, min(Π_t π_learner / π_sampler, cap), without gradient.

    The weight of a whole response is free of bias below the cap; one per token, of lower variance, is not.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        response: Index of each token's response, shape ``(tokens,)``.

    Returns:
        The weight of each token's response, shape ``(tokens,)``.
    """
    summed = response_sums(learner.detach() - sampler, response, responses)
    return summed.exp().clamp(max=cap)[response]


def no_weights(
    learner: torch.Tensor, sampler: torch.Tensor, response: torch.Tensor, responses: int, *, cap: float
) -> torch.Tensor:
    """No correction: a weight of 1 for every token.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        response: Index of each token's response, shape ``(tokens,)``.
    """
    del sampler, response, responses, cap
    return torch.ones_like(learner)


def token_weights(
    learner: torch.Tensor, sampler: torch.Tensor, response: torch.Tensor, responses: int, *, cap: float
) -> torch.Tensor:
    """``importance_weights``, as one of ``TIS``.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        response: Index of each token's response, shape ``(tokens,)``.
    """
    del response, responses
    return importance_weights(learner, sampler, cap=cap)


TIS: dict[str, Callable[..., torch.Tensor]] = {
    "none": no_weights,
    "token": token_weights,
    "sequence": sequence_weights,
}
"""The levels of the correction by name; the arguments are those of ``sequence_weights``."""


def response_sums(values: torch.Tensor, response: torch.Tensor, responses: int) -> torch.Tensor:
    """Sums over the tokens of each response.

    Args:
        values: Shape ``(tokens,)``.
        response: Index of each token's response, shape ``(tokens,)``.

    Returns:
        Shape ``(responses,)``.
    """
    return torch.zeros(responses, dtype=values.dtype, device=values.device).index_add(0, response, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How far the sampler is from the learner; without gradient.

    A mean of ρ is 1 and one of k3 is 0 where they are the same. The effective sample size of N weights is
    (Σρ)²/(N·Σρ²), a share of N.

    Attributes:
        kl: k1 estimate of KL(sampler ‖ learner) of each token (nats), shape ``(tokens,)``.
        k3: Schulman's k3 estimate of the same, never negative, shape ``(tokens,)``.
        token_ratio: ρ = π_learner / π_sampler of each token, not truncated, shape ``(tokens,)``.
        response_ratio: Product of the ratios of each response, shape ``(responses,)``.
        present: Whether a response has tokens, shape ``(responses,)``.
    """

    kl: torch.Tensor
    k3: torch.Tensor
    token_ratio: torch.Tensor
    response_ratio: torch.Tensor
    present: torch.Tensor


def mismatch(learner: torch.Tensor, sampler: torch.Tensor, response: torch.Tensor, responses: int) -> Mismatch:
    """Compare the log-probabilities of the learner with those of the sampler, whose tokens they are.

    Log-ratios enter the two ratios within ±``LOG_RATIO_BOUND``.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``.
        sampler: Log-probabilities of the same tokens under the sampler (nats), shape ``(tokens,)``.
        response: Index of each token's response, shape ``(tokens,)``.
    """
    difference = (learner.detach() - sampler).double()
    summed = response_sums(difference, response, responses)
    token_ratio, response_ratio = (
        values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp() for values in (difference, summed)
    )
    return Mismatch(
        kl=-difference,
        k3=difference.exp() - difference - 1.0,
        token_ratio=token_ratio,
        response_ratio=response_ratio,
        present=response_sums(torch.ones_like(difference), response, responses) > 0,
    )
