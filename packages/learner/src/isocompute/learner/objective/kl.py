"""Estimates of KL(policy ‖ base) from the tokens that were sampled (J. Schulman, Approximating KL Divergence, 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch


def kl_k1(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The log-ratio, log π − log π_ref: without bias, and negative for some tokens.

    As a term of the loss its gradient is ∇log π, whose mean over the policy's own tokens is 0: it only adds noise.
    It is for a KL in the reward, where the value counts; in the loss it is what veRL computes under that name.

    Args:
        policy: Log-probabilities under the policy (nats), shape ``(tokens,)``.
        reference: Log-probabilities of the same tokens under the base model (nats), shape ``(tokens,)``.

    Returns:
        One estimate per token (nats), shape ``(tokens,)``.
    """
    return policy - reference


def kl_k2(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Half the square of the log-ratio, (log π − log π_ref)² / 2: its value has a bias, and is never negative.

    As a term of the loss it has the gradient of the KL: (log π − log π_ref)·∇log π has the mean ∇KL(π ‖ π_ref) over
    the policy's own tokens.

    Args:
        policy: Log-probabilities under the policy (nats), shape ``(tokens,)``.
        reference: Log-probabilities of the same tokens under the base model (nats), shape ``(tokens,)``.

    Returns:
        One estimate per token (nats), shape ``(tokens,)``.
    """
    return 0.5 * (policy - reference).square()


def kl_k3(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k3, exp(d) − d − 1 with d = log π_ref − log π: without bias and never negative.

    As a term of the loss its gradient is (1 − π_ref/π)·∇log π, whose mean over the policy's own tokens is that of the
    other direction, ∇KL(π_ref ‖ π), and not ∇KL(π ‖ π_ref): they agree to first order where the two are close. It is
    the term of GRPO (arXiv 2402.03300, equation 4), of TRL and of veRL's ``low_var_kl``.

    Args:
        policy: Log-probabilities under the policy (nats), shape ``(tokens,)``.
        reference: Log-probabilities of the same tokens under the base model (nats), shape ``(tokens,)``.

    Returns:
        One estimate per token (nats), shape ``(tokens,)``.
    """
    difference = reference - policy
    return difference.exp() - difference - 1.0


KL_ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k1": kl_k1,
    "k2": kl_k2,
    "k3": kl_k3,
}
"""The estimators by name; the first argument is the policy."""
