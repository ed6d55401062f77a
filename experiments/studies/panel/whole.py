"""A whole unit of the panel, read from its committed tables: runs with their learning rates and what each is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from .prepare import RESULTS, preset_of
from .study import RATE_FACTORS, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The tables of a unit whose cells are all finished.

    Attributes:
        problems_per_batch: B_p of its grid.
        problems: D, its training problems.
        budget: C_max (rollouts).
        evals: Validation, with ``kind`` (trunk, seed, branch or equal batch), ``learning_rate`` and ``factor`` (its
            factor on the √B rule; null of a branch or an equal batch).
        training: Pass rates of training problems, one row per problem and evaluation, likewise.
        probe: Signal of the base model before any training.
        lengths: Mean tokens of the responses of each evaluation: ``run_id``, ``step``, ``length``.
    """

    unit: Unit
    group_sizes: tuple[int, ...]
    problems_per_batch: int
    problems: int
    budget: int
    evals: pl.DataFrame
    training: pl.DataFrame
    probe: Mapping[str, Any]
    lengths: pl.DataFrame

    @property
    def trunks(self) -> pl.DataFrame:
        """Evaluations at constant rates of the grid's first seed."""
        return self.evals.filter(pl.col("kind") == "trunk")


def read(unit: Unit) -> Whole:
    """Read a unit."""
    folder = RESULTS / unit.name
    sweep = preset_of(unit).sweep_of(unit.problem_set)
    size = sweep.problems_per_batch[0]
    cells = [_row(cell, size, sweep.seeds[0]) for cell in json.loads((folder / "cells.json").read_text())["cells"]]
    known = pl.DataFrame([cell for cell in cells if cell["purpose"] != "pilot"]).drop("purpose")
    rates = known.filter(pl.col("kind") == "trunk").select("rollouts_per_problem", "learning_rate").unique()
    factors = rates.sort("rollouts_per_problem", "learning_rate").with_columns(
        factor=pl.lit(RATE_FACTORS).list.get(pl.int_range(pl.len()).over("rollouts_per_problem"), null_on_oob=True)
    )
    known = known.join(factors, on=["rollouts_per_problem", "learning_rate"], how="left").with_columns(
        factor=pl.when(pl.col("kind").is_in(["trunk", "seed"])).then("factor")
    )
    evals = tables.read(folder / "evals.parquet", "evals").join(
        known.select("run_id", "learning_rate", "kind", "factor"), on="run_id"
    )
    training = tables.read(folder / "training_pass_rates.parquet", "pass_rates").join(known, on="run_id")
    ledger = tables.read(folder / "ledger.parquet", "ledger").filter(pl.col("cohort") == "eval")
    return Whole(
        unit=unit,
        group_sizes=tuple(sweep.rollouts_per_problem),
        problems_per_batch=size,
        problems=training["problem_id"].n_unique(),
        budget=sweep.rollouts,
        evals=evals,
        training=training.with_columns(
            rollouts=pl.col("step") * pl.col("rollouts_per_problem") * pl.col("problems_per_batch")
        ),
        probe=json.loads((folder / "probe.json").read_text()),
        lengths=ledger.select("run_id", "step", length=pl.col("response_tokens") / pl.col("rollouts")),
    )


def _row(cell: dict[str, Any], size: int, seed: int) -> dict[str, Any]:
    """Return what is kept of a cell, with its purpose."""
    names = ("run_id", "purpose", "rollouts_per_problem", "problems_per_batch", "seed", "learning_rate")
    kind = "trunk" if cell["seed"] == seed else "seed"
    if cell["branch_of"] is not None:
        kind = "branch"
    elif cell["problems_per_batch"] != size:
        kind = "equal batch"
    return {**{name: cell[name] for name in names}, "kind": kind}
