"""Generalised advantage estimation (GAE, arXiv 1506.02438): advantages token by token, from a critic's values."""

from __future__ import annotations

import numpy as np

from .ragged import Ragged

WHITENING_EPSILON = 1e-8
"""Added to the variance of advantages before its root divides them, as in veRL."""


def gae(rewards: Ragged, values: Ragged, *, discount: float, gae_lambda: float) -> tuple[Ragged, Ragged]:
    """Advantages and returns of sampled tokens.

    Â_t = δ_t + γλ·Â_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t (equations 11 and 16), and the return, which the critic is
    to predict, is Â_t + V_t. A response ends with its last token, also one that was cut off: what would follow has a
    value of 0. Tokens that the policy did not sample are no step: the one before them is followed by the one after.
    With λ = 1 and γ = 1 the return of a token is the sum of the rewards from it on.

    Args:
        rewards: Reward of each sampled token, in most tasks 0 up to the last one.
        values: V of each, the critic's value before the token is sampled.

    Returns:
        Advantages, not whitened, and returns.
    """
    # A token of all responses at a time, side by side in memory; beyond the end of a response all numbers are 0.
    reward, value = (np.ascontiguousarray(rows.padded().T) for rows in (rewards, values))
    running = following = np.zeros(reward.shape[1])
    for step in reversed(range(len(reward))):
        reward[step] += discount * following - value[step] + discount * gae_lambda * running
        running, following = reward[step], value[step]
    found = Ragged(values=reward.T[rewards.mask], lengths=rewards.lengths)
    return found, Ragged(values=found.values + values.values, lengths=rewards.lengths)


def whitened(advantages: np.ndarray, *, std: str = "sample") -> np.ndarray:
    """Advantages of a batch's tokens with a mean of 0 and a variance of 1: (A − mean) / √(variance + ε).

    Args:
        advantages: Shape ``(tokens,)``.
        std: Whether the variance is the ``sample`` or the ``population`` one.

    Returns:
        Shape ``(tokens,)``; a single token's is 0.
    """
    if len(advantages) < 2:
        return np.zeros(len(advantages))
    variance = advantages.var(ddof=1 if std == "sample" else 0)
    whole: np.ndarray = (advantages - advantages.mean()) / np.sqrt(variance + WHITENING_EPSILON)
    return whole
