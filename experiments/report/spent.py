"""What was generated, and which cells ended early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout import tables

from .html import table


def spent(name: str, out: Path) -> str:
    """Rollouts and tokens of a problem set, by what they were generated for.

    Args:
        name: The problem set.
        out: The outputs.
    """
    ledgers = [("sweep and pilot", tables.read(out / "sweep" / name / "ledger.parquet", "ledger"))]
    tested = out / "prescribe" / name / "ledger.parquet"
    if tested.exists():
        ledgers.append(("test of the prescription", tables.read(tested, "ledger")))
    rows = []
    for label, ledger in ledgers:
        sums = ledger.group_by("cohort").agg(pl.col("rollouts", "response_tokens").sum()).sort("cohort")
        for cohort, rollouts, tokens in sums.iter_rows():
            rows.append((f"{label}: {cohort}", f"{rollouts:,}", f"{tokens:,}"))
    return table(("what for", "rollouts", "response tokens"), rows)


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
