"""The report of a problem set: the answer and what it rests on, then what was trained and what that cost."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from isocompute.frontier import Fitted
from isocompute.frontier.show import report
from isocompute.frontier.show.report import Section, Table
from isocompute.rollout.contract.files import write_text
from jinja2 import Environment, StrictUndefined

from ..settings import Preset
from .spent import spent


def write(preset: Preset, problem_set: str, fitted: Fitted, out: Path) -> Path:
    """Write ``frontier/SET/report.html``: one file that needs no other one; returns where it is.

    Args:
        fitted: The posterior, whose figures are there already.
        out: Where the stages write.
    """
    sweep, folder = out / "sweep" / problem_set, out / "frontier" / problem_set
    states = json.loads((sweep / "cells.json").read_text())["cells"]
    decision = fitted.decide(fitted.largest)
    sections = [
        Section(
            title="The decision",
            text="Expected regret is what a setting loses on average to the best one.",
            figure=_image(folder / "decision.png", "Expected regret by n, and n* over compute"),
            table=report.options_table(decision),
        ),
        Section(
            title="Runs",
            text="Every run was judged before the fit.",
            table=Table(
                head=("run", "what it is", "evidence"),
                rows=tuple((h.name, ", ".join(sorted(h.kinds)), h.evidence) for h in fitted.prepared.health),
            ),
            lines=fitted.prepared.notes,
        ),
        _bases(preset, problem_set, out),
        health(states),
        Section(title="What was spent", table=spent(sweep)),
    ]
    if (sweep / "rates.png").exists():
        text = "What pilots scored at the learning rates tried; these responses measure nothing else."
        sections.append(Section(title="Pilots", text=text, figure=_image(sweep / "rates.png", "Scores of pilots")))
    template = files("isocompute.frontier.show").joinpath("report.html").read_text()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        title=f"{preset.name}, {problem_set}: {fitted.metric} against {fitted.unit}", sections=sections,
        answer=fitted.answer().lines(),
    )  # fmt: skip
    return write_text(folder / "report.html", page + "\n")


def base_scores(preset: Preset, problem_set: str, out: Path) -> dict[str, dict[str, Any]]:
    """Scores of every base model on the validation problems, by its name: as in ``base.json``."""
    place = out / "prepared"
    return {
        name: json.loads((place / name / "base.json").read_text())[problem_set]["validation"]
        for name in preset.base_models
    }


def _bases(preset: Preset, problem_set: str, out: Path) -> Section:
    rows = [
        (name, str(found["problems"]), f"{found['selected']:.3f}",
         f"{found['fresh']:.3f} ± {found['fresh_standard_error']:.3f}")
        for name, found in base_scores(preset, problem_set, out).items()
    ]  # fmt: skip
    return Section(
        title="Base models",
        text="Problem sets are cut by the share of responses that was right, which favours lucky ones; so each set was "
        "measured again.",
        table=Table(head=("base model", "validation problems", "as selected", "measured again"), rows=tuple(rows)),
    )


def health(states: Sequence[Mapping[str, Any]]) -> Section:
    """Every flag of every cell at the first step at which its condition was met, and which cells diverged.

    Args:
        states: The cells of ``cells.json``.
    """
    rows = []
    for state in states:
        found = [(flag["step"], flag["name"].replace("_", " "), flag["reason"]) for flag in state["health"]]
        if state["status"] == "diverged":
            found.append((state["steps"], "diverged", "its gradient was not finite, twice; its evaluations count"))
        if not state["judged"]:
            found.append((state["steps"], "not judged", "it has fewer steps than the flags need"))
        cell = f"n = {state['rollouts_per_problem']}, B_p = {state['problems_per_batch']}, seed {state['seed']}"
        where = (state["purpose"], state["base_model"], cell, f"{state['learning_rate']:.3g}")
        rows += [(*where, f"{step:,}", name, reason) for step, name, reason in found]
    head = ("purpose", "base model", "cell", "learning rate", "step", "flag", "why")
    clean = sum(state["judged"] and not state["health"] and state["status"] != "diverged" for state in states)
    return Section(
        title="Health of training",
        text=f"No flags in {clean} of {len(states)} cells.",
        table=Table(head=head, rows=tuple(rows)) if rows else None,
    )


def _image(path: Path, text: str) -> tuple[str, str]:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}", text
