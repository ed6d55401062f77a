"""Which learning rate a cell has: found at its own (n, B_p), scaled from an anchor or a declared one, interpolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import cast

from isocompute.budget import Allocation, Scaling

TUNED = "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rates of a sweep.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        found: The rate at every (n, B_p) searched: one, the anchor, or with ``tuned`` several. Of a rate that is
            declared for a batch of B rollouts that is (B, 1).
    """

    rule: str
    found: Mapping[tuple[int, int], float]

    def at(self, rollouts_per_problem: int, problems_per_batch: int) -> float:
        """The learning rate of a cell.

        From an anchor or a declared rate η at B_0 rollouts it is η, η·B/B_0 or η·√(B/B_0). A tuned rate is the one
        that was found at this (n, B_p); between two tuned n of one B_p, log η is linear in log n; beyond them it is
        that of the nearest n, since no rule says how the largest stable rate goes on. At a B_p that was not searched
        the nearest B_p (in log B_p) is taken.
        """
        if self.rule != TUNED:
            (((n, size), rate),) = self.found.items()
            batch = Allocation(
                problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=1
            )
            return batch.learning_rate(anchor=rate, anchor_batch=n * size, scaling=cast(Scaling, self.rule))
        nearest = min(sorted({size for _, size in self.found}), key=lambda each: abs(log(each / problems_per_batch)))
        points = sorted((n, rate) for (n, size), rate in self.found.items() if size == nearest)
        return _between(points, rollouts_per_problem)


def _between(points: Sequence[tuple[int, float]], n: int) -> float:
    """The rate at n from those of other n, smallest n first."""
    lower = [point for point in points if point[0] <= n]
    upper = [point for point in points if point[0] >= n]
    (few, low), (many, high) = (lower or upper[:1])[-1], (upper or lower[-1:])[0]
    if few == many:
        return low
    share = log(n / few) / log(many / few)
    rate = exp((1 - share) * log(low) + share * log(high))
    # Rounding must not lead beyond what was found.
    return min(max(rate, min(low, high)), max(low, high))
