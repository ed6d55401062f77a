"""Cells: the single runs that sweeps, pilots and tests of a prescription are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from isocompute.learner import LearnerConfig, RunConfig

from ..errors import ExperimentError
from .identity import Surroundings, code_of_rules, digest

if TYPE_CHECKING:
    import polars as pl

READ_BY_A_CELL = ("problem_id", "prompt", "answer", "verifier", "metadata", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What all cells of a problem set and a base model share, and their results depend on.

    Attributes:
        base: Hash of its content.
        problems: Hash of the problems and of their verifiers' code (``problems_hash``).
        generation: How responses are generated and scored (``Preset.generation``).
        surroundings: What computes.
    """

    problem_set: str
    base_model: str
    base: str
    problems: str
    generation: Mapping[str, Any]
    surroundings: Surroundings


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One ``(B_p, n, seed)`` run and all that its result depends on.

    Attributes:
        purpose: ``sweep``, ``pilot`` or ``prescribe``; shown, and no part of the identity.
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        rollouts: Budget, C; no part of the identity, since a longer run begins as the shorter one.
        evaluate_every: Nominal rollouts between evaluations.
        evaluations_per_octave: Points an octave of a grid of evaluations that is spaced by the logarithm; None: every
            multiple of ``evaluate_every`` (``RunConfig``).
        evaluation_samples: Responses per validation problem.
    """

    purpose: str
    origin: Origin
    rollouts_per_problem: int
    problems_per_batch: int
    seed: int
    rollouts: int
    evaluate_every: int
    evaluations_per_octave: int | None = None
    evaluation_samples: int
    learner: LearnerConfig

    @cached_property
    def run_id(self) -> str:
        """Hash of all that the result depends on."""
        plain = asdict(self)
        del plain["purpose"], plain["rollouts"]
        return digest(plain)

    @cached_property
    def start_id(self) -> str:
        """Hash of all that its first evaluation depends on, which cells of one seed share."""
        return digest({"start": asdict(self.origin), "seed": self.seed, "evaluation_samples": self.evaluation_samples})

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def run_config(self) -> RunConfig:
        """What the learner's loop is told of it."""
        return RunConfig(
            run_id=self.run_id, rollouts_per_problem=self.rollouts_per_problem,
            problems_per_batch=self.problems_per_batch, seed=self.seed, evaluate_every=self.evaluate_every,
            evaluations_per_octave=self.evaluations_per_octave,
        )  # fmt: skip

    def evals_row(
        self, *, step: int, rollouts: int, tokens: int, questions: int, scores: Mapping[str, float]
    ) -> dict[str, Any]:
        """A row of its ``evals``, with rollouts and tokens up to the step."""
        return {
            "run_id": self.run_id, "step": step, "rollouts": rollouts, "tokens": tokens,
            "rollouts_per_problem": self.rollouts_per_problem, "problems_per_batch": self.problems_per_batch,
            "seed": self.seed, "problem_set": self.origin.problem_set, "split": "validation", "questions": questions,
            "samples": self.evaluation_samples, "learning_rate": self.learner.learning_rate,
            "base_model": self.origin.base_model, **scores,
        }  # fmt: skip

    @property
    def name(self) -> str:
        """Human-readable name."""
        return (
            f"n={self.rollouts_per_problem} Bp={self.problems_per_batch} lr={self.learner.learning_rate:.3g} "
            f"{self.origin.base_model} seed={self.seed}"
        )


def problems_hash(problems: pl.DataFrame) -> str:
    """Hash of what a cell reads of its problems, and of the code of their verifiers: not of how hard they are."""
    read = problems.select(name for name in READ_BY_A_CELL if name in problems.columns).sort("problem_id")
    table = sha256(read.write_csv().encode()).hexdigest()[:16]
    rules = code_of_rules(problems["verifier"].to_list())
    return digest([table, rules]) if rules else table


def check_problems(cell: Cell, problems: pl.DataFrame) -> None:
    """Refuse to run a cell whose problems or verifiers are not those that its run id is of."""
    if problems_hash(problems) != cell.origin.problems:
        raise ExperimentError(
            f"the problems of {cell.name}, or the code of their verifiers, changed since the sweep began: start the "
            "same command again"
        )
