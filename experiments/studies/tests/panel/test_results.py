"""The tables that are committed: whole, and of the frozen study."""

import json

import polars as pl
import pytest
from isocompute.rollout.contract import tables

from experiments.studies.panel.prepare import INPUTS, RESULTS
from experiments.studies.panel.study import UNITS

NAMES = [unit.name for unit in UNITS]


def test_every_unit_is_committed_with_its_inputs_and_the_commit_that_trained_it() -> None:
    assert {path.parent.name for path in RESULTS.glob("*/finished.json")} == set(NAMES)
    assert {f"{unit.task}-{unit.base_seed}" for unit in UNITS} == {
        path.parent.name for path in INPUTS.glob("*/base.json")
    }
    commit = json.loads((RESULTS.parent / "frozen.json").read_text())["commit"]
    assert commit in (RESULTS.parent / "README.md").read_text()


@pytest.mark.parametrize("unit", NAMES)
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
