"""The tables of a cell that a command trained, from its ledger and its trainer's log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import TRAINING_COHORTS, History
from isocompute.budget.trainers.evals import ingest
from isocompute.learner import EvaluationRecord
from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from . import work
from .foreign import LEDGER, CommandCell
from .spool import Spool

SETTINGS = "settings.json"
"""The settings that the trainer was given, with which its log must agree."""


def write_tables(cell: CommandCell, home: Path, settings: Mapping[str, Any], *, logs: str, questions: int) -> None:
    """Write the tables of a cell whose command has ended, then that it has; those that no log can give are left out.

    Raises:
        ExperimentError: No budget was attached, the run is not at its budget, an evaluation is missing, or the log and
            the ledger contradict each other.
        BudgetError: The log or the ledger cannot be read, or the log contradicts the settings.
    """
    path = home / LEDGER
    if not path.exists():
        raise ExperimentError(
            f"its command ended and wrote no ledger, so that nobody counted what it generated: attach a budget with "
            f"the ledger {{ledger}}, here {path}, such as isocompute.budget.trl.attach does"
        )
    history = History.read(path)
    ledger = history.table().with_columns(run_id=pl.lit(cell.run_id))
    counts = pl.col("rollouts", "response_tokens").sum()
    used = ledger.filter(pl.col("cohort").is_in(TRAINING_COHORTS)).group_by("step").agg(counts)
    if history.last_step != cell.update_steps or used["rollouts"].sum() != cell.rollouts:
        raise ExperimentError(
            f"its command ended with {used['rollouts'].sum():,} of {cell.rollouts:,} rollouts in {history.last_step:,} "
            f"of {cell.update_steps:,} steps, by {path}: attach the budget with rollouts={{rollouts}} and "
            'counted="used", and let the trainer take as many steps as it was given'
        )
    evals = _evals(cell, home, settings, logs, questions, used)
    tables.write(evals, "evals", home / "evals.parquet")
    tables.write(ledger, "ledger", home / "ledger.parquet")
    timings = timings_of(history, cell.run_id, devices=cell.command.settings.world_size)
    if len(timings):
        tables.write(timings, "timings", home / "timings.parquet")
    spool, metric = Spool(home / "metrics.jsonl"), f"avg_at_{cell.evaluation_samples}"
    spool.path.unlink(missing_ok=True)
    for step, rollouts, score in evals.select("step", "rollouts", metric).iter_rows():
        spool.write(EvaluationRecord(step=step, rollouts=rollouts, scores={metric: score}, evaluate_seconds=0.0))
    work.set_done(home, work.Done(rollouts=cell.rollouts, step=cell.update_steps, diverged_at=None))


def _evals(
    cell: CommandCell, home: Path, settings: Mapping[str, Any], logs: str, questions: int, used: pl.DataFrame
) -> pl.DataFrame:
    """The evaluations in the log, with what the ledger counted up to them.

    Args:
        used: What each step used: ``step``, ``rollouts``, ``response_tokens``.
    """
    command = cell.command.settings
    work.write_json(home / SETTINGS, {**settings, "world_size": command.world_size})
    said = {"seed": str(cell.seed), "questions": str(questions), "problem_set": cell.origin.problem_set}
    logged, _ = ingest(command.trainer, [logs], config=home / SETTINGS, constants={**command.log_settings, **said})
    metric = f"avg_at_{cell.evaluation_samples}"
    if metric not in logged.columns:
        names = ", ".join(name for name in logged.columns if name.startswith("avg_at_"))
        raise ExperimentError(
            f"{logs}: has {names}, and {metric} is asked for: let the trainer evaluate with {{evaluation_samples}} "
            "responses to each problem"
        )
    rows = []
    for step, rollouts, score in logged.sort("step").select("step", "rollouts", metric).iter_rows():
        own = used.filter(pl.col("step") <= step)
        counted = int(own["rollouts"].sum())
        if counted != rollouts:
            raise ExperimentError(
                f"{logs}: says {rollouts:,} rollouts up to step {step:,}, and {home / LEDGER} counted {counted:,}: "
                "they are not of one run, or the trainer takes other steps than its settings say"
            )
        tokens = int(own["response_tokens"].sum())
        rows.append(
            cell.evals_row(step=step, rollouts=counted, tokens=tokens, questions=questions, scores={metric: score})
        )
    steps = [row["step"] for row in rows]
    missing = [step for step in range(0, cell.update_steps + 1, cell.evaluate_steps) if step not in steps]
    if missing:
        raise ExperimentError(
            f"{logs}: has no evaluation at step {missing[0]:,} (there are {', '.join(map(str, steps))}): let the "
            "trainer evaluate before the first step and every {evaluate_steps} steps"
        )
    return pl.DataFrame(rows)


def timings_of(history: History, run_id: str, *, devices: int) -> pl.DataFrame:
    """How long each step took that survived, as a ``timings`` table; without rows where the ledger does not say."""
    resumed = history.resumed_from
    # What an attempt took for a step that a later one did again was lost with it.
    kept = [(step, seconds) for attempt, step, seconds in history.times if step <= min(resumed[attempt:], default=step)]
    frame = pl.DataFrame(kept, schema={"step": pl.Int64, "device_seconds": pl.Float64}, orient="row")
    return (
        frame.group_by("step")
        .agg(pl.col("device_seconds").sum())
        .with_columns(run_id=pl.lit(run_id), phase=pl.lit("step"), seconds=pl.col("device_seconds") / devices)
        .sort("step")
    )
