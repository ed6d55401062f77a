"""Mean and covariance of the gradient of one group, exact, by enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from scipy.stats import multinomial

from .problem import Bandit, Estimator, policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of the gradient of one group with respect to the logits.

    Attributes:
        mean: Shape ``(answers,)``.
        covariance: Shape ``(answers, answers)``.
    """

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def variance(self) -> float:
        """E‖ĝ − E ĝ‖², the trace of the covariance."""
        return float(np.trace(self.covariance))


def enumerated(bandit: Bandit, logits: np.ndarray, estimator: Estimator) -> Moments:
    """Moments by going through everything that a group of n responses can be.

    A response is one of up to 2K outcomes: an answer with a reward or without. The gradient depends only on how often
    each occurs, and these counts are multinomial.

    Args:
        logits: The policy, shape ``(answers,)``.
    """
    n, probabilities = estimator.rollouts_per_problem, policy(logits)
    paid = np.asarray(bandit.rewards)
    answers, rewards = np.repeat(np.arange(len(paid)), 2), np.tile([1.0, 0.0], len(paid))
    chances = (probabilities[:, None] * np.stack([paid, 1 - paid], axis=1)).reshape(-1)
    possible = np.flatnonzero(chances)
    groups = np.array(list(combinations_with_replacement(possible, n)))
    counts = np.stack([(groups == outcome).sum(axis=1) for outcome in possible], axis=1)
    weights = multinomial.pmf(counts, n, chances[possible])
    gradients = estimator.gradients(answers[groups], rewards[groups], probabilities)
    mean = weights @ gradients
    centred = gradients - mean
    return Moments(mean=mean, covariance=(centred * weights[:, None]).T @ centred)
