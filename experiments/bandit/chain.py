"""Two answers: the distribution of the policy after every step, exact, as a Markov chain on a grid."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, inf, log

import numpy as np

from ..errors import ExperimentError
from .estimator import Estimator
from .moments import compositions, outcomes
from .problem import Bandit

FARTHEST = 16.0
"""Log-odds where the grid ends: there a probability is 1e-7."""
NEGLIGIBLE = 1e-25
"""Points at either end of the distribution with a smaller probability than this are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Log-odds d = θ_0 − θ_1 of the first answer: ``start + spacing · (index − origin)``.

    Attributes:
        start: Log-odds of the first policy.
        spacing: Distance of neighbours.
        below: Points below the start.
        above: Points above it.
    """

    start: float
    spacing: float
    below: int
    above: int

    @property
    def log_odds(self) -> np.ndarray:
        """The points, in order."""
        return self.start + self.spacing * np.arange(-self.below, self.above + 1)


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

    A softmax over two answers has one degree of freedom, the log-odds d; a group with the gradient ĝ moves it by
    η(ĝ_0 − ĝ_1) = 2η ĝ_0. With a group baseline and no scale this is 2η/n² times a whole number, so that the chain
    lives on a grid and the result is exact but for rounding and for the ends of the grid, beyond which a policy stays
    there (``FARTHEST``). A move between two points of a grid, as with a scale, is shared between them so that its mean
    is kept; the error falls with the square of the spacing.

    Args:
        bandit: A problem with two answers, of which the first is the better one.
        estimator: How a group becomes a gradient; with a group baseline.
        start: Log-odds of the first answer under the first policy.
        spacing: Distance of the grid's points; 2η/n² where it is None, which is exact without a scale.

    Returns:
        max_k r_k − E[V], shape ``(update_steps + 1,)``.

    Raises:
        ExperimentError: The problem has other than two answers, its first is not the better one, there is no baseline,
            or the start, the learning rate or the spacing is out of its range.
    """
    if len(bandit.rewards) != 2 or bandit.rewards[0] <= bandit.rewards[1]:
        raise ExperimentError(f"rewards is {bandit.rewards}; a chain needs two answers of which the first is better")
    if estimator.baseline != "group":
        raise ExperimentError(f"baseline is {estimator.baseline!r}; a chain needs baseline: group")
    if not abs(start) < FARTHEST:
        raise ExperimentError(f"start is {start}; it must be log-odds between -{FARTHEST} and {FARTHEST}")
    if not 0 < learning_rate < inf:
        raise ExperimentError(f"learning_rate is {learning_rate}; it must be positive and finite")
    spacing = 2 * learning_rate / estimator.rollouts_per_problem**2 if spacing is None else spacing
    if not 0 < spacing < inf:
        raise ExperimentError(f"spacing is {spacing}; it must be positive and finite")
    # Where no wrong answer is ever rewarded and no right one refused, the log-odds never fall.
    below = 0 if bandit.noiseless else ceil((FARTHEST + start) / spacing)
    grid = Grid(start=start, spacing=spacing, below=below, above=ceil((FARTHEST - start) / spacing))
    moves, chances = transitions(bandit, estimator, grid, learning_rate)
    wrong = 1 / (1 + np.exp(grid.log_odds))
    mass = np.zeros(len(wrong))
    mass[grid.below] = 1.0
    path = np.empty(update_steps + 1)
    path[0] = wrong[grid.below]
    for step in range(update_steps):
        mass = advanced(mass, moves, chances)
        path[step + 1] = mass @ wrong
    return (bandit.rewards[0] - bandit.rewards[1]) * path


def transitions(
    bandit: Bandit, estimator: Estimator, grid: Grid, learning_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moves along the grid, and their probabilities at each of its points.

    Args:
        estimator: How a group becomes a gradient.

    Returns:
        Moves in points, shape ``(moves,)``, and probabilities, shape ``(moves, points)``.
    """
    n = estimator.rollouts_per_problem
    half = np.full(2, 0.5)
    answers, rewards, chances = outcomes(bandit, half)
    counts = compositions(n, len(answers))
    which = np.repeat(np.tile(np.arange(len(answers)), len(counts)), counts.reshape(-1)).reshape(len(counts), n)
    # Advantages sum to 0, so that the gradient does not depend on the policy but through what is drawn.
    gradients = estimator.gradients(answers[which], rewards[which], np.broadcast_to(half, (len(counts), 2)))
    distance = 2 * learning_rate * gradients[:, 0] / grid.spacing
    nearest = np.rint(distance)
    distance = np.where(np.abs(distance - nearest) < 1e-6, nearest, distance)
    lower = np.floor(distance).astype(np.int64)
    # Given how many drew the first answer, what they were paid does not depend on the policy.
    first = (counts * (answers == 0)).sum(axis=1)
    given = _given_first(counts, answers, 2 * chances)
    moves = np.unique(np.concatenate([lower, lower + 1]))
    weights = np.zeros((len(moves), n + 1))
    share = distance - lower
    np.add.at(weights, (np.searchsorted(moves, lower), first), given * (1 - share))
    np.add.at(weights, (np.searchsorted(moves, lower + 1), first), given * share)
    drawn = weights @ _binomial(n, grid.log_odds)
    used = drawn.any(axis=1)
    return moves[used], drawn[used]


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


def _given_first(counts: np.ndarray, answers: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Probability of counts given how many of the responses drew each answer, shape ``(rows,)``."""
    given = np.ones(len(counts))
    for answer in (0, 1):
        columns = np.flatnonzero(answers == answer)
        drawn = counts[:, columns].sum(axis=1)
        # An answer has one outcome or two, so that a binomial is enough.
        ways = np.array([comb(int(a), int(b)) for a, b in zip(drawn, counts[:, columns[0]], strict=True)], dtype=float)
        given *= ways * np.prod(chances[columns] ** counts[:, columns], axis=1)
    return given


def _binomial(n: int, log_odds: np.ndarray) -> np.ndarray:
    """Binomial probabilities of 0 to n draws of the first answer, shape ``(n + 1, points)``."""
    right, wrong = -np.log1p(np.exp(-log_odds)), -np.log1p(np.exp(log_odds))
    rows = [log(comb(n, drawn)) + drawn * right + (n - drawn) * wrong for drawn in range(n + 1)]
    return np.asarray(np.exp(np.stack(rows)))
