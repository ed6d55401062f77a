"""What was generated, and which cells ended early."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from .html import table

STAGES = (("sweep", "sweep"), ("test of the prescription", "prescribe"))
"""What trains, in words, and the folder of what it wrote."""
WORDS = {"eval": "evaluation", "pilot": "training"}
"""Cohorts of the ledger that are called otherwise here."""


def spent(name: str, out: Path) -> str:
    """Rollouts and tokens of a problem set, by what they were generated for.

    Evaluations before the first update belong to a seed, whose cells share them, and have rows of their own.

    Args:
        name: The problem set.
    """
    rows = [row for label, stage in STAGES for row in _stage(label, out / stage / name)]
    return table(("what for", "rollouts", "response tokens"), rows)


def _stage(label: str, folder: Path) -> list[tuple[str, str, str]]:
    """What one stage generated; nothing where it trained nothing."""
    if not (folder / "ledger.parquet").exists():
        return []
    states = json.loads((folder / "cells.json").read_text())["cells"]
    pilots = [state["run_id"] for state in states if state["purpose"] == "pilot"]
    cells = [state["run_id"] for state in states]
    cohort = pl.col("cohort").cast(pl.String).replace(WORDS)
    what = (
        pl.when(~pl.col("run_id").is_in(cells))
        .then(pl.lit(f"{label}{' and pilots' if pilots else ''}: evaluation before the first update"))
        .when(pl.col("run_id").is_in(pilots))
        .then(pl.concat_str(pl.lit("pilots: "), cohort))
        .otherwise(pl.concat_str(pl.lit(f"{label}: "), cohort))
    )
    ledger = tables.read(folder / "ledger.parquet", "ledger").with_columns(what=what)
    sums = ledger.group_by("what").agg(pl.col("rollouts", "response_tokens").sum()).sort("what")
    return [(of, f"{rollouts:,}", f"{tokens:,}") for of, rollouts, tokens in sums.iter_rows()]


def diverged(states: Sequence[Mapping[str, Any]]) -> str:
    """Cells whose gradient was not finite, twice; their evaluations before that count."""
    rows = [
        (s["purpose"], f"n = {s['rollouts_per_problem']}", s["problems_per_batch"], s["seed"],
         f"{s['learning_rate']:.3g}", f"{s['steps']:,}")
        for s in states
        if s["status"] == "diverged"
    ]  # fmt: skip
    if not rows:
        return ""
    head = ("cell", "", "B_p", "seed", "learning rate", "diverged at step")
    return "<p>These cells diverged; their evaluations up to then are used.</p>" + table(head, rows)
