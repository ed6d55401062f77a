"""What a trainer's settings make of a batch: how it is generated, how it is trained on, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from ..planning.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How a trainer generates its batches and takes optimizer steps on them.

    A trainer that samples 1,024 problems at once and splits them into four optimizer steps generates 1,024 problems
    every four steps of 256; one that accumulates four generation batches of one problem takes a step of 4.

    Attributes:
        problems_per_batch: B_p, problems that one optimizer step trains on; None when it cannot be known.
        rollouts_per_problem: n, or None.
        update_steps: M, optimizer steps, or None.
        problems_generated: Problems that are generated at once, or None.
        generations: How often that happens in the whole run, or None.
        baseline_rollouts: Responses for each problem in addition to n and not trained on (veRL's remax: 1).
        world_size: Devices that train, or None.
        data_parallel: Copies of the model that share a batch, or None.
        unknown: What the settings leave open, and how to state it.
        inconsistent: Contradictions, and settings that do not do what they seem to.
        notes: Defaults that were assumed, and what is generated in addition.
    """

    problems_per_batch: int | None
    rollouts_per_problem: int | None
    update_steps: int | None
    problems_generated: int | None
    generations: int | None
    baseline_rollouts: int = 0
    world_size: int | None
    data_parallel: int | None = None
    unknown: tuple[str, ...] = ()
    inconsistent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def allocation(self) -> Allocation | None:
        """The split, when all three parts are known; it generates B_p · n · M unless batches are used again."""
        if None in (self.problems_per_batch, self.rollouts_per_problem, self.update_steps):
            return None
        return Allocation(
            problems_per_batch=self.problems_per_batch,  # type: ignore[arg-type]
            rollouts_per_problem=self.rollouts_per_problem,  # type: ignore[arg-type]
            update_steps=self.update_steps,  # type: ignore[arg-type]
        )

    @property
    def batch_rollouts(self) -> int | None:
        """Rollouts that are generated at once, baselines included, or None."""
        if self.problems_generated is None or self.rollouts_per_problem is None:
            return None
        return self.problems_generated * (self.rollouts_per_problem + self.baseline_rollouts)

    @property
    def generated(self) -> int | None:
        """Rollouts that the run generates, or None when they are not known."""
        if self.generations is None or self.batch_rollouts is None:
            return None
        return self.batch_rollouts * self.generations
