"""The evaluations of a cell: validation problems on its grid, and training problems where a study asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation as the loop needs it: a row of ``evals``, its scores, and the responses that this run pays for."""

    row: Mapping[str, Any]
    scores: Mapping[str, float]
    rollouts_table: pl.DataFrame | None


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
        row = cell.evals_row(
            step=step, rollouts=rollouts, tokens=tokens, questions=found.questions, scores=found.metrics
        )
        return Evaluated(row=row, scores=found.metrics, rollouts_table=paid_for)

    def _evaluate(self, problems: pl.DataFrame, samples: int, at: int) -> EvaluationResult:
        return evaluate(self._sampler, problems, samples=samples, seed=self._cell.seed, at=at, run_id=self._cell.run_id)

    def _write(self, rates: pl.DataFrame, name: str, step: int) -> None:
        rates = rates.with_columns(run_id=pl.lit(self._cell.run_id), step=pl.lit(step, dtype=pl.Int64))
        # One file per evaluation: repeated after a crash, it is written again with the same content.
        tables.write(rates, "pass_rates", self._home / name / f"{step}.parquet")
