"""A trainer's settings, interpreted: the allocation, the devices, and what is open or contradictory."""

from __future__ import annotations

from dataclasses import dataclass

from ..planning.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a trainer's settings say.

    Attributes:
        problems_per_batch: B_p, or None when it cannot be known.
        rollouts_per_problem: n, or None.
        update_steps: M, batches generated and trained on, or None.
        optimizer_steps: Optimizer steps in all; more than M where a batch is split or used again.
        world_size: Devices that train, or None.
        data_parallel: Copies of the model that share a batch, or None.
        baseline_rollouts: Responses generated for each problem in addition to n and not trained on (veRL's remax: 1).
        unknown: What the settings leave open, and how to state it.
        inconsistent: Contradictions, and settings that do not do what they seem to.
        notes: Defaults that were assumed, and what is generated in addition.
    """

    problems_per_batch: int | None
    rollouts_per_problem: int | None
    update_steps: int | None
    optimizer_steps: int | None
    world_size: int | None
    data_parallel: int | None = None
    baseline_rollouts: int = 0
    unknown: tuple[str, ...] = ()
    inconsistent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def allocation(self) -> Allocation | None:
        """The allocation, when all three parts are known."""
        if None in (self.problems_per_batch, self.rollouts_per_problem, self.update_steps):
            return None
        return Allocation(
            problems_per_batch=self.problems_per_batch,  # type: ignore[arg-type]
            rollouts_per_problem=self.rollouts_per_problem,  # type: ignore[arg-type]
            update_steps=self.update_steps,  # type: ignore[arg-type]
        )

    @property
    def generated(self) -> int | None:
        """Rollouts that the run generates, B_p · (n + baseline) · M, or None when the allocation is not known."""
        a = self.allocation
        return None if a is None else a.rollouts + a.problems_per_batch * a.update_steps * self.baseline_rollouts
