"""Fit the posterior of a sweep, and write its answer with what the sweep cost."""

from __future__ import annotations

import json

from isocompute.frontier import Frontier
from isocompute.frontier.answers import saved
from isocompute.frontier.show.decision import decision_figure
from isocompute.frontier.show.drawing import save
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import atomic_write, write_text

from ..report import page
from ..settings import Preset
from .shared import OUT, log

METRICS, PLOTS = OUT / "metrics", OUT / "plots"
"""What ``dvc metrics`` and ``dvc plots`` show: numbers and a picture of each problem set."""


def run(preset: Preset, problem_set: str) -> None:
    """Write the posterior of all runs, the figure of the decision, and the report."""
    sweep, out = OUT / "sweep" / problem_set, OUT / "frontier" / problem_set
    evals = tables.read(sweep / "evals.parquet", "evals")
    fitted = Frontier(evals, metric=preset.evaluation.metric, problem_set=problem_set).fit(seed=preset.frontier.seed)
    saved.save(fitted, out)
    figures = save(decision_figure(fitted), out / "decision")
    report = page.write(preset, problem_set, fitted, OUT)
    with atomic_write(PLOTS / f"{problem_set}.png") as stream:
        stream.write((out / "decision.png").read_bytes())
    decision = fitted.decide(fitted.largest)
    chosen = decision.chosen
    numbers = {
        "rollouts_per_problem": chosen.cell.rollouts_per_problem,
        "problems_per_batch": chosen.cell.problems_per_batch,
        "learning_rate": chosen.cell.learning_rate,
        "reward": chosen.reward,
        "probability_best": chosen.probability_best,
    }
    write_text(METRICS / f"{problem_set}.json", json.dumps(numbers, indent=1) + "\n")
    for line in fitted.answer().lines():
        print(line)
    log(
        preset,
        f"{problem_set}-frontier",
        {"posterior": out / saved.DOCUMENT, "report": report},
        figures=figures,
        params=preset.frontier.model_dump(),
        inputs={"evals": sweep / "evals.parquet"},
    )
