"""Which learning rate a cell has: found at its own (n, B_p), scaled from an anchor or a declared one, interpolated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import cast

from isocompute.budget import Allocation, Scaling

TUNED = "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A learning rate that a search found."""

    rollouts_per_problem: int
    problems_per_batch: int
    learning_rate: float

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A learning rate that nothing was searched for.

    Attributes:
        learning_rate: The learning rate.
        batch_rollouts: The batch at which it is that, B = B_p · n.
    """

    learning_rate: float
    batch_rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rates of a sweep.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        found: What was searched: one batch, the anchor, or with ``tuned`` several; none where the rate is declared.
        declared: The rate that is declared; None where one was searched.
    """

    rule: str
    found: tuple[Found, ...] = ()
    declared: Declared | None = None

    def at(self, rollouts_per_problem: int, problems_per_batch: int) -> float:
        """The learning rate of a cell.

        From an anchor or a declared rate η at B_0 rollouts it is η, η·B/B_0 or η·√(B/B_0). A tuned rate is the one
        that was found at this (n, B_p); between two tuned n of one B_p, log η is linear in log n; beyond them it is
        that of the nearest n, since no rule says how the largest stable rate goes on. At a B_p that was not searched
        the nearest B_p (in log B_p) is taken.
        """
        if self.rule != TUNED:
            anchor = self.declared or self.found[0]
            batch = Allocation(
                problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=1
            )
            return batch.learning_rate(
                anchor=anchor.learning_rate, anchor_batch=anchor.batch_rollouts, scaling=cast(Scaling, self.rule)
            )
        sizes = {each.problems_per_batch for each in self.found}
        size = min(sorted(sizes), key=lambda each: abs(log(each / problems_per_batch)))
        points = sorted(
            (each for each in self.found if each.problems_per_batch == size), key=lambda each: each.rollouts_per_problem
        )
        return _between(points, rollouts_per_problem)


def _between(points: Sequence[Found], n: int) -> float:
    """The rate at n from those of other n, smallest n first."""
    lower = [point for point in points if point.rollouts_per_problem <= n]
    upper = [point for point in points if point.rollouts_per_problem >= n]
    if not lower or not upper:
        return (lower[-1] if lower else upper[0]).learning_rate
    a, b = lower[-1], upper[0]
    if a is b:
        return a.learning_rate
    share = log(n / a.rollouts_per_problem) / log(b.rollouts_per_problem / a.rollouts_per_problem)
    rate = exp((1 - share) * log(a.learning_rate) + share * log(b.learning_rate))
    # Rounding must not lead beyond what was found.
    low, high = sorted((a.learning_rate, b.learning_rate))
    return min(max(rate, low), high)
