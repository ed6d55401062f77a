"""Exact speed at which one problem is learnt: the settings of docs/bandit.md and what each n reaches with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log, sqrt

import numpy as np

from .chain import evolution
from .law import Law, fitted, largest_learning_rate
from .problem import Bandit, Estimator

GROUPS = (2, 4, 8, 16, 32, 64)
NOISY_GROUPS = GROUPS[:4]
RIGHT, NOISY = Bandit(rewards=(1.0, 0.0)), Bandit(rewards=(0.75, 0.25))
FIRST = 0.25
"""Probability of the right answer at first."""
RATE, CAP = 0.5, 3.0
BUDGET, STEPS = 16384, 4096
FITTED = (1024, 2048, 4096)
"""Steps at which the law is fitted."""
RULES: dict[str, Callable[[int], float]] = {
    "constant": lambda n: RATE,
    "∝ √n": lambda n: RATE * sqrt(n / 8),
    "∝ n": lambda n: RATE * n / 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Learning with one n.

    Attributes:
        n: Rollouts per problem.
        steps: t, from 1.
        suboptimality: Expected, after each.
    """

    n: int
    steps: np.ndarray
    suboptimality: np.ndarray

    @property
    def end(self) -> float:
        """T times the suboptimality after the last step."""
        return float(self.steps[-1] * self.suboptimality[-1])


@cache
def learnt(n: int, scale: str, rate: float, steps: int = STEPS, noisy: bool = False) -> Line:
    """One exact line; right and wrong answers are told apart without error unless ``noisy``, one time in four."""
    path = evolution(
        NOISY if noisy else RIGHT,
        Estimator(rollouts_per_problem=n, scale=scale),
        start=log(FIRST / (1 - FIRST)),
        learning_rate=rate,
        update_steps=steps,
        spacing=None if scale == "none" else min(0.01, rate / n**1.5),
    )
    return Line(n=n, steps=np.arange(1, steps + 1), suboptimality=path[1:])


def plain(scale: str) -> list[Line]:
    """Every n with the same learning rate and rewards without noise."""
    return [learnt(n, scale, RATE) for n in GROUPS]


def with_noise(cap: float = np.inf) -> list[Line]:
    """Rewards that err, each n with a quarter of the largest learning rate that it tolerates, up to a cap."""
    return [learnt(n, "none", min(cap, safe_rate(n)), noisy=True) for n in NOISY_GROUPS]


def safe_rate(n: int) -> float:
    """A quarter of the largest rate with which noise leaves the 1/t intact."""
    return largest_learning_rate(NOISY, n) / 4


def law_of(lines: list[Line]) -> Law:
    """A/(n·t) + B/t fitted to some lines at the steps ``FITTED``."""
    points = [(line.n, step, line.suboptimality[step - 1]) for line in lines for step in FITTED]
    return fitted(*np.array(points, dtype=float).T)


def at_budget(scale: str, rule: str, groups: tuple[int, ...] = GROUPS) -> dict[int, float]:
    """Suboptimality of each n when n·t is the budget and the rate follows a rule."""
    return {n: float(learnt(n, scale, RULES[rule](n), BUDGET // n).suboptimality[-1]) for n in groups}
