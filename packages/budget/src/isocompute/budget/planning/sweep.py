"""A sweep that fits a total budget: which cells, how long each, and where all of them are evaluated.

A run of a cell measures every budget up to its own length, so lengthening a cell to the next evaluation costs only
the difference. All cells are evaluated at the same cumulative rollouts, and a frontier at one of these points needs
at least two cells there. ``growth`` hands the budget out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm

from ..checks import whole
from ..errors import BudgetError
from .allocation import Allocation
from .growth import GrowingCell, Prices, growing_cell, hand_out, most_rollouts
from .splits import Constraints, Grid, LeftOut, grid

MOST_POINTS = 64
"""More evaluations than this per doubling of the compute are refused as a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One cell of a sweep.

    Attributes:
        allocation: The split of each of its runs.
        seeds: Number of runs, each with a seed of its own.
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
        """What was left out, grouped by the limit that excluded it."""
        grouped: dict[str, list[LeftOut]] = {}
        for out in self.left_out:
            grouped.setdefault(out.limit, []).append(out)
        return list(grouped.items())

    @property
    def compared(self) -> tuple[int, ...]:
        """Evaluation points that at least two cells reach: where a frontier can be drawn."""
        reached = [cell.allocation.rollouts for cell in self.cells]
        return tuple(point for point in self.evaluations if sum(r >= point for r in reached) >= 2)


def design(
    constraints: Constraints,
    *,
    total: int,
    seeds: int = 1,
    evaluation_rollouts: int = 0,
    points_per_octave: int = 1,
) -> Sweep:
    """Design a sweep whose cells are compared at common points, within a total budget.

    Args:
        constraints: Batches as in a plan; ``rollouts`` is the most that one run may spend, ``min_steps`` the update
            steps before a cell's first evaluation.
        total: Rollouts that all runs may spend together, evaluations included.
        seeds: Runs of every cell.
        evaluation_rollouts: Rollouts of one evaluation (questions × samples).
        points_per_octave: Evaluations in each doubling of the compute.

    Raises:
        BudgetError: A number is not whole and positive, or the total does not pay for two cells.
    """
    total = whole(total, "the total of the sweep", least=1)
    prices = Prices(
        seeds=whole(seeds, "seeds", least=1), evaluation=whole(evaluation_rollouts, "evaluation_rollouts", least=0)
    )
    if whole(points_per_octave, "points_per_octave", least=1) > MOST_POINTS:
        raise BudgetError(f"points_per_octave is {points_per_octave:,}; it must be at most {MOST_POINTS}")
    # A limit on epochs shortens a run of the sweep, and does not forbid it.
    feasible = grid(replace(constraints, max_epochs=None))
    batches, costly = _affordable(feasible, total, prices)
    points = _common_points(batches, constraints, points_per_octave)
    tried = [(batch, growing_cell(batch, points, constraints)) for batch in batches]
    growing = [cell for _, cell in tried if cell is not None]
    late = [_never_evaluated(batch, constraints) for batch, cell in tried if cell is None]
    starts = sorted(prices.to_first_evaluation(cell.points[cell.first]) for cell in growing)
    left = hand_out(growing, total, prices)
    run = [cell for cell in growing if cell.begun]
    if len(run) < 2:
        raise _too_small(total, constraints, cells=len(run), starts=starts)
    return Sweep(
        total=total,
        evaluation_rollouts=prices.evaluation,
        evaluations=_evaluations(points, run),
        cells=_cheapest_first(run, prices),
        left_out=(
            *feasible.left_out,
            *costly,
            *late,
            *(_not_begun(cell, prices, left) for cell in growing if not cell.begun),
        ),
    )


def _affordable(feasible: Grid, total: int, prices: Prices) -> tuple[list[Allocation], list[LeftOut]]:
    """The batches that the total can pay for, which alone decide where all are evaluated, and the others."""
    steps = feasible.constraints.min_steps
    batches: list[Allocation] = []
    costly: list[LeftOut] = []
    for batch in (cell.allocation for cell in feasible.cells):
        least = prices.to_first_evaluation(batch.batch_rollouts * steps)
        if least <= total:
            batches.append(batch)
        else:
            reason = f"{prices.runs} of {steps:,} steps would cost {least:,}"
            costly.append(_left_out(batch, "steps that are too expensive", reason))
    return batches, costly


