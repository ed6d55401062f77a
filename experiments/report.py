"""Reports about a preset that was run: sections for the report of a fit, and the closing summary of ``repro``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.frontier import Fitted, Frontier
from isocompute.frontier.show.report import Section, Table
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.code import digest

from .running.cell_folder import OUT, base_score
from .running.tracker import charts
from .settings import PreparedConfig, Preset

WORDS = {"eval": "evaluation", "pilot": "training"}
"""Cohorts of the ledger that have another name here."""


def sections(preset: Preset, problem_set: str) -> list[Section]:
    """Further sections for the report of the fit."""
    sweep = OUT / "sweep" / problem_set
    states = json.loads((sweep / "cells.json").read_text())["cells"]
    found = [_bases(preset, problem_set), health(states), Section(title="What was spent", table=spent(sweep))]
    if (sweep / "rates.png").exists():
        text = "What pilots scored at the learning rates tried; these responses measure nothing else."
        picture = base64.b64encode((sweep / "rates.png").read_bytes()).decode()
        figure = (f"data:image/png;base64,{picture}", "Scores of pilots")
        found.append(Section(title="Pilots", text=text, figures=(figure,)))
    return found


def _bases(preset: Preset, problem_set: str) -> Section:
    rows = [
        (
            name,
            str(found["problems"]),
            f"{found['selected']:.3f}",
            f"{found['fresh']:.3f} ± {found['fresh_standard_error']:.3f}",
        )
        for name in preset.base_models
        for found in [base_score(name, problem_set)]
    ]
    return Section(
        title="Base models",
        text="Problem sets are cut by the share of responses that was right, which favours lucky ones; so each set was "
        "measured again.",
        table=Table(head=("base model", "validation problems", "as selected", "measured again"), rows=tuple(rows)),
    )


def health(states: Sequence[Mapping[str, Any]]) -> Section:
    """Every flag of every cell at the first step that met its condition, and which cells diverged."""
    rows = []
    for state in states:
        found = [(flag["step"], flag["name"].replace("_", " "), flag["reason"]) for flag in state["health"]]
        if state["status"] == "diverged":
            found.append((state["steps"], "diverged", "its gradient was not finite, twice; its evaluations count"))
        if not state["judged"]:
            why = "it has fewer steps than the flags need"
            if state.get("trainer"):
                why = f"the log of {state['trainer']} does not have what the flags need"
            found.append((state["steps"], "not judged", why))
        cell = f"n = {state['rollouts_per_problem']}, B_p = {state['problems_per_batch']}, seed {state['seed']}"
        where = (state["purpose"], state["base_model"], cell, f"{state['learning_rate']:.3g}")
        rows += [(*where, f"{step:,}", name, reason) for step, name, reason in found]
    head = ("purpose", "base model", "cell", "learning rate", "step", "flag", "why")
    clean = sum(state["judged"] and not state["health"] and state["status"] != "diverged" for state in states)
    return Section(
        title="Health of training",
        text=f"No flags in {clean} of {len(states)} cells, each a run of one n, B_p, learning rate and seed.",
        table=Table(head=head, rows=tuple(rows)) if rows else None,
    )


def spent(folder: Path) -> Table:
    """Rollouts and tokens, by purpose.

    Evaluations before the first update belong to a seed, whose cells share them, and have their own rows.
    """
    states = json.loads((folder / "cells.json").read_text())["cells"]
    pilots = [state["run_id"] for state in states if state["purpose"] == "pilot"]
    cells = [state["run_id"] for state in states]
    cohort = pl.col("cohort").cast(pl.String).replace(WORDS)
    what = (
        pl.when(~pl.col("run_id").is_in(cells))
        .then(pl.lit("evaluation before the first update"))
        .when(pl.col("run_id").is_in(pilots))
        .then(pl.concat_str(pl.lit("pilots: "), cohort))
        .otherwise(cohort)
    )
    ledger = tables.read(folder / "ledger.parquet", "ledger").with_columns(what=what)
    sums = ledger.group_by("what").agg(pl.col("rollouts", "response_tokens").sum()).sort("what")
    return Table(
        head=("what for", "rollouts", "response tokens"),
        rows=tuple((of, f"{rollouts:,}", f"{tokens:,}") for of, rollouts, tokens in sums.iter_rows()),
    )


def choice(fitted: Fitted) -> dict[str, Any]:
    """The n of least expected regret at the largest compute, the probability that it is best, and all n as good."""
    decision = fitted.decide(fitted.largest)
    n = decision.chosen.cell.rollouts_per_problem
    return {
        "rollouts_per_problem": n,
        "probability_best": sum(o.probability_best for o in decision.options if o.cell.rollouts_per_problem == n),
        "near": sorted({o.cell.rollouts_per_problem for o in decision.near()}),
    }


def choice_text(found: Mapping[str, Any]) -> str:
    """A choice, as text."""
    near = [str(n) for n in found["near"]]
    said = f"n = {found['rollouts_per_problem']} with {found['probability_best']:.0%}"
    return said if len(near) == 1 else f"undecided between n = {' and '.join(near)} ({said})"


def closing_summary(preset: Preset, took: Sequence[Mapping[str, Any]]) -> str:
    """Each problem set's answer, the result of its test, what was spent, and how long each stage took."""
    lines = [""]
    for name in preset.sweep:
        lines += [*_problem_set(preset, name), ""]
    if took:
        lines.append("Seconds: " + ", ".join(f"{t['stage']} {t['seconds']:.0f}" for t in took))
    lines += [f"Report: {OUT / 'frontier' / name / 'report.html'}" for name in preset.sweep]
    lines.append("MLflow: python3 -m nox -s ui, then open")
    lines += [f"    http://localhost:5000/{charts(preset, name)}" for name in preset.sweep]
    return "\n".join(lines)


def _problem_set(preset: Preset, name: str) -> list[str]:
    before = ", ".join(f"{base} {base_score(base, name)['fresh']:.3f}" for base in preset.base_models)
    lines = [f"{name}, from {before} before training:", *Frontier.load(OUT / "frontier" / name).answer().lines()]
    alone = json.loads((OUT / "metrics" / f"{name}.json").read_text())["alone"]
    if alone:
        said = "; ".join(f"{base}: {choice_text(own)}" for base, own in alone.items())
        lines.append(f"Each base model alone: {said}")
    if found := from_other_bases(preset, name):
        lines.append(f"From other base models: {found}")
    tested = OUT / "prescribe" / name / "comparison.json"
    if tested.exists() and name in preset.prescribe:
        lines.append(f"Tested: {json.loads(tested.read_text())['sentence']}")
    cost = [f"{rollouts} {what}" for what, rollouts, _ in spent(OUT / "sweep" / name).rows]
    return [*lines, f"Spent (rollouts): {', '.join(cost)}"]


def from_other_bases(preset: Preset, name: str) -> str:
    """The sentence in the file ``base.others``; empty if it has none for this sweep."""
    if not isinstance(preset.base, PreparedConfig) or not preset.base.others:
        return ""
    document = json.loads(Path(preset.base.others).read_text())
    return str(document["sentence"]) if document["sweep"] == sweep_digest(preset, name) else ""


def sweep_digest(preset: Preset, name: str) -> str:
    """Hash of what is swept, excluding base models."""
    swept = preset.sweep[name]
    return digest({**swept.model_dump(mode="json", exclude={"learner"}), "learner": dict(swept.learner)})
