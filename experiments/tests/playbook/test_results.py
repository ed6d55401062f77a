"""The tables that are committed: whole, and of the frozen study."""

import json

import polars as pl
import pytest
from isocompute.rollout.contract import tables

from experiments.playbook.background import RESULTS, frozen
from experiments.playbook.study import load

UNITS = sorted(path.parent.name for path in RESULTS.glob("*/cells.json"))


def test_the_study_is_frozen_at_a_commit() -> None:
    assert len(frozen()) == 40
    assert set(UNITS) <= {unit.name for unit in load().units()}


@pytest.mark.parametrize("unit", UNITS)
def test_every_run_of_the_tables_is_a_cell_and_every_cell_has_its_rows(unit: str) -> None:
    folder = RESULTS / unit
    cells = {cell["run_id"]: cell for cell in json.loads((folder / "cells.json").read_text())["cells"]}
    evals = tables.read(folder / "evals.parquet", "evals")
    trained = {run for run, cell in cells.items() if cell["purpose"] != "pilot"}
    assert set(evals["run_id"]) == trained
    for name in ("pass_rates", "training_pass_rates"):
        assert set(tables.read(folder / f"{name}.parquet", "pass_rates")["run_id"]) <= trained
    ledger = tables.read(folder / "ledger.parquet", "ledger").filter(pl.col("cohort") == "trained")
    used = dict(ledger.group_by("run_id").agg(pl.col("rollouts").sum()).iter_rows())
    for run in trained:
        cell = cells[run]
        size = cell["rollouts_per_problem"] * cell["problems_per_batch"]
        # A branch pays for its own steps only.
        assert used[run] == (cell["steps"] - cell["first_step"]) * size
        assert cell["branch_of"] is None or cell["branch_of"] in trained
