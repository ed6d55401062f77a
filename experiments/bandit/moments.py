"""Mean and covariance of the gradient of one group, exact: by enumeration, and in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb, lgamma

import numpy as np

from ..errors import ExperimentError
from .estimator import Estimator
from .problem import Bandit, policy

LARGEST = 1_000_000


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
        estimator: How a group becomes a gradient.

    Returns:
        The moments.

    Raises:
        ExperimentError: There are more than ``LARGEST`` counts.
    """
    n = estimator.rollouts_per_problem
    probabilities = policy(logits)
    answers, rewards, chances = outcomes(bandit, probabilities)
    if (number := comb(n + len(answers) - 1, n)) > LARGEST:
        raise ExperimentError(
            f"{n} responses with {len(answers)} outcomes have {number:,} counts; at most {LARGEST:,} are enumerated"
        )
    counts = compositions(n, len(answers))
    weights = multinomial(counts, chances)
    which = np.repeat(np.tile(np.arange(len(answers)), len(counts)), counts.reshape(-1)).reshape(len(counts), n)
    gradients = estimator.gradients(
        answers[which], rewards[which], np.broadcast_to(probabilities, (len(counts), len(probabilities)))
    )
    mean = weights @ gradients
    centred = gradients - mean
    return Moments(mean=mean, covariance=(centred * weights[:, None]).T @ centred)


def closed_form(bandit: Bandit, logits: np.ndarray, estimator: Estimator) -> Moments:
    """Moments without enumeration, for advantages that are not divided by a standard deviation.

    Without a baseline the gradient is a mean of n independent terms: mean g, covariance Σ/n. With the group's mean as
    the baseline it is (n − 1)/n times a U-statistic of order 2 with the kernel h(i, j) = (r_i − r_j)(s_i − s_j)/2,
    where s = ∇log π: its mean is therefore (n − 1)/n · g, and its covariance (Hoeffding, 1948)
    ((n − 1)/n)² · (4(n − 2) ζ₁ + 2 ζ₂)/(n(n − 1)), where ζ₁ is the covariance of E[h | i] and ζ₂ that of h. So it
    falls as 4 ζ₁/n, and as 1/n² where ζ₁ = 0: for two answers at even odds, one always rewarded and the other never.
    Noise of the rewards makes ζ₁ > 0 there, too.

    Args:
        logits: The policy, shape ``(answers,)``.
        estimator: How a group becomes a gradient.

    Returns:
        The moments.

    Raises:
        ExperimentError: Advantages are divided by the group's standard deviation.
    """
    if estimator.scale != "none":
        raise ExperimentError("the closed form needs scale: none; enumerate the moments of advantages that are scaled")
    n = estimator.rollouts_per_problem
    probabilities = policy(logits)
    answers, rewards, chances = outcomes(bandit, probabilities)
    scores = np.eye(len(probabilities))[answers] - probabilities
    if estimator.baseline == "none":
        terms = rewards[:, None] * scores
        mean = chances @ terms
        return Moments(mean=mean, covariance=_covariance(terms, chances) / n)
    kernel = 0.5 * (rewards[:, None] - rewards)[..., None] * (scores[:, None] - scores)
    first = np.einsum("j,ijk->ik", chances, kernel)
    pairs = np.outer(chances, chances).reshape(-1)
    zeta1, zeta2 = _covariance(first, chances), _covariance(kernel.reshape(len(pairs), -1), pairs)
    shrink = (n - 1) / n
    covariance = shrink**2 * (4 * (n - 2) * zeta1 + 2 * zeta2) / (n * (n - 1))
    return Moments(mean=shrink * (chances @ first), covariance=covariance)


def outcomes(bandit: Bandit, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What one response can be: its answer, its reward and the probability of both; impossible ones are left out.

    Args:
        probabilities: The policy, shape ``(answers,)``.

    Returns:
        Answers, rewards and probabilities, each of shape ``(outcomes,)``.
    """
    answers = np.repeat(np.arange(len(probabilities)), 2)
    rewards = np.tile([1.0, 0.0], len(probabilities))
    paid = np.asarray(bandit.rewards)
    chances = (probabilities[:, None] * np.stack([paid, 1 - paid], axis=1)).reshape(-1)
    possible = np.stack([paid > 0, paid < 1], axis=1).reshape(-1)
    return answers[possible], rewards[possible], chances[possible]


def compositions(total: int, parts: int) -> np.ndarray:
    """Every way to write a total as a sum of counts, in order: for 2 in 2 parts (0, 2), (1, 1), (2, 0).

    Args:
        total: The sum of a row.
        parts: Counts of a row.

    Returns:
        Integers of shape ``(rows, parts)``.
    """
    # Stars and bars: the places of parts − 1 bars among total + parts − 1 places.
    places = list(combinations(range(total + parts - 1), parts - 1))
    bars = np.array(places, dtype=np.int64).reshape(len(places), parts - 1)
    ends = np.full((len(places), 1), total + parts - 1)
    counts: np.ndarray = np.diff(np.hstack([np.full_like(ends, -1), bars, ends]), axis=1) - 1
    return counts


def multinomial(counts: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Multinomial probability of each row of counts.

    Args:
        counts: Shape ``(rows, parts)``; all rows have one sum.
        chances: Probability of each part, shape ``(parts,)``.

    Returns:
        Shape ``(rows,)``.
    """
    factorials = np.array([lgamma(count + 1) for count in range(int(counts[0].sum()) + 1)])
    # A policy may be so sure that an answer's probability is 0 in float64; then 0 of it are certain.
    logs = np.log(np.maximum(chances, np.finfo(np.float64).tiny))
    exponent = factorials[-1] - factorials[counts].sum(axis=1) + counts @ logs
    return np.asarray(np.exp(exponent))


def _covariance(values: np.ndarray, chances: np.ndarray) -> np.ndarray:
    centred = values - chances @ values
    covariance: np.ndarray = (centred * chances[:, None]).T @ centred
    return covariance
