"""What the report says of the cells of a sweep, and of what they cost."""

from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from experiments.report.page import health, spent
from experiments.running.work import write_json


def state(run: str, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": run,
        "purpose": "sweep",
        "base_model": "base",
        "rollouts_per_problem": 2,
        "problems_per_batch": 4,
        "seed": 0,
        "learning_rate": 1e-3,
        "steps": 30,
        "status": "finished",
        "health": [],
        "judged": True,
        **changes,
    }


def test_what_was_generated_is_told_apart_by_what_it_was_for(tmp_path: Path) -> None:
    rows = [
        ("swept", 1, "trained", 64),
        ("swept", 1, "filtered", 8),
        ("swept", 1, "eval", 48),
        ("tried", 1, "pilot", 32),
        ("tried", 1, "eval", 1048),
        ("start", 0, "eval", 16),
    ]
    ledger = [
        {"run_id": run, "step": step, "cohort": cohort, "rollouts": count, "prompt_tokens": 1, "response_tokens": 9}
        for run, step, cohort, count in rows
    ]
    tables.write(pl.DataFrame(ledger), "ledger", tmp_path / "ledger.parquet")
    write_json(tmp_path / "cells.json", {"cells": [state("swept"), state("tried", purpose="pilot")]})
    assert spent(tmp_path).rows == (
        ("evaluation", "48", "9"),
        ("evaluation before the first update", "16", "9"),
        ("filtered", "8", "9"),
        ("pilots: evaluation", "1,048", "9"),
        ("pilots: training", "32", "9"),
        ("trained", "64", "9"),
    )


def test_flags_divergence_and_runs_too_short_to_judge_are_listed_by_cell() -> None:
    flag = {"name": "entropy_collapse", "step": 1200, "reason": "0.01 of 1.2 nats"}
    ill, gone, short = state("a", health=[flag]), state("b", status="diverged", steps=3), state("c", judged=False)
    where = ("sweep", "base", "n = 2, B_p = 4, seed 0", "0.001")
    found = health([ill, gone, short, state("d")])
    assert found.text == "No flags in 1 of 4 cells."
    assert found.table is not None
    assert found.table.rows == (
        (*where, "1,200", "entropy collapse", "0.01 of 1.2 nats"),
        (*where, "3", "diverged", "its gradient was not finite, twice; its evaluations count"),
        (*where, "30", "not judged", "it has fewer steps than the flags need"),
    )
    assert health([state("d")]).table is None
