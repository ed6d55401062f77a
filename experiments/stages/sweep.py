"""Find the learning rates with pilots, unless they are declared, then run every cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.code import digest

from ..errors import ExperimentError
from ..running import cell_folder
from ..running.cell_folder import OF, OUT, PREPARED, check_made_for, model_of, settings_of
from ..running.cells import Cell, CommandCell, Design, problems_hash, surroundings_of
from ..running.pilots import Pilot, base_score, chosen_lines, find, rates_figure
from ..running.schedule import Pool, Schedule, workers
from ..running.tracker import Tracker, health_of, log
from ..settings import Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Inputs of a problem set's cells.

    Attributes:
        problems: Their ``problems`` tables, by hash.
    """

    designs: tuple[Design, ...]
    problems: Mapping[str, pl.DataFrame]
    models: Mapping[str, str]


def setup_of(preset: Preset, problem_set: str) -> Setup:
    """The base models and problems of a problem set."""
    surroundings = surroundings_of(preset)
    check_made_for(OF, settings_of(preset), "prepare")
    designs, problems, models = [], {}, {}
    for name in preset.base_models:
        path = PREPARED / name / f"{problem_set}.parquet"
        if not path.exists():
            raise ExperimentError(f"{path}: there is no problem set {problem_set}; run the stage `prepare` first")
        table = tables.read(path, "problems")
        (place, base), hashed = model_of(preset, name), problems_hash(table)
        designs.append(Design.of(preset, problem_set, name, surroundings, base=base, problems=hashed))
        problems[hashed], models[base] = table, place
    return Setup(designs=tuple(designs), problems=problems, models=models)


def swept_for(preset: Preset, problem_set: str) -> dict[str, str]:
    """The preset, and a hash of its settings that determine a sweep's tables."""
    of = settings_of(preset, "evaluation")
    return {**of, "sweep": digest(preset.sweep_of(problem_set).model_dump(mode="json"))}


def collect(
    wanted: Sequence[Cell],
    out: Path,
    *,
    pilot: Sequence[Cell] = (),
    keep_policies: str = "none",
    of: Mapping[str, str] | None = None,
) -> None:
    """Join the tables of finished cells, each truncated at its budget, into one folder.

    The ledger includes the cost of shared first evaluations and of the pilot; a pilot is paid for, but not from the
    sweep's budget. Cells trained by a command have no ``pass_rates``.

    Args:
        pilot: Cells whose ledgers and final states are joined, but not their evaluations.
        of: The preset that the tables belong to.
    """
    outcomes = {cell.run_id: cell_folder.outcome(cell) for cell in [*wanted, *pilot]}
    own = [outcomes[cell.run_id] for cell in wanted]
    for name in ("evals",) if any(isinstance(cell, CommandCell) for cell in wanted) else ("evals", "pass_rates"):
        # One after the other: the tables of thousands of cells are large.
        tables.write(cell_folder.joined(own, name), name, out / f"{name}.parquet")
    ledgers = [cell_folder.joined(own, "ledger")]
    if pilot:
        # Training cohorts are summed as ``pilot``, one row per step.
        cohort = pl.when(pl.col("cohort") == "eval").then(pl.lit("eval")).otherwise(pl.lit("pilot")).alias("cohort")
        counts = [pl.col(name).sum() for name in ("rollouts", "prompt_tokens", "response_tokens")]
        of_pilots = cell_folder.joined([outcomes[cell.run_id] for cell in pilot], "ledger")
        ledgers.append(of_pilots.group_by("run_id", "step", cohort).agg(counts))
    starts = {cell_folder.baseline_of(cell) for cell in [*wanted, *pilot] if cell.baseline_id}
    ledgers += [tables.read(folder / "ledger.parquet", "ledger") for folder in sorted(starts)]
    tables.write(tables.concat(ledgers, "ledger"), "ledger", out / "ledger.parquet")
    states = [_state(cell, outcomes[cell.run_id], keep_policies) for cell in [*wanted, *pilot]]
    cell_folder.write_json(out / "cells.json", {"cells": states, "of": of})


def _state(cell: Cell, found: cell_folder.Outcome, keep_policies: str) -> dict[str, Any]:
    folder = cell_folder.folder_of(cell)
    ended = cell_folder.done(folder)
    # If a run continued beyond this budget, its saved policy belongs to its own end.
    own, (flags, judged) = ended is not None and ended.step == found.step, health_of(cell)
    kept = own and cell_folder.keeps_policy(cell, keep_policies) and cell_folder.has_policy(folder)
    return {
        "run_id": cell.run_id,
        "purpose": cell.purpose,
        "base_model": cell.origin.base_model,
        "rollouts_per_problem": cell.run.rollouts_per_problem,
        "problems_per_batch": cell.run.problems_per_batch,
        "seed": cell.run.seed,
        "learning_rate": cell.learner.learning_rate,
        "rollouts": cell.rollouts,
        "steps": found.step,
        "status": "diverged" if found.diverged else "finished",
        "health": [{"name": f.name, "step": f.step, "reason": f.reason} for f in flags],
        "judged": judged,
        "trainer": cell.command.trainer["trainer"] if isinstance(cell, CommandCell) else None,
        "policy": str(cell_folder.policy_of(folder)) if kept else None,
    }


def run(preset: Preset, problem_set: str) -> None:
    """Schedule the pilots and the unfinished cells, and join their tables."""
    setup = setup_of(preset, problem_set)
    pilot: Pilot | None = None
    tried: list[Cell] = []
    with workers(preset, setup.models, training=True) as pool:
        rates = setup.designs[0].declared_rates()
        if rates is None:
            pilot, tried = _search(preset, problem_set, setup, pool)
            rates = pilot.rates()
        cells = [cell for design in setup.designs for cell in design.cells(rates)]
        experiment = f"{preset.name}-{problem_set}-sweep"
        Schedule(cells, setup.problems, pool, experiment, title=f"sweep {problem_set}").finish()
    out = OUT / "sweep" / problem_set
    whose = swept_for(preset, problem_set)
    collect(cells, out, pilot=tried, keep_policies=preset.resources.keep_policies, of=whose)
    if pilot:
        cell_folder.write_json(out / "pilot.json", pilot.document())
        rates_figure(pilot, out / "rates")
        figures = [out / "rates.svg", out / "rates.png"]
        log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)


def _search(preset: Preset, problem_set: str, setup: Setup, pool: Pool) -> tuple[Pilot, list[Cell]]:
    """Schedule the pilots, and print the chosen rates."""
    experiment = f"{preset.name}-{problem_set}-pilot"

    def train(cells: Sequence[Cell]) -> None:
        # Other cells may follow.
        Schedule(cells, setup.problems, pool, experiment, title=f"pilot {problem_set}").finish(supersede=False)

    (design,) = setup.designs
    pilot, tried = find(design, train, base_score(problem_set, preset.evaluation.metric))
    Tracker(experiment).mean(tried)
    for line in chosen_lines(pilot):
        print(f"pilot {problem_set}: {line}")
    return pilot, tried
