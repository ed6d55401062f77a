"""Speed at which one problem is learnt: A/(n·t) + B/t, A and B, and the largest learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log1p, sqrt

import numpy as np
from scipy.optimize import brentq

from .problem import Bandit, Estimator


def limit(estimator: Estimator, *, learning_rate: float) -> float:
    """The limit of t · E[suboptimality after t steps] for a problem with two answers and a group baseline.

    Close to a sure policy, with q the probability of the wrong answer, a group has one wrong response with probability
    n·q and hardly ever more. It then moves the log-odds by J = 2η(n − 1)/n², or by 2η(n − 1)/n^1.5 where advantages are
    divided by the sample standard deviation, so that dq/dt = −n·J·q² and q → 1/(n·J·t). Without a scale this is
    n/(n − 1) · 1/(2η t), and noise of the rewards changes nothing in it (below ``largest_learning_rate``): the gap Δ
    between the rewards cancels. With the group's scale it is √n/(n − 1) · 1/(2η t), for rewards without noise.
    """
    n = estimator.rollouts_per_problem
    return (n if estimator.scale == "none" else sqrt(n)) / (n - 1) / (2 * learning_rate)


def largest_learning_rate(bandit: Bandit, rollouts_per_problem: int) -> float:
    """The η from which on runs that noise has led to the wrong answer decide the mean, and 1/t no longer holds.

    Close to the wrong answer a group with one right response moves the log-odds by J·X, with J = 2η(n − 1)/n² and X its
    reward less the mean reward of the others. The log-odds are then a random walk that falls by x or more with a
    probability of order exp(−θ x/J), θ being Lundberg's exponent (``lundberg_exponent``); a policy at log-odds −x needs
    of the order of eˣ steps to come back. So the runs that are still there after t steps contribute t^(−θ/J), which is
    less than 1/t as long as J < θ: η < θ n²/(2(n − 1)). It is infinite where the wrong answer is never rewarded or the
    right one always.
    """
    n = rollouts_per_problem
    return lundberg_exponent(bandit, n) * n**2 / (2 * (n - 1))


def lundberg_exponent(bandit: Bandit, rollouts_per_problem: int) -> float:
    """θ > 0 with E[exp(−θ X)] = 1, for X one right response's reward less the mean reward of n − 1 wrong ones.

    With r and w the chances that the right and the wrong answer are rewarded, the n − 1 rewards are independent, so
    that E[exp(−θ X)] = (1 − r + r e^(−θ)) · (1 − w + w e^(θ/(n − 1)))^(n − 1). It is convex in θ with the slope
    w − r < 0 at 0; it rises again, and θ is finite, only where X can be negative: not for w = 0, where X = r ≥ 0, and
    not for r = 1, where X is 1 less a mean of rewards of at most 1. With n = 2, e^θ = r(1 − w)/(w(1 − r)).

    Args:
        bandit: A problem with two answers, of which the first is the better one.
    """
    (right, wrong), others = bandit.rewards, rollouts_per_problem - 1
    if wrong == 0 or right == 1:
        return inf

    def excess(theta: float) -> float:
        """Log of E[exp(−θ X)]."""
        return log1p(right * (exp(-theta) - 1)) + others * log1p(wrong * (exp(theta / others) - 1))

    high = 1.0
    while excess(high) < 0:
        high *= 2
    # Above its other root, which is 0.
    return float(brentq(excess, 1e-6, high, xtol=1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """E[suboptimality] = A/(n·t) + B/t (IsoCompute Playbook, Appendix H), fitted.

    Attributes:
        per_rollout: A.
        per_step: B.
        largest_error: Largest |fitted/exact − 1| over the points.
    """

    per_rollout: float
    per_step: float
    largest_error: float


def fitted(rollouts_per_problem: np.ndarray, steps: np.ndarray, suboptimality: np.ndarray) -> Law:
    """Fit A and B by least squares of relative errors; all arguments have the shape ``(points,)``."""
    basis = np.stack([1 / (rollouts_per_problem * steps), 1 / steps], axis=1) / suboptimality[:, None]
    (a, b), *_ = np.linalg.lstsq(basis, np.ones(len(basis)), rcond=None)
    error = float(np.abs(basis @ np.array([a, b]) - 1).max())
    return Law(per_rollout=float(a), per_step=float(b), largest_error=error)
