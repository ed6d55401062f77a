"""The feasible splits of a budget, a grid over (B_p, n)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from ..checks import check_whole_fields, whole
from ..errors import BudgetError
from .compute import Allocation

LONGEST_AXIS = 200
"""More values than this on one axis are refused as a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The limits that a split must respect.

    Attributes:
        rollouts: C, the budget.
        max_batch: B_max, most rollouts in a batch.
        rollouts_per_problem: Values of n to consider; empty takes the powers of two from 2.
        problems_per_batch: Values of B_p to consider; empty takes the powers of two from 8, where there are any.
        problems: D, problems in the training set, or None.
        max_epochs: Most visits to each problem, B_p·M / D; needs ``problems``.
    """

    rollouts: int
    max_batch: int
    rollouts_per_problem: tuple[int, ...] = ()
    problems_per_batch: tuple[int, ...] = ()
    min_steps: int = 1
    problems: int | None = None
    max_epochs: float | None = None
    world_size: int = 1

    def __post_init__(self) -> None:
        check_whole_fields(self, "rollouts", "max_batch", "min_steps", "world_size", least=1)
        if self.problems is not None:
            whole(self.problems, "problems", least=1)
        if self.max_epochs is not None and (self.problems is None or not 0 < self.max_epochs < inf):
            said = f"max_epochs is {self.max_epochs!r} and problems {self.problems!r}"
            raise BudgetError(f"{said}; it must be positive and finite, and needs the number of problems")
        fewest = 8 if self.max_batch >= 8 else 1
        for name, first in (("rollouts_per_problem", 2), ("problems_per_batch", fewest)):
            given = tuple(whole(value, name, least=1) for value in getattr(self, name))
            powers = (2**k for k in range(first.bit_length() - 1, self.max_batch.bit_length()))
            values = tuple(sorted(set(given) or powers))
            if given and len(values) < len(given):
                raise BudgetError(f"{name} holds a value twice: {', '.join(map(str, given))}")
            if len(values) > LONGEST_AXIS:
                raise BudgetError(f"{name} has {len(values)} values; at most {LONGEST_AXIS} are considered")
            object.__setattr__(self, name, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One feasible split, with as many steps as the budget pays for.

    Attributes:
        unused: Rollouts of the budget that make no further step.
        epochs: Visits to each problem, or None when their number is not known.
    """

    allocation: Allocation
    unused: int
    epochs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One split that is not feasible: the limit that it exceeds, in words for all that exceed it, and the numbers."""

    problems_per_batch: int
    rollouts_per_problem: int
    limit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All splits that were considered, by B_p and n."""

    constraints: Constraints
    splits: tuple[Split, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def limits(self) -> Sequence[tuple[str, int]]:
        """Each limit with the number of splits that it left out, most first."""
        return Counter(out.limit for out in self.left_out).most_common()


def grid(constraints: Constraints) -> Grid:
    """Check every split of the grid."""
    pairs = product(constraints.problems_per_batch, constraints.rollouts_per_problem)
    checked = [_check(constraints, problems, n) for problems, n in pairs]
    return Grid(
        constraints=constraints,
        splits=tuple(split for split in checked if isinstance(split, Split)),
        left_out=tuple(split for split in checked if isinstance(split, LeftOut)),
    )


def _check(limits: Constraints, problems: int, n: int) -> Split | LeftOut:
    """Return a split, or the first limit that it exceeds."""
    batch = problems * n
    steps, over = limits.rollouts // batch, batch % limits.world_size
    epochs = problems * steps / limits.problems if limits.problems else None
    exceeded = None
    if batch > limits.max_batch:
        exceeded = f"batches above {limits.max_batch:,} rollouts", f"a batch of {batch:,} rollouts"
    elif limits.problems is not None and problems > limits.problems:
        exceeded = f"more problems in a batch than the {limits.problems:,} there are", f"{problems:,} problems"
    elif over:
        whole_batches = f"batches that cannot be split evenly over {limits.world_size} devices"
        exceeded = whole_batches, f"{batch:,} rollouts leave {over} over"
    elif steps < limits.min_steps:
        exceeded = f"fewer than {_steps(limits.min_steps)}", f"the budget pays for {_steps(steps)} of {batch:,}"
    elif limits.max_epochs is not None and epochs is not None and epochs > limits.max_epochs:
        exceeded = f"more than {limits.max_epochs:g} epochs", f"each problem would be visited {epochs:,.1f} times"
    if exceeded is not None:
        limit, reason = exceeded
        return LeftOut(problems_per_batch=problems, rollouts_per_problem=n, limit=limit, reason=reason)
    allocation = Allocation(problems_per_batch=problems, rollouts_per_problem=n, update_steps=steps)
    return Split(allocation=allocation, unused=limits.rollouts - allocation.rollouts, epochs=epochs)


def _steps(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"
