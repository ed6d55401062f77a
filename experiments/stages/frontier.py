"""Fit the posterior of a sweep, and write its answer together with the sweep's cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
from isocompute.frontier import Fit, Frontier
from isocompute.frontier.notebook import DOCUMENT
from isocompute.frontier.show.report import write_report
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import atomic_write, write_text
from isocompute.rollout.tracking import content_hash

from .. import report
from ..running.cell_folder import OUT, check_made_for
from ..running.tracker import log
from ..settings import Preset
from .sweep import swept_for

METRICS, PLOTS = OUT / "metrics", OUT / "plots"
"""Shown by ``dvc metrics`` and ``dvc plots``: numbers and a figure for each problem set."""


def run(preset: Preset, problem_set: str) -> None:
    """Write the posterior of all runs, the figure of the decision, and the report."""
    sweep, out = OUT / "sweep" / problem_set, OUT / "frontier" / problem_set
    check_made_for(sweep / "cells.json", swept_for(preset, problem_set), f"sweep {problem_set}")
    evals = tables.read(sweep / "evals.parquet", "evals")
    fitted = fit(preset, problem_set, evals)
    fitted.save(out)
    # Omit date and commit, since they would give the same answer another hash in dvc.lock; MLflow has them.
    facts = [("preset", preset.name), ("evaluations", content_hash(sweep / "evals.parquet")[:19])]
    page = write_report(fitted, out, facts=facts, further=report.sections(preset, problem_set))
    with atomic_write(PLOTS / f"{problem_set}.png") as stream:
        stream.write((out / "decision.png").read_bytes())
    chosen = fitted.decide(fitted.largest).chosen
    numbers = {
        **report.choice(fitted),
        "problems_per_batch": chosen.cell.problems_per_batch,
        "learning_rate": chosen.cell.learning_rate,
        "reward": chosen.reward,
        "alone": _alone(preset, problem_set, evals),
    }
    write_text(METRICS / f"{problem_set}.json", json.dumps(numbers, indent=1) + "\n")
    answer = fitted.answer()
    for line in (*answer.lines(), f"report: {page}"):
        print(line)
    spent = int(tables.read(sweep / "ledger.parquet", "ledger")["rollouts"].sum())
    log(
        preset,
        f"{problem_set}-frontier",
        {"posterior": out / DOCUMENT, "report": page},
        figures=sorted(out.glob("*.svg")),
        params=preset.frontier.model_dump(),
        metrics={**_metrics(answer.as_dict()), "spent_rollouts": spent},
        about="\n".join([answer.headline() + ".", "", *(f"- {name}: {value}" for name, value in fitted.about)]),
        inputs={"evals": sweep / "evals.parquet"},
    )


def fit(preset: Preset, problem_set: str, evals: pl.DataFrame) -> Fit:
    """Fit evaluations with a preset's settings."""
    return Frontier(evals, metric=preset.evaluation.metric, problem_set=problem_set).fit(seed=preset.frontier.seed)


def _metrics(answer: Mapping[str, Any]) -> dict[str, float]:
    """An answer's numbers, for sorting and charting runs; empty if the curves do not fit."""
    if answer["rollouts_per_problem"] is None:
        return {}
    chosen = answer["options"][0]
    return {
        "n_star": answer["rollouts_per_problem"],
        "probability_best": answer["probability_best"],
        "expected_regret": chosen["regret"],
        **{name: chosen[name] for name in ("reward", "reward_low", "reward_high")},
    }


def _alone(preset: Preset, problem_set: str, evals: pl.DataFrame) -> dict[str, Any]:
    """The choice for the runs of each base model alone; empty if there is only one base model."""
    names = preset.base_models if len(preset.base_models) > 1 else ()
    return {name: report.choice(fit(preset, problem_set, evals.filter(pl.col("base_model") == name))) for name in names}
