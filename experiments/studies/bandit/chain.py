"""Two answers: the distribution of the policy after every step, exact, as a Markov chain on a grid."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
from scipy.stats import binom

from .problem import Bandit, Estimator

FARTHEST = 16.0
"""Log-odds where the grid ends: there a probability is 1e-7."""
NEGLIGIBLE = 1e-25
"""Points at either end of the distribution with a smaller probability than this are left out."""


def evolution(
    bandit: Bandit,
    estimator: Estimator,
    *,
    start: float,
    learning_rate: float,
    update_steps: int,
    spacing: float | None = None,
) -> np.ndarray:
    """Expected suboptimality of gradient ascent after 0, 1, ... steps, with the probability of every path.

    A softmax over two answers has one degree of freedom, the log-odds d = θ_0 − θ_1; a group with the gradient ĝ moves
    it by η(ĝ_0 − ĝ_1) = 2η ĝ_0. With a group baseline and no scale this is 2η/n² times a whole number, so that the
    chain lives on a grid and the result is exact but for rounding and for the ends of the grid, beyond which a policy
    stays there (``FARTHEST``). A move between two points of a grid, as with a scale, is shared between them so that its
    mean is kept; the error falls with the square of the spacing.

    Args:
        bandit: A problem with two answers, of which the first is the better one.
        estimator: How a group becomes a gradient; with a group baseline.
        start: Log-odds of the first answer under the first policy.
        spacing: Distance of the grid's points; 2η/n² where it is None, which is exact without a scale.

    Returns:
        max_k r_k − E[V], shape ``(update_steps + 1,)``.
    """
    spacing = 2 * learning_rate / estimator.rollouts_per_problem**2 if spacing is None else spacing
    # Where no wrong answer is ever rewarded and no right one refused, the log-odds never fall.
    below = 0 if bandit.rewards == (1, 0) else ceil((FARTHEST + start) / spacing)
    log_odds = start + spacing * np.arange(-below, ceil((FARTHEST - start) / spacing) + 1)
    moves, chances = transitions(bandit, estimator, log_odds, spacing=spacing, learning_rate=learning_rate)
    wrong = 1 / (1 + np.exp(log_odds))
    mass = np.zeros(len(wrong))
    mass[below] = 1.0
    path = [wrong[below]]
    for _ in range(update_steps):
        mass = advanced(mass, moves, chances)
        path.append(mass @ wrong)
    return (bandit.rewards[0] - bandit.rewards[1]) * np.array(path)


def transitions(
    bandit: Bandit, estimator: Estimator, log_odds: np.ndarray, *, spacing: float, learning_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moves along the grid, and their probabilities at each of its points.

    Args:
        log_odds: The points of the grid.

    Returns:
        Moves in points, shape ``(moves,)``, and probabilities, shape ``(moves, points)``.
    """
    n, (right, wrong) = estimator.rollouts_per_problem, bandit.rewards
    # How many drew the first answer, and how many of those and of the others were rewarded.
    first, paid, paid_others = np.array(
        [(k, i, j) for k in range(n + 1) for i, j in product(_possible(k, right), _possible(n - k, wrong))]
    ).T
    # Given how many drew the first answer, what they were paid does not depend on the policy.
    given = binom.pmf(paid, first, right) * binom.pmf(paid_others, n - first, wrong)
    place = np.arange(n)
    answers = (place >= first[:, None]).astype(np.int64)
    among = np.where(answers == 0, place, place - first[:, None])
    rewards = (among < np.where(answers == 0, paid[:, None], paid_others[:, None])).astype(float)
    # Advantages sum to 0, so that the gradient does not depend on the policy but through what is drawn.
    gradients = estimator.gradients(answers, rewards, np.full(2, 0.5))
    distance = 2 * learning_rate * gradients[:, 0] / spacing
    nearest = np.rint(distance)
    distance = np.where(np.abs(distance - nearest) < 1e-6, nearest, distance)
    lower = np.floor(distance).astype(np.int64)
    moves = np.unique(np.concatenate([lower, lower + 1]))
    weights = np.zeros((len(moves), n + 1))
    share = distance - lower
    np.add.at(weights, (np.searchsorted(moves, lower), first), given * (1 - share))
    np.add.at(weights, (np.searchsorted(moves, lower + 1), first), given * share)
    drawn = weights @ binom.pmf(np.arange(n + 1)[:, None], n, 1 / (1 + np.exp(-log_odds)))
    used = drawn.any(axis=1)
    return moves[used], drawn[used]


def _possible(drawn: int, chance: float) -> range:
    """Numbers of some responses that may be rewarded."""
    return range(0 if chance < 1 else drawn, (drawn if chance > 0 else 0) + 1)


def advanced(mass: np.ndarray, moves: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """The distribution after one step; what would leave the grid stays at its end.

    Args:
        mass: Probability of each point, shape ``(points,)``.
        moves: As from ``transitions``.

    Returns:
        Shape ``(points,)``.
    """
    points, after = len(mass), np.zeros(len(mass))
    reached = np.flatnonzero(mass > NEGLIGIBLE)
    low, high = int(reached[0]), int(reached[-1]) + 1
    for move, chance in zip(moves.tolist(), chances, strict=True):
        moved = mass[low:high] * chance[low:high]
        begin, end = low + move, high + move
        under, over = min(max(0, -begin), len(moved)), min(max(0, end - points), len(moved))
        after[begin + under : end - over] += moved[under : len(moved) - over]
        after[0] += moved[:under].sum()
        after[-1] += moved[len(moved) - over :].sum()
    return after
