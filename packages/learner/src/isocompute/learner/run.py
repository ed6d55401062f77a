"""One run: its settings, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One cell of a sweep: ``problems_per_batch`` × ``rollouts_per_problem``, one seed.

    Attributes:
        run_id: Hash of the run's configuration.
        rollouts_per_problem: n, at least 2.
        problems_per_batch: B_p.
        seed: Fixes the order of problems and every response's seed.
        evaluate_every: Nominal rollouts (step · B) between evaluations, a multiple of B = B_p · n.

    Raises:
        LearnerError: n is 1 (a group baseline needs two), there is no problem in a batch, or the grid is not a
            multiple of the batch.
    """

    run_id: str
    rollouts_per_problem: int
    problems_per_batch: int
    seed: int
    evaluate_every: int

    def __post_init__(self) -> None:
        if self.rollouts_per_problem < 2:
            raise LearnerError(f"rollouts_per_problem is {self.rollouts_per_problem}: a group baseline needs 2 or more")
        if self.problems_per_batch < 1:
            raise LearnerError(f"problems_per_batch is {self.problems_per_batch}: a batch needs 1 or more")
        if self.evaluate_every < 1 or self.evaluate_every % self.batch_rollouts:
            raise LearnerError(
                f"evaluate_every is {self.evaluate_every} rollouts, which is not a multiple of the batch of "
                f"{self.batch_rollouts}: evaluations would not fall on a common grid"
            )

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run is.

    Attributes:
        step: Updates taken.
        rollouts: Rollouts generated for training so far, whatever became of them.
        tokens: Their response tokens.
        evals: Rows of the ``evals`` table so far.
        diverged_at: The step whose gradient was not finite twice, which ended the run; None otherwise. Its
            rollouts are counted, its update was not made. Never saved: the run would find it again.
    """

    step: int
    rollouts: int
    tokens: int
    evals: list[dict[str, Any]]
    diverged_at: int | None = None
