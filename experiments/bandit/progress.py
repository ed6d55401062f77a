"""How fast one problem is learnt, exact: the settings of docs/bandit.md and what each n reaches with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log, sqrt

import numpy as np

from .chain import evolution
from .estimator import Estimator
from .law import Law, fitted, largest_learning_rate
from .problem import Bandit

GROUPS = (2, 4, 8, 16, 32, 64)
NOISY_GROUPS = GROUPS[:4]
RIGHT = Bandit(rewards=(1.0, 0.0))
NOISY = Bandit(rewards=(0.75, 0.25))
FIRST = 0.25
START = log(FIRST / (1 - FIRST))
RATE = 0.5
CAP = 3.0
ANCHOR = 8
BUDGET = 16384
STEPS = 4096
FITTED = (1024, 2048, 4096)
RULES: dict[str, Callable[[int], float]] = {
    "constant": lambda n: RATE,
    "∝ √n": lambda n: RATE * sqrt(n / ANCHOR),
    "∝ n": lambda n: RATE * n / ANCHOR,
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
def learnt(n: int, scale: str, rate: float, steps: int, noisy: bool = False) -> Line:
    """One exact line; right and wrong answers are told apart without error unless ``noisy``.

    Args:
        n: Rollouts per problem.
        scale: What advantages are divided by.
        noisy: Rewards err one time in four.
    """
    spacing = None if scale == "none" else min(0.01, rate / n**1.5)
    path = evolution(
        NOISY if noisy else RIGHT,
        Estimator(rollouts_per_problem=n, scale=scale),
        start=START, learning_rate=rate, update_steps=steps, spacing=spacing,
    )  # fmt: skip
    return Line(n=n, steps=np.arange(1, steps + 1), suboptimality=path[1:])


def plain(scale: str) -> list[Line]:
    """Every n with the same learning rate and rewards without noise.

    Args:
        scale: What advantages are divided by.
    """
    return [learnt(n, scale, RATE, STEPS) for n in GROUPS]


def with_noise(cap: float | None = None) -> list[Line]:
    """Rewards that err, each n with a quarter of the largest learning rate that it tolerates.

    Args:
        cap: No learning rate is larger than this.
    """
    rates = {n: safe_rate(n) if cap is None else min(cap, safe_rate(n)) for n in NOISY_GROUPS}
    return [learnt(n, "none", rate, STEPS, noisy=True) for n, rate in rates.items()]


def safe_rate(n: int) -> float:
    """A quarter of the largest rate with which noise leaves the 1/t intact.

    Args:
        n: Rollouts per problem.
    """
    return largest_learning_rate(NOISY, n) / 4


def law_of(lines: list[Line]) -> Law:
    """A/(n·t) + B/t fitted to some lines at the steps ``FITTED``.

    Args:
        lines: Lines that are long enough.
    """
    points = [(line.n, step, line.suboptimality[step - 1]) for line in lines for step in FITTED]
    n, steps, suboptimality = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    return fitted(n, steps, suboptimality)


def at_budget(scale: str, rule: str, groups: tuple[int, ...] = GROUPS) -> dict[int, float]:
    """Suboptimality of each n when n·t is the budget.

    Args:
        scale: What advantages are divided by.
        rule: How the rate depends on n.
    """
    return {n: float(learnt(n, scale, RULES[rule](n), BUDGET // n).suboptimality[-1]) for n in groups}
