"""What was generated for a sweep, or for the test of its prescription."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from isocompute.frontier.show.report import Table
from isocompute.rollout.contract import tables

WORDS = {"eval": "evaluation", "pilot": "training"}
"""Cohorts of the ledger that are called otherwise here."""


def spent(folder: Path) -> Table:
    """Rollouts and tokens, by what they were generated for.

    Evaluations before the first update belong to a seed, whose cells share them, and have rows of their own.
    """
    states = json.loads((folder / "cells.json").read_text())["cells"]
    pilots = [state["run_id"] for state in states if state["purpose"] == "pilot"]
    cells = [state["run_id"] for state in states]
    cohort = pl.col("cohort").cast(pl.String).replace(WORDS)
    what = (
        pl.when(~pl.col("run_id").is_in(cells))
        .then(pl.lit("evaluation before the first update"))
        .when(pl.col("run_id").is_in(pilots))
        .then(pl.concat_str(pl.lit("pilots: "), cohort))
        .otherwise(cohort)
    )
    ledger = tables.read(folder / "ledger.parquet", "ledger").with_columns(what=what)
    sums = ledger.group_by("what").agg(pl.col("rollouts", "response_tokens").sum()).sort("what")
    return Table(
        head=("what for", "rollouts", "response tokens"),
        rows=tuple((of, f"{rollouts:,}", f"{tokens:,}") for of, rollouts, tokens in sums.iter_rows()),
    )
