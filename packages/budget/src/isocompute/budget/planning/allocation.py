"""How a budget is split: C = B_p · n · M, and the learning rate that goes with the batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal

from ..checks import whole
from ..errors import BudgetError

Scaling = Literal["sqrt", "linear", "constant"]
"""How the learning rate grows with the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One way of spending a budget of C = B_p · n · M rollouts.

    ``Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=768)`` generates batches of 32
    rollouts and 24,576 rollouts in all.

    Attributes:
        problems_per_batch: B_p, problems sampled at every step.
        rollouts_per_problem: n, responses sampled for each of them.
        update_steps: M, steps taken.

    Raises:
        BudgetError: One of the three is not a whole number of at least 1.
    """

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int

    def __post_init__(self) -> None:
        for name in ("problems_per_batch", "rollouts_per_problem", "update_steps"):
            object.__setattr__(self, name, whole(getattr(self, name), name, least=1))

    @classmethod
    def within(cls, rollouts: int, *, problems_per_batch: int, rollouts_per_problem: int) -> Allocation:
        """Return the allocation with the most update steps that a budget allows.

        Raises:
            BudgetError: The budget does not pay for one step.
        """
        one_step = cls(problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=1)
        steps = whole(rollouts, "the budget", least=1) // one_step.batch_rollouts
        if steps < 1:
            raise BudgetError(
                f"a budget of {rollouts:,} rollouts does not pay for one step of {one_step.batch_rollouts:,} "
                f"({problems_per_batch:,} problems × {rollouts_per_problem:,} rollouts)"
            )
        return cls(
            problems_per_batch=problems_per_batch,
            rollouts_per_problem=rollouts_per_problem,
            update_steps=steps,
        )

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, rollouts generated at every step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def rollouts(self) -> int:
        """C = B_p · n · M, rollouts generated in all."""
        return self.batch_rollouts * self.update_steps

    def epochs(self, problems: int) -> float:
        """How often each of ``problems`` training problems is visited, B_p · M / D."""
        return self.problems_per_batch * self.update_steps / whole(problems, "problems", least=1)

    def learning_rate(self, *, anchor: float, anchor_batch: int, scaling: Scaling = "sqrt") -> float:
        """The learning rate for this batch, from one that was measured at another.

        Args:
            anchor: Learning rate that works at ``anchor_batch``.
            anchor_batch: The batch it was measured at, in rollouts.
            scaling: ``sqrt`` is anchor · √(B / anchor_batch), the rule of the IsoCompute Playbook
                (arXiv 2603.12151, Factor 3); ``linear`` is anchor · B / anchor_batch; ``constant`` is anchor.

        Raises:
            BudgetError: The anchor is not a positive number, or the scaling has no such name.
        """
        if not (isfinite(anchor) and anchor > 0):
            raise BudgetError(f"the anchor learning rate is {anchor!r}; it must be a positive number")
        ratio = self.batch_rollouts / whole(anchor_batch, "anchor_batch", least=1)
        factors = {"sqrt": sqrt(ratio), "linear": ratio, "constant": 1.0}
        if scaling not in factors:
            raise BudgetError(f"the scaling is {scaling!r}; it must be one of {', '.join(factors)}")
        return anchor * factors[scaling]
