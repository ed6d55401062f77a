"""Prescribe an allocation for a larger budget, and test it against fixed n when seeds are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
from isocompute.frontier import compare, prescribe
from isocompute.rollout.contract import tables

from ..rates.record import Pilot
from ..rates.rule import Rates
from ..running.opening import workers
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..running.work import write_json
from ..settings import PrescribeConfig, Preset
from .shared import OUT, log
from .training import collect, design_of


def run(preset: Preset, problem_set: str) -> None:
    """Write what is prescribed, and what became of it when it was trained."""
    settings = preset.prescribe[problem_set]
    out = OUT / "prescribe" / problem_set
    rates = Pilot.read(json.loads((OUT / "sweep" / problem_set / "pilot.json").read_text())).rates()
    allocation = prescribe(OUT / "frontier" / problem_set, budget=settings.rollouts)
    chosen = (allocation.rollouts_per_problem, allocation.problems_per_batch)
    rate = rates.at(*chosen)
    allocation = replace(allocation, learning_rate=rate.learning_rate)
    write_json(out / "allocation.json", {**allocation.as_dict(), "learning_rate_source": rate.source})
    print(f"prescribe {problem_set}: {allocation.summary()}; the learning rate is {rate.source}")
    if settings.seeds:
        _train(preset, problem_set, settings, rates, chosen)
        result = _compared(preset, problem_set, settings, chosen[0])
    else:
        result = {"tested": False, "reason": "no seeds are set for a test"}
    write_json(out / "comparison.json", result)
    log(
        preset,
        f"{problem_set}-prescription",
        {"allocation": out / "allocation.json", "comparison": out / "comparison.json"},
        params=settings.model_dump(),
        inputs={"fits": OUT / "frontier" / problem_set / "fits.json"},
    )


def _train(preset: Preset, problem_set: str, settings: PrescribeConfig, rates: Rates, chosen: tuple[int, int]) -> None:
    """Train the prescribed n and the fixed ones with fresh seeds."""
    design, problems, model = design_of(preset, problem_set)
    n, problems_per_batch = chosen
    cells = [
        design.cell(
            "prescribe", n=each, problems_per_batch=problems_per_batch, seed=seed,
            rollouts=settings.rollouts, evaluate_every=settings.evaluate_every,
            learning_rate=rates.at(each, problems_per_batch).learning_rate,
        )
        for each in sorted({n, *settings.baselines})
        for seed in settings.seeds
    ]  # fmt: skip
    tracker = Tracker(f"{preset.name}-{problem_set}-prescribe")
    with workers(preset, model, design.origin.base) as pool:
        folders = run_cells(
            cells, problems, pool, tracker, title=f"prescribe {problem_set}", reverse=preset.resources.reverse
        )
    collect(cells, folders, OUT / "prescribe" / problem_set, keep_policies=preset.resources.keep_policies)


def _compared(preset: Preset, problem_set: str, settings: PrescribeConfig, prescribed: int) -> dict[str, Any]:
    """Compare the last evaluations; a run that diverged has none at that budget, and is named."""
    out = OUT / "prescribe" / problem_set
    evals = tables.read(out / "evals.parquet", "evals")
    states = json.loads((out / "cells.json").read_text())["cells"]
    diverged = [state for state in states if state["status"] == "diverged"]
    whole = evals.filter(~pl.col("run_id").is_in([state["run_id"] for state in diverged]))
    result = compare(whole, prescribed=prescribed, baselines=settings.baselines, metric=preset.evaluation.metric)
    for comparison in result:
        print(f"prescribe {problem_set}: {comparison.summary()}")
    for state in diverged:
        print(f"prescribe {problem_set}: n = {state['rollouts_per_problem']}, seed {state['seed']} diverged")
    named = [{k: state[k] for k in ("rollouts_per_problem", "seed", "steps")} for state in diverged]
    return {"tested": True, "against": [c.as_dict() for c in result], "diverged": named}
