"""The evaluations of a cell: validation problems on its grid, and training problems where a study asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout import EvaluationResult, evaluate
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.evaluation import Sampler

from . import starts
from .cells import Cell

PASS_RATES, TRAINING_PASS_RATES = "pass_rates", "training_pass_rates"
"""Names of the tables of pass rates, on validation and on training problems."""


class Evaluated:
    """An evaluation as the loop needs it: a row of ``evals``, its scores, and the responses that this run pays for."""

    def __init__(
        self,
        cell: Cell,
        found: starts.Start | EvaluationResult,
        rollouts_table: pl.DataFrame | None,
        *,
        step: int,
        rollouts: int,
        tokens: int,
    ) -> None:
        self.rollouts_table = rollouts_table
        self.scores: Mapping[str, float] = dict(found.metrics)
        self.row: Mapping[str, Any] = {
            "run_id": cell.run_id,
            "step": step,
            "rollouts": rollouts,
            "tokens": tokens,
            "rollouts_per_problem": cell.rollouts_per_problem,
            "problems_per_batch": cell.problems_per_batch,
            "seed": cell.seed,
            "problem_set": cell.origin.problem_set,
            "split": "validation",
            "questions": found.questions,
            "samples": found.samples,
            "learning_rate": cell.learner.learning_rate,
            "base_model": cell.origin.base_model,
            **self.scores,
        }


class Evaluations:
    """The evaluations of one cell, as the loop asks for them; the first is read, not made."""

    def __init__(self, cell: Cell, sampler: Sampler, problems: pl.DataFrame, home: Path, start: Path) -> None:
        self._cell, self._sampler, self._home, self._start = cell, sampler, home, start
        self._validation = problems.filter(pl.col("split") == "validation")
        self._trained = problems.filter(pl.col("split") == "train")

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Evaluated:
        """Evaluate at a point of the grid."""
        cell = self._cell
        found: starts.Start | EvaluationResult
        if step == 0:
            found, paid_for = starts.read(self._start), None
        else:
            found = self._evaluate(self._validation, cell.evaluation_samples, at)
            paid_for = found.rollouts
        self._write(found.pass_rates, PASS_RATES, step)
        training = cell.training_rates
        if training is not None and at in training.at:
            more = self._evaluate(self._trained, training.samples, at)
            self._write(more.pass_rates, TRAINING_PASS_RATES, step)
            paid_for = more.rollouts if paid_for is None else pl.concat([paid_for, more.rollouts])
        return Evaluated(cell, found, paid_for, step=step, rollouts=rollouts, tokens=tokens)

    def _evaluate(self, problems: pl.DataFrame, samples: int, at: int) -> EvaluationResult:
        return evaluate(self._sampler, problems, samples=samples, seed=self._cell.seed, at=at, run_id=self._cell.run_id)

    def _write(self, rates: pl.DataFrame, name: str, step: int) -> None:
        rates = rates.with_columns(run_id=pl.lit(self._cell.run_id), step=pl.lit(step, dtype=pl.Int64))
        # One file per evaluation: repeated after a crash, it is written again with the same content.
        tables.write(rates, "pass_rates", self._home / name / f"{step}.parquet")
