"""The cells: every n at the rates of one ladder, from new base models; and their committed tables."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path

import polars as pl
from isocompute.rollout.contract.documents import parsed
from isocompute.rollout.contract.files import write_text

from ...running import cell_folder
from ...running.cells import Cell, Design, WorkerConfig
from ..algorithms import setup_of
from ..panel.prepare import made
from ..panel.study import Unit

HERE = Path(__file__).parent
SETTINGS = parsed((HERE / "settings.yaml").read_text("utf-8"))
INPUTS, RESULTS = HERE / "inputs", HERE / "results"
"""Base models with their problem sets; the evaluations of every unit's finished cells."""
GRID = {
    name: [(n, float(rate)) for rate, group_sizes in rates.items() for n in group_sizes]
    for name, rates in SETTINGS["grid"].items()
}
"""Every (n, learning rate) of a problem set."""
UNITS = tuple(Unit(task="chains", problem_set=name, base_seed=seed) for seed in SETTINGS["base_seeds"] for name in GRID)
"""Both problem sets of a base model before those of the next."""
KEYS = ["rollouts_per_problem", "learning_rate"]
COUNTS, SCORES = ["rollouts", "tokens", "questions", "samples"], ["avg_at_4", "best_at_4", "worst_at_4"]
SCHEMA = pl.Schema(
    {
        "rollouts_per_problem": pl.Int64,
        "learning_rate": pl.Float64,
        **dict.fromkeys(COUNTS, pl.Int64),
        **dict.fromkeys(SCORES, pl.Float64),
        "diverged": pl.Boolean,
        "run_id": pl.String,
    }
)
"""Of a unit's table: a row for each evaluation."""


def cells_of(design: Design) -> list[Cell]:
    """Every cell of a unit, the cheapest n first."""
    sweep = design.sweep.model_copy(update=SETTINGS["sweep"])
    return [
        design.cell(
            "sweep",
            sweep.run(n, sweep.problems_per_batch[0], SETTINGS["seed"]),
            rollouts=sweep.rollouts,
            learning_rate=rate,
        )
        for n, rate in sorted(GRID[design.origin.problem_set], reverse=True)
    ]


def run(work: Path, results: Path = RESULTS, units: Sequence[Unit] = UNITS) -> Iterator[str]:
    """Train every cell that has no rows yet, one after the other in this process; a killed one goes on.

    A base model that is not there yet is made before its cells, as the panel's were.

    Args:
        work: Folder of the cells' own files.
        results: Folder of the tables.

    Yields:
        A line for each cell that has ended.
    """
    # Only here: all else reads tables.
    from ...running.worker import Worker

    work.mkdir(parents=True, exist_ok=True)
    began, ended, left = time.monotonic(), 0, sum(len(missing(unit, results)) for unit in units)
    for unit in units:
        if not (inputs := INPUTS / f"{unit.task}-{unit.base_seed}").exists():
            shutil.copytree(made(unit, work), inputs)
        setup = setup_of(unit, resources={"sampler": SETTINGS["sampler"]}, every=INPUTS)
        waiting, worker = missing(unit, results), None
        (design,), (problems,) = setup.designs, setup.problems.values()
        for cell in cells_of(design):
            if (cell.run.rollouts_per_problem, cell.learner.learning_rate) not in waiting:
                continue
            spent = time.process_time()
            with chdir(work):
                worker = worker or Worker(WorkerConfig.of(design.preset, setup.models))
                folder = cell_folder.folder_of(cell).resolve()
                worker.train(cell, problems, folder, cell_folder.baseline_of(cell).resolve())
                found = cell_folder.outcome(cell)
                rows = found.read("evals").with_columns(diverged=pl.lit(found.diverged)).select(*SCHEMA).cast(SCHEMA)
            table = pl.concat([read(unit, results), rows]).sort(*KEYS, "rollouts")
            results.mkdir(parents=True, exist_ok=True)
            write_text(results / f"{unit.name}.csv", table.write_csv())
            shutil.rmtree(folder / cell_folder.CHECKPOINTS, ignore_errors=True)
            ended, seconds = ended + 1, time.process_time() - spent
            hours = (time.monotonic() - began) / ended * (left - ended) / 3600
            score = rows.sort("rollouts")["avg_at_4"][-1]
            yield f"{unit.name} {cell.name}: {score:.3f}, {seconds:.0f} CPU-s; {left - ended} left, about {hours:.1f} h"


def read(unit: Unit, results: Path = RESULTS) -> pl.DataFrame:
    """The evaluations of a unit's finished cells so far."""
    path = results / f"{unit.name}.csv"
    return pl.read_csv(path, schema=SCHEMA) if path.exists() else pl.DataFrame(schema=SCHEMA)


def missing(unit: Unit, results: Path = RESULTS) -> set[tuple[int, float]]:
    """The n and rates of a unit's cells that are not finished."""
    return set(GRID[unit.problem_set]) - set(read(unit, results).select(KEYS).iter_rows())
