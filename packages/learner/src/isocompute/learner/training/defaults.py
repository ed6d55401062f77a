"""What ``train`` does where it is given no meter, no checkpoints, no progress and nobody who watches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

import polars as pl

from ..errors import LearnerError
from ..records.steps import EvaluationRecord, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSteps:
    """A meter that admits a number of steps and keeps no record of what they cost.

    Attributes:
        limit: Steps of the whole run, those before a checkpoint that it continues from included.

    Raises:
        LearnerError: There is no step.
    """

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise LearnerError(f"limit is {self.limit}; a run must have 1 step or more")

    def admit(self, *, step: int, rollouts: int) -> bool:
        """Whether a step, counted from 1, may be taken."""
        return step <= self.limit

    def charge(self, step: int, rollouts: pl.DataFrame, /) -> None:
        """Keep no record."""

    def sync(self) -> None:
        """Have nothing to put on the disk."""


def one_pass(problems: int, problems_per_batch: int) -> UpdateSteps:
    """As many steps as give each problem one turn.

    Args:
        problems: Number of problems; those that do not fill a batch have no turn.
        problems_per_batch: B_p.
    """
    return UpdateSteps(limit=max(1, problems // problems_per_batch))


def print_record(record: Record, stream: TextIO | None = None) -> None:
    """Print a line for a step or an evaluation.

    Args:
        stream: Where to; None for the standard error output.
    """
    metrics = record.metrics()
    if isinstance(record, EvaluationRecord):
        words = [f"{name} {score:.3f}" for name, score in record.scores.items()]
    else:
        named = {"reward": "train/reward", "gradient norm": "health/gradient_norm"}
        words = [f"{word} {metrics[name]:.3g}" for word, name in named.items() if name in metrics]
    took = sum(record.seconds().values())
    what = "evaluation after step" if isinstance(record, EvaluationRecord) else "step"
    line = ", ".join([f"{record.rollouts:,} rollouts", *words, f"{took:.1f} s"])
    print(f"{what} {record.step}: {line}", file=stream or sys.stderr, flush=True)
