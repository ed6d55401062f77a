"""What the stages that train have in common: the design of a problem set, and the tables of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from ..running import work
from ..running.cells import Cell, Origin, problems_hash
from ..running.design import Design
from ..running.foreign import CommandCell, surroundings_of
from ..running.tracker import health_of
from ..settings import Preset
from .base import FOLDER, model_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the cells of a problem set are made from and begin with.

    Attributes:
        problems: Their ``problems`` tables, by hash.
        models: Folder or name of each base model, by the hash of its content.
    """

    designs: tuple[Design, ...]
    problems: Mapping[str, pl.DataFrame]
    models: Mapping[str, str]


def setup_of(preset: Preset, problem_set: str) -> Setup:
    """The base models and problems of a problem set."""
    sweep, surroundings = preset.sweep_of(problem_set), surroundings_of(preset)
    designs, problems, models = [], {}, {}
    for name in preset.base_models:
        path = FOLDER / name / f"{problem_set}.parquet"
        if not path.exists():
            raise ExperimentError(f"{path}: there is no problem set {problem_set}; run the stage `prepare` first")
        table = tables.read(path, "problems")
        place, base = model_of(preset, name)
        origin = Origin(
            problem_set=problem_set, base_model=name, base=base, problems=problems_hash(table),
            generation=preset.generation, surroundings=surroundings,
        )  # fmt: skip
        designs.append(Design(preset=preset, sweep=sweep, origin=origin))
        problems[origin.problems], models[base] = table, place
    return Setup(designs=tuple(designs), problems=problems, models=models)


def collect(
    wanted: Sequence[Cell],
    out: Path,
    *,
    pilot: Sequence[Cell] = (),
    keep_policies: str = "none",
) -> None:
    """Join the tables of finished cells, each cut off at its budget, into one folder.

    What shared first evaluations and the pilot cost is in the ledger, too; a pilot is paid for, but not out of the
    budget of the sweep. Of cells that a command trains there are no ``pass_rates``.

    Args:
        pilot: Cells whose ledgers and final states are joined, but not their evaluations.
    """
    outcomes = {cell.run_id: work.outcome(cell) for cell in [*wanted, *pilot]}
    own = [outcomes[cell.run_id] for cell in wanted]
    for name in ("evals",) if any(isinstance(cell, CommandCell) for cell in wanted) else ("evals", "pass_rates"):
        # One after the other: those of thousands of cells are large.
        tables.write(work.joined(own, name), name, out / f"{name}.parquet")
    ledgers = [work.joined(own, "ledger")]
    if pilot:
        ledgers.append(_as_pilot(work.joined([outcomes[cell.run_id] for cell in pilot], "ledger")))
    starts = {work.start_of(cell) for cell in [*wanted, *pilot] if cell.start_id}
    ledgers += [tables.read(folder / "ledger.parquet", "ledger") for folder in sorted(starts)]
    tables.write(tables.concat(ledgers, "ledger"), "ledger", out / "ledger.parquet")
    states = [_state(cell, outcomes[cell.run_id], keep_policies) for cell in [*wanted, *pilot]]
    work.write_json(out / "cells.json", {"cells": states})


def _as_pilot(ledger: pl.DataFrame) -> pl.DataFrame:
    """A ledger whose training cohorts are summed up as ``pilot``, one row per step."""
    cohort = pl.when(pl.col("cohort") == "eval").then(pl.lit("eval")).otherwise(pl.lit("pilot")).alias("cohort")
    counts = [pl.col(name).sum() for name in ("rollouts", "prompt_tokens", "response_tokens")]
    return ledger.group_by("run_id", "step", cohort).agg(counts)


def _state(cell: Cell, found: work.Outcome, keep_policies: str) -> dict[str, Any]:
    folder = work.folder_of(cell)
    ended = work.done(folder)
    # A run that went on beyond this budget has the policy of its own end.
    own, (flags, judged) = ended is not None and ended.step == found.step, health_of(cell)
    kept = own and work.keeps_policy(cell, keep_policies) and work.has_policy(folder)
    return {
        "run_id": cell.run_id,
        "purpose": cell.purpose,
        "base_model": cell.origin.base_model,
        "rollouts_per_problem": cell.rollouts_per_problem,
        "problems_per_batch": cell.problems_per_batch,
        "seed": cell.seed,
        "learning_rate": cell.learner.learning_rate,
        "rollouts": cell.rollouts,
        "steps": found.step,
        "status": "diverged" if found.diverged else "finished",
        "health": [{"name": f.name, "step": f.step, "reason": f.reason} for f in flags],
        "judged": judged,
        "trainer": cell.command.settings.trainer if isinstance(cell, CommandCell) else None,
        "policy": str(work.policy_of(folder)) if kept else None,
    }
