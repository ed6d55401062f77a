"""``docs/findings.md``: what the panel says so far, from its committed tables alone, the same at every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isocompute.rollout.contract.files import write_text

from . import advice, claims, forests, questions, runs, whole
from .claims import effect, signed
from .questions import QUESTIONS, Answer, Measured
from .statistics import Verdict
from .study import ROOT, UNITS

DOCS = ROOT / "docs"
NUMBERS = Path(__file__).with_name("findings.json")
"""The numbers of every unit, of which the page is made."""
TEMPLATE = Path(__file__).with_name("findings.template")
DIGITS = 4


def write(docs: Path = DOCS, numbers: Path = NUMBERS) -> Iterator[Path]:
    """Measure every unit and the paper's points, and write numbers, page and figure; yields the files."""
    measured = {unit.name: rounded(runs.measure(whole.read(unit))) for unit in UNITS}
    found = {"units": measured, "paper": rounded(runs.paper())}
    write_text(numbers, json.dumps(found, indent=1) + "\n")
    write_text(docs / "findings.md", page(found))
    forests.draw_protocols(measured, docs / "findings")
    yield from (numbers, docs / "findings.md", docs / "findings.svg")
    yield from forests.draw(measured, questions.answers(measured), docs)


def rounded(value: Any) -> Any:
    """Every number in so few digits that the last bits of another sum do not show."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def page(found: Mapping[str, Any]) -> str:
    """The page."""
    measured: Measured = found["units"]
    answers = questions.answers(measured)
    *_, (spread, _), (widest, apart) = sorted((own["spread"], name) for name, own in measured.items())
    return TEMPLATE.read_text().format_map(
        {
            **{name: f"{effect(own)}: **{own.adjusted}** ({name})" for name, own in answers.items()},
            **advice.failures(measured),
            "units": len(measured),
            "decided": _decided(answers),
            "count": len(answers),
            "protocols": advice.protocols(measured),
            "crossings": advice.crossings(measured),
            "probes": advice.probes(measured),
            "regret": advice.regret(measured),
            "questions": _questions(answers),
            "claims": _claims(measured, found["paper"], answers),
            "spread": f"{spread:.2f} ({apart}: {widest:.2f})",
        }
    )


def _decided(answers: Mapping[str, Answer]) -> str:
    """The questions that are decided, after Holm's adjustment."""
    found = {
        verdict: [name for name, answer in answers.items() if answer.adjusted is verdict]
        for verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED)
    }
    said = [f"{verdict.capitalize()}: {', '.join(names)}." for verdict, names in found.items() if names]
    return " ".join(said) or "Nothing is decided."


def _questions(answers: Mapping[str, Answer]) -> str:
    rows = [
        [name, asked.asks, asked.statistic, effect(answers[name]), answers[name].plain, answers[name].adjusted]
        for name, asked in QUESTIONS.items()
    ]
    return advice.table(["#", "question", "number of a unit", "mean (95 %)", "plain", "adjusted"], rows)


def _claims(measured: Measured, paper: Mapping[str, Any], answers: Mapping[str, Answer]) -> str:
    early, late = map(advice.n_star, paper["vertices"])
    shift, low, high = (signed(each, 2) for each in paper["shift"])
    quarter, whole_budget = (f"{paper['budget'] / part / 1e6:.1f}M" for part in (4, 1))
    regret = ", ".join(f"{regret:.3f} ({name})" for name, regret in paper["regret"].items())
    numbers = {
        "shift": f"n* {early} at C_max/8 and {late} at C_max, a shift of {shift} octaves ({low} to {high}, posterior)",
        "quarter": f"fitted up to {quarter}, the choice for {whole_budget} has a regret of {regret}",
        "power_law": "; ".join(f"power law {own['power law'][0]:.0%} of {name}" for name, own in measured.items()),
    }
    header = ["#", "the claim (where)", "what was done", "effect (95 %)", "verdict in this panel", "command"]
    return advice.table(header, [claims.row(each, answers, numbers) for each in claims.load()])
