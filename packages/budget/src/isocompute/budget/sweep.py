"""A sweep that fits a total budget: which cells, how long each, and where all of them are evaluated.

A run of a cell measures every budget up to its own length, so lengthening a cell to the next evaluation costs only
the difference. All cells are evaluated at the same cumulative rollouts, and a frontier at one of these points needs
at least two cells there. The budget is handed out by what comes cheapest: the next point of a cell that has begun,
or the first point of one that has not, a cell's first point being where it has taken enough steps to say something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm

from .allocation import Allocation
from .counts import whole
from .errors import BudgetError
from .planning import Constraints, Grid, LeftOut, grid

MOST_POINTS = 64
"""More evaluations than this in a doubling of the compute are a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One cell of a sweep.

    Attributes:
        allocation: What each of its runs is to do.
        seeds: Runs of it.
        points: How many points of the evaluation grid it reaches, from its first one.
        next_cost: Rollouts that its next point would have cost, or None when the grid ends.
    """

    allocation: Allocation
    seeds: int
    points: int
    next_cost: int | None

    @property
    def rollouts(self) -> int:
        """Rollouts of all its runs."""
        return self.allocation.rollouts * self.seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep.

    Attributes:
        total: Rollouts that it may spend, evaluations included.
        evaluation_rollouts: Rollouts of one evaluation.
        evaluations: Cumulative rollouts at which every run that gets there is evaluated; 0 is not among them.
        cells: What is run, cheapest first.
        left_out: What is not run, and why.
    """

    total: int
    evaluation_rollouts: int
    evaluations: tuple[int, ...]
    cells: tuple[SweepCell, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def training(self) -> int:
        """Rollouts generated for training."""
        return sum(cell.rollouts for cell in self.cells)

    @property
    def evaluating(self) -> int:
        """Rollouts generated for evaluations, one before the first step included."""
        return sum((cell.points + 1) * cell.seeds for cell in self.cells) * self.evaluation_rollouts

    @property
    def spent(self) -> int:
        """Both together; never more than the total."""
        return self.training + self.evaluating

    @property
    def reasons(self) -> Sequence[tuple[str, Sequence[LeftOut]]]:
        """What was left out, by the limit that did it."""
        grouped: dict[str, list[LeftOut]] = {}
        for out in self.left_out:
            grouped.setdefault(out.limit, []).append(out)
        return list(grouped.items())

    @property
    def compared(self) -> tuple[int, ...]:
        """Evaluation points that at least two cells reach: where a frontier can be drawn."""
        reached = [cell.allocation.rollouts for cell in self.cells]
        return tuple(point for point in self.evaluations if sum(r >= point for r in reached) >= 2)


@dataclass(slots=True, kw_only=True)
class _Growing:
    """A cell while the budget is handed out."""

    batch: Allocation
    points: Sequence[int]
    first: int
    reached: int = -1

    def following(self) -> int | None:
        """Index of its next point, or None."""
        index = self.first if self.reached < 0 else self.reached + 1
        return index if index < len(self.points) else None

    def cost(self, index: int, seeds: int, evaluation: int) -> int:
        """Rollouts of going on to its next point."""
        begun = self.reached >= 0
        training = self.points[index] - (self.points[self.reached] if begun else 0)
        # A run that begins is also evaluated before its first step, and at no point before its first.
        return seeds * (training + evaluation * (1 if begun else 2))

    def cell(self, seeds: int, evaluation: int) -> SweepCell:
        """The cell that it has grown to."""
        index = self.following()
        return SweepCell(
            allocation=Allocation.within(
                self.points[self.reached],
                problems_per_batch=self.batch.problems_per_batch,
                rollouts_per_problem=self.batch.rollouts_per_problem,
            ),
            seeds=seeds,
            points=self.reached - self.first + 1,
            next_cost=None if index is None else self.cost(index, seeds, evaluation),
        )


def design(
    constraints: Constraints,
    *,
    total: int,
    seeds: int = 1,
    evaluation_rollouts: int = 0,
    points_per_octave: int = 1,
) -> Sweep:
    """Design a sweep.

    Args:
        constraints: Batches as in a plan; ``rollouts`` is the most that one run may spend, ``min_steps`` where a
            cell begins to say something.
        total: Rollouts that all runs may spend together, evaluations included.
        seeds: Runs of every cell.
        evaluation_rollouts: Rollouts of one evaluation (questions × samples).
        points_per_octave: Evaluations in each doubling of the compute.

    Raises:
        BudgetError: A number is not whole and positive, or the total does not pay for two cells.
    """
    total = whole(total, "the total of the sweep", least=1)
    seeds = whole(seeds, "seeds", least=1)
    evaluation = whole(evaluation_rollouts, "evaluation_rollouts", least=0)
    if whole(points_per_octave, "points_per_octave", least=1) > MOST_POINTS:
        raise BudgetError(f"points_per_octave is {points_per_octave:,}; it must be at most {MOST_POINTS}")
    # A limit on epochs shortens a run of the sweep, and does not forbid it.
    feasible = grid(replace(constraints, max_epochs=None))
    tried, costly = _affordable(feasible, total, seeds, evaluation)
    left_out = [*feasible.left_out, *costly]
    unit = lcm(*(batch.batch_rollouts for batch in tried))
    points = evaluation_points(unit, constraints.rollouts, points_per_octave)
    if tried and not points:
        raise BudgetError(
            f"no run of {constraints.rollouts:,} rollouts reaches a common evaluation: the batches have the least "
            f"common multiple {unit:,}; take batches that divide one another, such as powers of two"
        )
    growing, late = _begun(tried, points, constraints)
    left_out += late
    starts = sorted(grown.points[grown.first] + 2 * evaluation for grown in growing)
    left = _hand_out(growing, total, seeds, evaluation)
    cells = [grown.cell(seeds, evaluation) for grown in growing if grown.reached >= 0]
    left_out += [_not_run(grown, seeds, evaluation, left) for grown in growing if grown.reached < 0]
    if len(cells) < 2:
        more = f"; begin with about {2 * seeds * starts[1]:,} rollouts or fewer steps" if len(starts) > 1 else ""
        raise BudgetError(
            f"a sweep of {total:,} rollouts pays for {len(cells)} cell{'' if len(cells) == 1 else 's'} with "
            f"{constraints.min_steps:,} steps or more, and at least 2 must be compared{more}"
        )
    cells.sort(key=lambda c: (c.rollouts, c.allocation.batch_rollouts))
    furthest = max(cell.allocation.rollouts for cell in cells)
    begins = min(grown.points[grown.first] for grown in growing if grown.reached >= 0)
    return Sweep(
        total=total,
        evaluation_rollouts=evaluation,
        evaluations=tuple(point for point in points if begins <= point <= furthest),
        cells=tuple(cells),
        left_out=tuple(left_out),
    )


def _affordable(feasible: Grid, total: int, seeds: int, evaluation: int) -> tuple[list[Allocation], list[LeftOut]]:
    """The cells that the total can pay for, which alone decide where all are evaluated, and the others."""
    steps = feasible.constraints.min_steps
    tried: list[Allocation] = []
    costly: list[LeftOut] = []
    for batch in (cell.allocation for cell in feasible.cells):
        least = seeds * (batch.batch_rollouts * steps + 2 * evaluation)
        if least <= total:
            tried.append(batch)
        else:
            reason = f"{seeds} run{'s' if seeds > 1 else ''} of {steps:,} steps would cost {least:,}"
            costly.append(_out(batch, "steps that are too expensive", reason))
    return tried, costly


def _begun(
    tried: Sequence[Allocation], points: Sequence[int], constraints: Constraints
) -> tuple[list[_Growing], list[LeftOut]]:
    """Cells with a point after enough steps and before too many visits to the problems, and those without."""
    growing: list[_Growing] = []
    late: list[LeftOut] = []
    for batch in tried:
        needed = batch.batch_rollouts * constraints.min_steps
        most = constraints.rollouts
        if constraints.max_epochs is not None and constraints.problems is not None:
            most = min(most, int(constraints.max_epochs * constraints.problems) * batch.rollouts_per_problem)
        own = [point for point in points if point <= most]
        first = next((index for index, point in enumerate(own) if point >= needed), None)
        if first is not None:
            growing.append(_Growing(batch=batch, points=own, first=first))
        else:
            reason = f"{constraints.min_steps:,} steps are {needed:,} rollouts, and a run may have {most:,}"
            late.append(_out(batch, "no evaluation after enough steps and before too many", reason))
    return growing, late


def _not_run(grown: _Growing, seeds: int, evaluation: int, left: int) -> LeftOut:
    """Why a cell has no place in the sweep."""
    index = grown.following()
    if index is None:
        return _out(grown.batch, "nothing to be compared with", "no other cell reaches its evaluations")
    return _out(
        grown.batch,
        "a first evaluation that is too expensive",
        f"{seeds} run{'s' if seeds > 1 else ''} to {grown.points[grown.first]:,} rollouts would cost "
        f"{grown.cost(index, seeds, evaluation):,}, and {left:,} are left",
    )


def _hand_out(growing: Sequence[_Growing], total: int, seeds: int, evaluation: int) -> int:
    """Let cells grow by what is cheapest, and return what is left of the total.

    A point that one cell alone reaches compares nothing: it is taken back, and what it cost is handed out again.
    """
    left = total
    while True:
        while True:
            offers = [
                (grown.cost(index, seeds, evaluation), grown.reached >= 0, grown.batch.batch_rollouts, number, index)
                for number, grown in enumerate(growing)
                if (index := grown.following()) is not None
            ]
            affordable = [offer for offer in offers if offer[0] <= left]
            if not affordable:
                break
            cost, _, _, number, index = min(affordable)
            growing[number].reached = index
            left -= cost
        ends = sorted((grown for grown in growing if grown.reached >= 0), key=lambda g: g.points[g.reached])
        if not ends or (len(ends) > 1 and ends[-2].points[ends[-2].reached] == ends[-1].points[ends[-1].reached]):
            return left
        alone = ends[-1]
        last = alone.reached
        alone.reached = last - 1 if last > alone.first else -1
        left += alone.cost(last, seeds, evaluation)
        alone.points = alone.points[:last]


def evaluation_points(unit: int, most: int, per_octave: int) -> tuple[int, ...]:
    """Cumulative rollouts that every batch divides, about evenly spaced in their logarithm.

    Args:
        unit: What every point is a multiple of: the least common multiple of the batches.
        most: No point lies beyond.
        per_octave: Points in each doubling.
    """
    points: list[int] = []
    k = 0
    while (point := unit * max(1, ceil(2 ** (k / per_octave) - 1e-9))) <= most:
        if not points or point > points[-1]:
            points.append(point)
        k += 1
    return tuple(points)


def _out(batch: Allocation, limit: str, reason: str) -> LeftOut:
    return LeftOut(
        problems_per_batch=batch.problems_per_batch,
        rollouts_per_problem=batch.rollouts_per_problem,
        limit=limit,
        reason=reason,
    )
