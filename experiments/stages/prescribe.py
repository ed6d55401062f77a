"""Test the posterior's decision for a budget: train it with fresh seeds, next to fixed n."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
import polars as pl
from isocompute.frontier import Frontier, notebook
from isocompute.frontier.fitting.intervals import t_quantile
from isocompute.frontier.posterior.runs import Setting
from isocompute.rollout.contract import tables
from numpy.typing import NDArray

from ..errors import ExperimentError
from ..running.cell_folder import OUT, write_json
from ..running.schedule import Schedule, workers
from ..running.tracker import log
from ..settings import PrescribeConfig, Preset
from .sweep import collect, setup_of


def run(preset: Preset, problem_set: str) -> None:
    """Train the decided setting and the fixed n, and write the results."""
    test, out = preset.prescribe[problem_set], OUT / "prescribe" / problem_set
    options = Frontier.load(OUT / "frontier" / problem_set).decide(test.rollouts).options
    best = {option.cell.rollouts_per_problem: option.cell for option in reversed(options)}
    chosen = options[0].cell
    _train(preset, problem_set, test, [best[n] for n in sorted({chosen.rollouts_per_problem, *test.baselines})])
    states = json.loads((out / "cells.json").read_text())["cells"]
    evals = tables.read(out / "evals.parquet", "evals")
    said = sentence(evals, states, preset.evaluation.metric, chosen=chosen.rollouts_per_problem, rollouts=test.rollouts)
    decided = {
        "rollouts_per_problem": chosen.rollouts_per_problem,
        "problems_per_batch": chosen.problems_per_batch,
        "learning_rate": chosen.learning_rate,
    }
    write_json(out / "comparison.json", {"rollouts": test.rollouts, "decided": decided, "sentence": said})
    print(f"prescribe {problem_set}: {said}")
    log(
        preset,
        f"{problem_set}-prescription",
        {"comparison": out / "comparison.json"},
        params=test.model_dump(),
        inputs={"posterior": OUT / "frontier" / problem_set / notebook.DOCUMENT},
    )


def _train(preset: Preset, problem_set: str, test: PrescribeConfig, settings: Sequence[Setting]) -> None:
    """Train the given settings from every base model with fresh seeds."""
    setup = setup_of(preset, problem_set)
    cells = [
        design.cell(
            "prescribe",
            test.run(each.rollouts_per_problem, each.problems_per_batch, seed),
            rollouts=test.rollouts,
            learning_rate=each.learning_rate or 0.0,
        )
        for design in setup.designs
        for each in settings
        for seed in test.seeds
    ]
    experiment = f"{preset.name}-{problem_set}-prescribe"
    with workers(preset, setup.models, training=True) as pool:
        Schedule(cells, setup.problems, pool, experiment, title=f"prescribe {problem_set}").finish()
    collect(cells, OUT / "prescribe" / problem_set, keep_policies=preset.resources.keep_policies)


def sentence(
    evals: pl.DataFrame, states: Sequence[Mapping[str, Any]], metric: str, *, chosen: int, rollouts: int
) -> str:
    """Say how the last evaluations of the decided n differ from the others', paired by base model and seed.

    A run that diverged has no such evaluation, and is counted separately.
    """
    diverged = [state["run_id"] for state in states if state["status"] == "diverged"]
    # A pair shares base model and seed.
    ended = evals.filter(~pl.col("run_id").is_in(diverged)).with_columns(seed=pl.format("{} {}", "base_model", "seed"))
    others = sorted({state["rollouts_per_problem"] for state in states} - {chosen})
    last = ended.sort("rollouts").group_by("rollouts_per_problem", "seed", maintain_order=True).last()
    if last["rollouts"].n_unique() > 1:
        raise ExperimentError(f"the runs end at different rollouts ({sorted(set(last['rollouts']))}): no equal budgets")
    own = last.filter(rollouts_per_problem=chosen).select("seed", own=metric)
    said = []
    for n in others:
        pairs = own.join(last.filter(rollouts_per_problem=n), on="seed")
        said.append(_difference(n, (pairs["own"] - pairs[metric]).to_numpy()))
    lost = f"; {len(diverged)} of {len(states)} runs diverged" if diverged else ""
    against = ", ".join(said) or "no other"
    return f"trained at {rollouts:,} rollouts with fresh seeds, n = {chosen} against {against}{lost}"


def _difference(n: int, pairs: NDArray[np.float64]) -> str:
    """The mean difference of pairs with its 95 % interval by Student's t; without bounds for a single pair."""
    if not len(pairs):
        return f"n = {n}: no pair was trained to the end"
    half = t_quantile(len(pairs) - 1) * pairs.std(ddof=1) / sqrt(len(pairs)) if len(pairs) > 1 else inf
    mean = pairs.mean()
    return f"n = {n}: {mean:+.3f} (95 %: {mean - half:+.3f} to {mean + half:+.3f}, {len(pairs)} pairs)"
