"""Train cells of a finished unit again, and compare: every table is to be the same, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl

from ..errors import ExperimentError
from ..rates.record import Pilot
from ..running import work
from ..running.cells import Cell
from ..running.design import Design
from . import study as panel
from .prepare import inputs_of, preset_of
from .study import Study, Unit
from .unit import Runner

TABLES = ("evals", "ledger", "pass_rates", "training_pass_rates")


def again(study: Study, unit: Unit, home: Path, *, count: int) -> list[str]:
    """Train the first trunks of a unit again, in a new folder, and the first branch both ways."""
    source, folder = home / "units" / unit.name, home / "again" / unit.name
    if not (source / "results" / "finished.json").exists():
        raise ExperimentError(f"{unit.name} is not finished; see `status`")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    preset = preset_of(unit)
    runner = Runner(preset, unit, inputs_of(unit, home))
    design = Design(preset=preset, sweep=preset.sweep_of(unit.problem_set), origin=runner.origin)
    rates = Pilot.read(json.loads((source / "results" / "pilot.json").read_text())).rates()
    trunks = panel.trunks(study, design, rates)[:count]
    runner.train(trunks)
    found = [_same(cell, cell, source, folder) for cell in trunks]
    end = min(study.branches.at)
    continued = trunks[0].branch(end, share=study.branches.share)
    at_once = replace(continued, branch_of=None, purpose="sweep")
    runner.train([continued, at_once])
    found.append(_same(continued, at_once, folder, folder))
    return found


def _same(cell: Cell, other: Cell, one: Path, two: Path) -> str:
    """Compare the tables of a cell with those of another one, from the step on at which both are under way."""
    names = ("evals", "ledger", "pass_rates") if cell is not other else TABLES
    for name in names:
        first, second = (_rows(each, place, name, cell.first_step) for each, place in ((cell, one), (other, two)))
        if not first.equals(second):
            raise ExperimentError(f"{cell.name}: {name} differs between {one} and {two}")
    how = "trained again" if cell is other else f"continued from step {cell.first_step} and trained at once"
    return f"{cell.name} lr={cell.learner.learning_rate:.3g}: {how}, the same {', '.join(names)}"


def _rows(cell: Cell, place: Path, name: str, first_step: int) -> pl.DataFrame:
    table = pl.read_parquet(place / work.folder_of(cell) / f"{name}.parquet").drop("run_id")
    return table.filter(pl.col("step") > first_step) if first_step else table
