"""Many runs of gradient ascent on one problem at once, with any number of answers."""

from __future__ import annotations

import numpy as np

from .estimator import Estimator
from .problem import Bandit, policy


def simulated(
    bandit: Bandit,
    logits: np.ndarray,
    estimator: Estimator,
    *,
    learning_rate: float,
    update_steps: int,
    runs: int,
    seed: int,
) -> np.ndarray:
    """Suboptimality of independent runs of θ ← θ + η ĝ.

    Args:
        logits: The first policy, shape ``(answers,)``.
        estimator: How a group becomes a gradient.

    Returns:
        max_k r_k − V after 0, 1, ... steps, shape ``(update_steps + 1, runs)``.
    """
    generator = np.random.default_rng(seed)
    current = np.tile(np.asarray(logits, dtype=np.float64), (runs, 1))
    path = np.empty((update_steps + 1, runs))
    path[0] = bandit.suboptimality(current)
    for step in range(update_steps):
        answers, rewards = bandit.sample(current, responses=estimator.rollouts_per_problem, generator=generator)
        current = current + learning_rate * estimator.gradients(answers, rewards, policy(current))
        path[step + 1] = bandit.suboptimality(current)
    return path
