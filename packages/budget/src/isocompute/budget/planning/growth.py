"""Handing out the budget of a sweep: cells grow from evaluation to evaluation, the cheapest step first.

A step is the next point of a cell that has begun, or the first point of one that has not, a cell's first
point being the first one after enough steps (``min_steps``) to be informative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .allocation import Allocation
from .splits import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What each cell of a sweep costs in addition to one run's training.

    Attributes:
        seeds: Runs of every cell.
        evaluation: Rollouts of one evaluation of one run.
    """

    seeds: int
    evaluation: int

    @property
    def runs(self) -> str:
        """The number of runs in words."""
        return f"{self.seeds} run{'s' if self.seeds > 1 else ''}"

    def to_first_evaluation(self, rollouts: int) -> int:
        """Rollouts of all runs to a first evaluation, the one before the first step included."""
        return self.seeds * (rollouts + 2 * self.evaluation)


@dataclass(slots=True, kw_only=True)
class GrowingCell:
    """A cell while the budget is handed out.

    Attributes:
        batch: Its batch, with the steps that a plan gives it.
        points: Cumulative rollouts of the evaluations that it may reach.
        first: Index of its first point, which lies after ``min_steps`` steps.
        reached: Index of the last point that it was given the rollouts for; -1 for none.
    """

    batch: Allocation
    points: Sequence[int]
    first: int
    reached: int = -1

    @property
    def begun(self) -> bool:
        """Whether it was given any rollouts."""
        return self.reached >= 0

    @property
    def rollouts(self) -> int:
        """Cumulative rollouts that it has reached, once it has begun."""
        return self.points[self.reached]

    @property
    def next_point(self) -> int | None:
        """Index of its next point, or None."""
        index = self.reached + 1 if self.begun else self.first
        return index if index < len(self.points) else None

    def cost(self, index: int, prices: Prices) -> int:
        """Rollouts that reaching its next point costs.

        Args:
            prices: What a cell costs in addition to one run's training.
        """
        if not self.begun:
            # A run that begins is also evaluated before its first step, and at no point before its first.
            return prices.to_first_evaluation(self.points[index])
        return prices.seeds * (self.points[index] - self.rollouts + prices.evaluation)

    def give_back(self, prices: Prices) -> int:
        """Take its last point back for good, and return the rollouts that this frees."""
        last = self.reached
        self.reached = last - 1 if last > self.first else -1
        freed = self.cost(last, prices)
        self.points = self.points[:last]
        return freed


def growing_cell(batch: Allocation, points: Sequence[int], constraints: Constraints) -> GrowingCell | None:
    """A cell that may grow, before it is given any rollouts.

    Args:
        points: Cumulative rollouts at which runs are evaluated.
        constraints: Limits on steps, epochs and the rollouts of one run.

    Returns:
        The cell; None when no point lies after ``min_steps`` and within ``max_epochs``.
    """
    most = most_rollouts(batch, constraints)
    own = [point for point in points if point <= most]
    needed = batch.batch_rollouts * constraints.min_steps
    first = next((index for index, point in enumerate(own) if point >= needed), None)
    return None if first is None else GrowingCell(batch=batch, points=own, first=first)


def most_rollouts(batch: Allocation, constraints: Constraints) -> int:
    """The most rollouts that a run with this batch may spend, by the budget and by the limit on epochs.

    Args:
        constraints: The budget of one run, and the limit on epochs.
    """
    if constraints.max_epochs is None or constraints.problems is None:
        return constraints.rollouts
    return min(constraints.rollouts, int(constraints.max_epochs * constraints.problems) * batch.rollouts_per_problem)


def hand_out(cells: Sequence[GrowingCell], total: int, prices: Prices) -> int:
    """Let cells grow, the cheapest step first, and return what is left of the total.

    A point that one cell alone reaches compares nothing: it is taken back, and what it cost is handed out again.

    Args:
        cells: The cells; they grow.
        total: Rollouts that all of them may spend.
        prices: What a cell costs in addition to one run's training.
    """
    left = total
    while True:
        left = _grow(cells, left, prices)
        ends = sorted((cell for cell in cells if cell.begun), key=lambda cell: cell.rollouts)
        if not ends or (len(ends) > 1 and ends[-2].rollouts == ends[-1].rollouts):
            return left
        left += ends[-1].give_back(prices)


def _grow(cells: Sequence[GrowingCell], left: int, prices: Prices) -> int:
    """Give out the cheapest next point again and again, until what is left pays for none."""
    while True:
        offers = [
            (cell.cost(index, prices), cell.begun, cell.batch.batch_rollouts, number, index)
            for number, cell in enumerate(cells)
            if (index := cell.next_point) is not None
        ]
        affordable = [offer for offer in offers if offer[0] <= left]
        if not affordable:
            return left
        cost, _, _, number, index = min(affordable)
        cells[number].reached = index
        left -= cost
