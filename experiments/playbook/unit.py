"""One unit of the panel, in this process: ladder, trunks, branches, extras; every cell is trained once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from ..running import work
from ..running.actor import WorkerConfig
from ..running.cells import Cell, Origin, problems_hash
from ..running.design import Design
from ..running.evaluations import TRAINING_PASS_RATES
from ..running.identity import Surroundings
from ..running.loaded import CodeGuard, Loaded, check
from ..running.models import content
from ..running.stopping import Stopped
from ..settings import Preset
from ..stages.search import find
from ..stages.training import collect
from . import study as panel
from .prepare import inputs_of, preset_of
from .study import Study, Unit

SPENT = Path("spent.jsonl")
"""CPU-seconds of each call that trained a cell, one line each, in a unit's folder."""


class Runner:
    """Trains cells one after the other, until a signal asks it to save its state and end."""

    def __init__(self, preset: Preset, unit: Unit, inputs: Path) -> None:
        self.problems = tables.read(inputs / f"{unit.problem_set}.parquet", "problems")
        model = str(inputs / "base")
        base = content(model)
        self.origin = Origin(
            problem_set=unit.problem_set,
            base_model=f"{unit.task}-{unit.base_seed}",
            base=base,
            problems=problems_hash(self.problems),
            generation=preset.generation,
            surroundings=Surroundings.of(preset.resources),
        )
        self._config = WorkerConfig.of(preset, {base: model})
        self._worker: Any = None
        self._home: Path | None = None
        self._signal = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _: object) -> None:
        self._signal = number
        if self._home is None:
            raise Stopped(number)
        work.ask_to_stop(self._home)

    def train(self, cells: Sequence[Cell]) -> None:
        """Train what is not finished of some cells.

        Raises:
            Stopped: A signal came, and the cell's state is saved.
        """
        for cell in cells:
            if not work.finished(cell, work.folder_of(cell)):
                self._train(cell, work.folder_of(cell))

    def _train(self, cell: Cell, folder: Path) -> None:
        self._open()
        work.forget_stop(folder)
        self._home, began = folder, time.process_time()
        rate = f"learning rate {cell.learner.learning_rate:.3g}"
        kind = "branch" if cell.branch_of else "ladder" if cell.purpose == "pilot" else "trunk"
        n, size = cell.rollouts_per_problem, cell.problems_per_batch
        _say(f"n = {n}, B_p = {size}, seed {cell.seed}, {rate}, {kind} to {cell.rollouts:,} rollouts")
        try:
            self._worker.train(cell, self.problems, folder, work.start_of(cell))
        finally:
            with SPENT.open("a") as stream:
                spent = {"run_id": cell.run_id, "cpu_seconds": round(time.process_time() - began, 1)}
                stream.write(json.dumps(spent) + "\n")
            self._home = None
        if self._signal:
            raise Stopped(self._signal)

    def _open(self) -> None:
        if self._worker is None:
            guard = CodeGuard.install()
            from ..running.worker import Worker

            self._worker = Worker(self._config)
            check(Loaded.of(self._config, guard), bases=[self.origin.base], surroundings=self.origin.surroundings)


def run(unit: Unit, study: Study, inputs: Path) -> None:
    """Run what is left of a unit, in the folder that is current, and write its tables after each part."""
    preset = preset_of(unit)
    runner = Runner(preset, unit, inputs)
    design = Design(preset=preset, sweep=preset.sweep_of(unit.problem_set), origin=runner.origin)
    pilot, ladder = find(design, runner.train, None)
    out = Path("results")
    work.write_json(out / "pilot.json", pilot.document())
    cells = panel.trunks(study, design, pilot.rates())
    metric = preset.evaluation.metric
    for number in range(1, len(cells) + 1):
        runner.train(cells[:number])
        write(cells[:number], ladder, out)
    trunks = list(cells)
    for more in (
        panel.branches(study, trunks, scores(trunks, metric)),
        panel.extras(study, unit, design, trunks, scores(trunks, metric)),
    ):
        runner.train(more)
        cells += more
        write(cells, ladder, out)
    work.write_json(out / "finished.json", {"unit": unit.name, "cells": len(cells), "ladder": len(ladder)})


def scores(cells: Sequence[Cell], metric: str) -> dict[str, dict[int, float]]:
    """Score of each evaluation of each finished cell, by run id and cumulative rollouts."""
    found = {}
    for cell in cells:
        evals = work.outcome(cell).evals.filter(pl.col("step") > 0)
        found[cell.run_id] = dict(evals.select("rollouts", metric).iter_rows())
    return found


def write(cells: Sequence[Cell], ladder: Sequence[Cell], out: Path) -> None:
    """Join the tables of finished cells."""
    collect(cells, out, pilot=ladder)
    rates = [work.folder_of(cell) / f"{TRAINING_PASS_RATES}.parquet" for cell in cells]
    parts = [tables.read(path, "pass_rates") for path in rates if path.exists()]
    tables.write(tables.concat(parts, "pass_rates"), "pass_rates", out / f"{TRAINING_PASS_RATES}.parquet")


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def main(name: str, home: Path) -> None:
    """Run a unit in its own folder below ``home``."""
    study: Study = panel.load()
    unit = study.unit(name)
    inputs = inputs_of(unit, home)
    folder = home / "units" / unit.name
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    run(unit, study, inputs)


def spent(folder: Path) -> Mapping[str, float]:
    """CPU-seconds of each cell of a unit's folder, by run id."""
    found: dict[str, float] = {}
    path = folder / SPENT
    for line in path.read_text().splitlines() if path.exists() else ():
        each = json.loads(line)
        found[each["run_id"]] = found.get(each["run_id"], 0.0) + each["cpu_seconds"]
    return found
