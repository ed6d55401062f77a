"""What the report and the closing words say of runs that diverged, and what gains are over."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import tables

from experiments.report.gains import gains, metric_label
from experiments.report.spent import diverged
from experiments.running.work import write_json
from experiments.settings import load
from experiments.stages import prescribe

PARAMS = Path(__file__).parents[2] / "params.yaml"


def evals(*, ends: dict[tuple[int, int], tuple[int, float]]) -> pl.DataFrame:
    """Runs by (n, seed), each with its last rollouts and score; all begin at 0.9, which no gain may be over."""
    rows = [
        {"run_id": f"n{n}s{seed}", "step": at // 16, "rollouts": at, "tokens": at, "rollouts_per_problem": n,
         "problems_per_batch": 4, "seed": seed, "problem_set": "easy", "split": "validation", "questions": 12,
         "samples": 4, "avg_at_4": score}
        for (n, seed), (last, end) in ends.items()
        for at, score in ((0, 0.9), (last, end))
    ]  # fmt: skip
    return pl.DataFrame(rows)


def state(n: int, seed: int, status: str) -> dict[str, Any]:
    return {
        "run_id": f"n{n}s{seed}", "purpose": "sweep", "rollouts_per_problem": n, "problems_per_batch": 4, "seed": seed,
        "learning_rate": 1e-3, "rollouts": 128, "steps": 3, "status": status,
        "health": [], "policy": None,
    }  # fmt: skip


ENDS = {(2, 0): (128, 0.5), (2, 1): (128, 0.7), (4, 0): (128, 0.4), (4, 1): (32, 0.0)}
STATES = [state(n, seed, "diverged" if (n, seed) == (4, 1) else "finished") for n, seed in ENDS]


def test_gains_are_over_the_fresh_score_and_of_the_seeds_that_ended() -> None:
    two, four = gains(evals(ends=ENDS), "avg_at_4", STATES, base=0.2)
    assert two.text() == "0.200 -> 0.600 (+0.400, 2 seeds)"
    assert four.text() == "0.200 -> 0.400 (+0.200, 1 seed, 1 diverged)"
    every = [state(4, seed, "diverged") for seed in (0, 1)]
    (none,) = gains(evals(ends={k: v for k, v in ENDS.items() if k[0] == 4}), "avg_at_4", every, base=0.2)
    assert none.text() == "no seed was trained to the end, 2 diverged"


def test_the_report_names_runs_that_diverged_and_only_those() -> None:
    shown = diverged(STATES)
    assert shown.count("<tr>") == 2
    assert "<td>n = 4</td><td>4</td><td>1</td>" in shown
    assert diverged([s for s in STATES if s["status"] == "finished"]) == ""
    assert metric_label("worst_at_4") == "worst@4"


def test_a_test_of_the_prescription_leaves_out_what_diverged_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that diverged has no evaluation at that budget, which would otherwise end the comparison."""
    monkeypatch.chdir(tmp_path)
    preset = load(PARAMS, "smoke")
    settings = preset.prescribe["easy"].model_copy(update={"baselines": (4,)})
    out = prescribe.OUT / "prescribe" / "easy"
    tables.write(evals(ends=ENDS), "evals", out / "evals.parquet")
    write_json(out / "cells.json", {"cells": STATES})
    found = prescribe._compared(preset, "easy", settings, 2)
    assert found["diverged"] == [{"rollouts_per_problem": 4, "seed": 1, "steps": 3}]
    (against,) = found["against"]
    assert against["differences"] == [pytest.approx(0.1)]
    assert against["verdict"] == "unresolved"
    assert "n = 4, seed 1 diverged" in capsys.readouterr().out
