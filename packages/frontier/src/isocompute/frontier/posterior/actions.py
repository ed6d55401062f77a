"""What to run next: the expected fall of regret per rollout of each thing that could be run.

The value of an action is that of the sample it gives (Raiffa and Schlaifer, 1961): what the best choice after it is
worth on average, less what the best choice now is worth. The choice after it needs the rewards expected given the
measurement, which are their regression on it over the draws (Strong, Oakley, Brennan and Breeze, 2015), so nothing is
fitted again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .runs import Cell

POWER = 2.8016
"""Normal quantiles of 97.5 % and of 80 %, added: 1.96 + 0.84."""
MOST_SEEDS = 25
"""Nobody runs more seeds of a setting than this."""
SEEDS = 16
"""How often the noise of a measurement is drawn: the value is a mean over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that could be run.

    Attributes:
        kind: ``extend`` all runs of a setting, run another ``seed`` of it, or ``open`` one that was not run: another
            n, or the chosen n at another learning rate.
        cell: The setting.
        until: Compute that its runs would reach.
        rollouts: What that costs, in the unit of the fit.
        value: Expected fall of regret at the budget.
    """

    kind: str
    cell: Cell
    until: float
    rollouts: float
    value: float

    @property
    def rate(self) -> float:
        """Expected fall of regret for each unit of compute."""
        return self.value / self.rollouts


def value_of(rewards: Array, measured: Array, noise: Array, *, rng: np.random.Generator) -> float:
    """Expected gain of choosing after a measurement over choosing now.

    Args:
        rewards: Draws of the reward of every setting at the budget, shape ``(draws, settings)``.
        measured: Draws of what a measurement without noise would show, shape ``(draws,)``.
        noise: Standard deviation of the measurement in each draw, shape ``(draws,)``.
    """
    now = float(rewards.mean(axis=0).max())
    shown = measured + noise * rng.standard_normal((SEEDS, len(measured)))
    shown = (shown - shown.mean()) / max(float(shown.std()), 1e-12)
    # A parabola: a reward that levels off is no line of an earlier one.
    basis = np.stack([np.ones_like(shown), shown, shown**2], axis=2).reshape(-1, 3)
    repeated = np.tile(rewards, (SEEDS, 1))
    solved, *_ = np.linalg.lstsq(basis, repeated, rcond=None)
    return max(float((basis @ solved).max(axis=1).mean()) - now, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run next for a decision at one budget.

    Attributes:
        compute: The budget.
        actions: Sorted by expected fall of regret per unit of compute, the best first.
        dominated: Settings that are best with less than 1 % and can be stopped.
        pair: Settings to be told apart; None where there is one setting.
        difference: Of their rewards, the root mean square over the draws.
        seeds: Seeds of each, those that were run included, that would tell the two apart in four sweeps of five, were
            they to differ by that; None where ``MOST_SEEDS`` would not.
    """

    compute: float
    actions: tuple[Action, ...]
    dominated: tuple[Cell, ...]
    pair: tuple[Cell, Cell] | None
    difference: float
    seeds: int | None


def seeds_to_tell(difference: float, deviation: float) -> int | None:
    """Seeds of each of two settings that tell them apart at 95 % with a power of 80 %.

        seeds = 2·((1.96 + 0.84)·σ / difference)²

    Args:
        deviation: σ, standard deviation of a run's reward over seeds and evaluations.

    Returns:
        None beyond ``MOST_SEEDS``.
    """
    if difference <= 0:
        return None
    count = math.ceil(2 * (POWER * deviation / difference) ** 2)
    return count if count <= MOST_SEEDS else None
