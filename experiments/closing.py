"""The closing summary of ``repro``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isocompute.frontier import Frontier
from isocompute.rollout.scoring.code import digest

from .report.page import base_scores, choice_text, spent
from .settings import PreparedConfig, Preset


def closing_summary(preset: Preset, out: Path, took: Sequence[Mapping[str, Any]]) -> str:
    """The answer of each problem set, what became of its test, what was spent, and how long each stage took.

    Args:
        took: ``stage`` and ``seconds`` of what was run, in order.
    """
    lines = [""]
    for name in preset.sweep:
        lines += [*_problem_set(preset, name, out), ""]
    if took:
        lines.append("Seconds: " + ", ".join(f"{t['stage']} {t['seconds']:.0f}" for t in took))
    lines += [f"Report: {out / 'frontier' / name / 'report.html'}" for name in preset.sweep]
    lines.append("MLflow: python3 -m nox -s ui, then open localhost:5000")
    return "\n".join(lines)


def _problem_set(preset: Preset, name: str, out: Path) -> list[str]:
    scores = base_scores(preset, name, out)
    before = ", ".join(f"{base} {found['fresh']:.3f}" for base, found in scores.items())
    lines = [f"{name}, from {before} before training:", *Frontier.load(out / "frontier" / name).answer().lines()]
    alone = json.loads((out / "metrics" / f"{name}.json").read_text())["alone"]
    if alone:
        said = "; ".join(f"{base}: {choice_text(own)}" for base, own in alone.items())
        lines.append(f"Each base model alone: {said}")
    if found := from_other_bases(preset, name):
        lines.append(f"From other base models: {found}")
    tested = out / "prescribe" / name / "comparison.json"
    if tested.exists() and name in preset.prescribe:
        lines.append(f"Tested: {json.loads(tested.read_text())['sentence']}")
    cost = [f"{rollouts} {what}" for what, rollouts, _ in spent(out / "sweep" / name).rows]
    return [*lines, f"Spent (rollouts): {', '.join(cost)}"]


def from_other_bases(preset: Preset, name: str) -> str:
    """The sentence in the file ``base.others``; empty where there is none of this sweep."""
    if not isinstance(preset.base, PreparedConfig) or not preset.base.others:
        return ""
    document = json.loads(Path(preset.base.others).read_text())
    return str(document["sentence"]) if document["sweep"] == sweep_digest(preset, name) else ""


def sweep_digest(preset: Preset, name: str) -> str:
    """Hash of what is swept, base models apart."""
    swept = preset.sweep[name]
    return digest({**swept.model_dump(mode="json", exclude={"learner"}), "learner": dict(swept.learner)})