def _common_points(batches: Sequence[Allocation], constraints: Constraints, per_octave: int) -> tuple[int, ...]:
    """Where all batches are evaluated.

    Raises:
        BudgetError: The budget of one run reaches no common multiple of the batches.
    """
    unit = lcm(*(batch.batch_rollouts for batch in batches))
    points = evaluation_points(unit, constraints.rollouts, per_octave)
    if batches and not points:
        raise BudgetError(
            f"no run of {constraints.rollouts:,} rollouts reaches a common evaluation: the batches have the least "
            f"common multiple {unit:,}; take batches that divide one another, such as powers of two"
        )
    return points


def _evaluations(points: Sequence[int], run: Sequence[GrowingCell]) -> tuple[int, ...]:
    """The points from the first one of any cell to the last one."""
    begins = min(cell.points[cell.first] for cell in run)
    furthest = max(cell.rollouts for cell in run)
    return tuple(point for point in points if begins <= point <= furthest)


def _too_small(total: int, constraints: Constraints, *, cells: int, starts: Sequence[int]) -> BudgetError:
    """The error for a total that pays for fewer than two cells; ``starts`` are the costs of beginning each cell."""
    more = f"; begin with about {2 * starts[1]:,} rollouts or fewer steps" if len(starts) > 1 else ""
    return BudgetError(
        f"a sweep of {total:,} rollouts pays for {cells} cell{'' if cells == 1 else 's'} with "
        f"{constraints.min_steps:,} steps or more, and at least 2 must be compared{more}"
    )


def _cheapest_first(run: Sequence[GrowingCell], prices: Prices) -> tuple[SweepCell, ...]:
    """The cells that are run, in order of their cost."""
    cells = [_sweep_cell(cell, prices) for cell in run]
    return tuple(sorted(cells, key=lambda cell: (cell.rollouts, cell.allocation.batch_rollouts)))


def _sweep_cell(cell: GrowingCell, prices: Prices) -> SweepCell:
    """What a cell has grown to."""
    index = cell.next_point
    return SweepCell(
        allocation=Allocation.within(
            cell.rollouts,
            problems_per_batch=cell.batch.problems_per_batch,
            rollouts_per_problem=cell.batch.rollouts_per_problem,
        ),
        seeds=prices.seeds,
        points=cell.reached - cell.first + 1,
        next_cost=None if index is None else cell.cost(index, prices),
    )


def _never_evaluated(batch: Allocation, constraints: Constraints) -> LeftOut:
    """Why a batch is never evaluated."""
    needed, most = batch.batch_rollouts * constraints.min_steps, most_rollouts(batch, constraints)
    reason = f"{constraints.min_steps:,} steps are {needed:,} rollouts, and a run may have {most:,}"
    return _left_out(batch, "no evaluation after enough steps and before too many", reason)


def _not_begun(cell: GrowingCell, prices: Prices, left: int) -> LeftOut:
    """Why a cell has no place in the sweep."""
    index = cell.next_point
    if index is None:
        return _left_out(cell.batch, "nothing to be compared with", "no other cell reaches its evaluations")
    return _left_out(
        cell.batch,
        "a first evaluation that is too expensive",
        f"{prices.runs} to {cell.points[cell.first]:,} rollouts would cost {cell.cost(index, prices):,}, and {left:,} "
        "are left",
    )


def evaluation_points(unit: int, most: int, per_octave: int) -> tuple[int, ...]:
    """Cumulative rollouts that are multiples of every batch, about evenly spaced in their logarithm.

    Args:
        unit: What every point is a multiple of: the least common multiple of the batches.
        most: No point lies beyond.
    """
    points: list[int] = []
    k = 0
    while (point := unit * max(1, ceil(2 ** (k / per_octave) - 1e-9))) <= most:
        if not points or point > points[-1]:
            points.append(point)
        k += 1
    return tuple(points)


def _left_out(batch: Allocation, limit: str, reason: str) -> LeftOut:
    return LeftOut(
        problems_per_batch=batch.problems_per_batch,
        rollouts_per_problem=batch.rollouts_per_problem,
        limit=limit,
        reason=reason,
    )
