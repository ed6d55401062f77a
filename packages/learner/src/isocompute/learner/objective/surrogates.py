"""What the gradient is of, token by token: the surrogates of policy-gradient methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .importance import response_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Tokens under the policy and under the one that they were sampled from.

    Attributes:
        logprobs: Log-probabilities under the policy (nats), with their gradient, shape ``(tokens,)``.
        old_logprobs: Log-probabilities under the policy before the batch's first update, π_old (nats), shape
            ``(tokens,)``; None for on-policy, where π_old is the policy itself: every ratio is 1 and has the gradient.
        response: Index of each token's response, shape ``(tokens,)``.
        responses: How many responses there are.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    response: torch.Tensor
    responses: int

    @property
    def log_ratio(self) -> torch.Tensor:
        """Log-ratio, log π − log π_old, of each token, with its gradient, shape ``(tokens,)``."""
        return self.logprobs - (self.logprobs.detach() if self.old_logprobs is None else self.old_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """One term per token, and what clipping did to it; tensors have the shape ``(tokens,)``.

    Attributes:
        loss: The term, with its gradient, to be made small.
        ratio: π/π_old as the surrogate takes it, without gradient.
        clipped_low: Whether the ratio is held at its lower bound.
        clipped_high: Whether it is held at its upper bound.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def policy_gradient(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """REINFORCE (Williams, 1992): −A·log π, whose gradient is that of the others on-policy. Nothing is clipped.

    Args:
        advantages: The advantage of each token, shape ``(tokens,)``.
    """
    del clip_low, clip_high
    never = torch.zeros_like(advantages, dtype=torch.bool)
    ratio = policies.log_ratio.detach().exp()
    return Surrogate(loss=-advantages * policies.logprobs, ratio=ratio, clipped_low=never, clipped_high=never)


def clipped(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """PPO's −min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A) with r = π/π_old (arXiv 1707.06347, equation 7).

    Different bounds are DAPO's clip-higher (arXiv 2503.14476, section 3.1). A token counts as clipped where its
    gradient is lost: r below the lower bound with A < 0, or above the upper one with A > 0.

    Args:
        advantages: The advantage of each token, shape ``(tokens,)``.
        clip_low: ε_low; None is no bound.
        clip_high: ε_high; None is no bound.
    """
    return _pessimistic(policies.log_ratio.exp(), advantages, clip_low, clip_high)


def cispo(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """CISPO's −sg(clip(r, 1 − ε_low, 1 + ε_high))·A·log π with r = π/π_old (arXiv 2506.13585, equations 4 and 5).

    The ratio is a weight without gradient (sg), so that a token whose ratio is clipped still has one. A token counts
    as clipped where its ratio is, whatever its advantage.

    Args:
        advantages: The advantage of each token, shape ``(tokens,)``.
        clip_low: ε_low; None is no bound, as in ScaleRL (arXiv 2510.13786, section 4).
        clip_high: ε_high; None is no bound.
    """
    ratio = policies.log_ratio.detach().exp()
    low, high = _bounds(clip_low, clip_high)
    loss = -ratio.clamp(low, high) * advantages * policies.logprobs
    return Surrogate(loss=loss, ratio=ratio, clipped_low=ratio < low, clipped_high=ratio > high)


def gspo(policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None) -> Surrogate:
    """``clipped`` with one ratio per response, s = (Π_t π/π_old)^(1/L) (GSPO, arXiv 2507.18071, equations 5 to 7).

    In the form of GSPO-token (equation 14) each token has the value s and the gradient s·∇log π, so that with one
    advantage per response a mean over its tokens is GSPO's term. Every token of a response must be there.

    Args:
        advantages: The advantage of each token, shape ``(tokens,)``.
        clip_low: ε_low; None is no bound.
        clip_high: ε_high; None is no bound.
    """
    log_ratio = policies.log_ratio.detach()
    lengths = response_sums(torch.ones_like(log_ratio), policies.response, policies.responses)
    mean = response_sums(log_ratio, policies.response, policies.responses) / lengths.clamp(min=1)
    gradient = policies.logprobs - policies.logprobs.detach()
    return _pessimistic((mean[policies.response] + gradient).exp(), advantages, clip_low, clip_high)


SURROGATES: dict[str, Callable[..., Surrogate]] = {
    "policy_gradient": policy_gradient,
    "clip": clipped,
    "cispo": cispo,
    "gspo": gspo,
}
"""The surrogates by name; the arguments are those of ``clipped``."""


def _pessimistic(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    low, high = _bounds(clip_low, clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
    ratio = ratio.detach()
    return Surrogate(
        loss=loss,
        ratio=ratio,
        clipped_low=(ratio < low) & (advantages < 0),
        clipped_high=(ratio > high) & (advantages > 0),
    )


def _bounds(clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    low = 0.0 if clip_low is None else max(0.0, 1.0 - clip_low)
    return low, torch.inf if clip_high is None else 1.0 + clip_high
