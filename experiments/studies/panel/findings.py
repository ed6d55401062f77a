"""``docs/findings.md``: what the panel says so far, from its committed tables alone, the same at every run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isocompute.rollout.contract.files import write_text

from . import advice, cards, claims, forests, questions, runs, whole
from .cards import Read
from .claims import effect, signed
from .measures import AS_PINNED
from .questions import QUESTIONS, Answer, Measured
from .statistics import Verdict
from .study import RATE_FACTORS, ROOT, UNITS

DOCS = ROOT / "docs"
NUMBERS = Path(__file__).with_name("findings.json")
"""The numbers of every unit, of which the page is made."""
TEMPLATE = Path(__file__).with_name("findings.template")
DIGITS = 4
SHIFTS = ("Q1", "Q2", "Q3")
"""Whether n* grows, by ways of choosing the rate."""


def write(docs: Path = DOCS, numbers: Path = NUMBERS) -> Iterator[Path]:
    """Measure every unit and the paper's points, and write numbers, page and figures; yields the files."""
    found = {
        "units": {unit.name: rounded(runs.measure(whole.read(unit))) for unit in UNITS},
        "paper": rounded(runs.paper()),
    }
    # A list of numbers stands in one line.
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda own: f"[{' '.join(own[1].split())}]", json.dumps(found, indent=1))
    write_text(numbers, text + "\n")
    yield numbers
    yield from drawn(json.loads(numbers.read_text()), docs)


def drawn(found: Mapping[str, Any], docs: Path = DOCS) -> Iterator[Path]:
    """Write the page and its figures of measured numbers."""
    measured: Measured = found["units"]
    write_text(docs / "findings.md", page(found))
    forests.draw_protocols(measured, docs / "findings")
    shifts = {name: cards.card(name, measured) for name in SHIFTS}
    forests.draw_readings(shifts, docs / "findings-readings")
    forests.draw_forest(shifts, docs / "findings-forest")
    names = ("findings.md", "findings.svg", "findings-readings.svg", "findings-forest.svg")
    yield from (docs / name for name in names)


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
    answers = questions.pinned()
    reads = {name: cards.card(name, measured) for name in QUESTIONS}
    *_, (spread, _), (widest, apart) = sorted((own["spread"], name) for name, own in measured.items())
    document = json.loads(questions.PINNED.read_text())
    factors = [sum(own["factors"].count(each) for own in measured.values()) for each in RATE_FACTORS]
    means = [sum(own["reward"][str(each)] for own in measured.values()) / len(measured) for each in RATE_FACTORS]
    return TEMPLATE.read_text().format_map(
        {
            **{
                name: f"**{cards.survives(reads[name])}**, {cards.counted(reads[name])}; pinned {effect(own)}, "
                f"{own.adjusted} ({name})"
                for name, own in answers.items()
            },
            **advice.failures(measured),
            "units": len(measured),
            "commit": document["commit"][:8],
            "front": front(measured),
            "cards": _cards(answers, reads),
            "count": len(answers),
            "rates": f"{factors[0]} of {sum(factors)}",
            "means": f"{means[0]:.3f}, {means[1]:.3f} and {means[2]:.3f}",
            "freedom": ", ".join(f"{reads[name][1].estimate.freedom:.1f}" for name in SHIFTS),
            "paired": _paired(measured, answers["Q3"]),
            "protocols": advice.protocols(measured),
            "signals": advice.signals(measured),
            "guess": advice.guessed(measured, document["guess of n"]),
            "regret": advice.regret(measured),
            "questions": _questions(answers, reads),
            "claims": _claims(measured, found["paper"], answers, reads),
            "spread": f"{spread:.2f} ({apart}: {widest:.2f})",
        }
    )


def front(measured: Measured) -> str:
    """What survives every reading of whether n* grows, in a few sentences."""
    answers, reads = questions.pinned(), {name: cards.card(name, measured) for name in SHIFTS}
    anchors = {
        "× 1" if each.name == AS_PINNED else each.name.removeprefix("anchor: "): each.verdict
        for each in reads["Q1"]
        if each.field == "anchor" or each.name == AS_PINNED
    }
    every = [each.verdict for own in reads.values() for each in own]
    grown, seen = (_none(list(rows).count(Verdict.SUPPORTED)) for rows in (anchors.values(), every))
    out = [name for name, verdict in anchors.items() if verdict is Verdict.CONTRADICTED]
    excluded = f"{_none(len(out))} of the anchors" + (f" ({', '.join(out)})" if out else "")
    excluded += f" and in {_none(every.count(Verdict.CONTRADICTED))} of the readings"
    standing = list(dict.fromkeys(f"“{cards.survives(reads[name])}”" for name in ("Q1", "Q2")))
    return (
        f"Growth of n* was seen at {grown} of {len(anchors)} anchors of the learning rate (½, 1 and 2 times the one "
        f"that was chosen) and in {seen} of {len(every)} readings of the same tables; growth by half an octave is "
        f"excluded at {excluded}. As pinned the verdict is “{answers['Q1'].adjusted}” under the √B rule at the "
        f"chosen anchor ({effect(answers['Q1'])}) and “{answers['Q2'].adjusted}” once the rate is tuned; "
        f"over all readings it is {' and '.join(standing)}{' for both' * (len(standing) == 1)}."
    )


def _paired(measured: Measured, answer: Answer) -> str:
    """Shift with the rate tuned for each n and budget less that under the √B rule, unit by unit."""
    tuned, rule = (questions.read(name, measured) for name in ("Q3", "Q1"))
    apart = {unit: (number[0] - rule[unit][0],) * 3 for unit, number in tuned.items()}
    return effect(replace(answer, estimate=questions.mean_of(apart)))


def _none(count: int) -> str:
    return str(count or "none")


def _cards(answers: Mapping[str, Answer], reads: Mapping[str, Sequence[Read]]) -> str:
    header = ["#", "pinned", "today's posterior", *cards.FIELDS.values(), "what survives"]
    return advice.table(header, [cards.row(name, answers[name], own) for name, own in reads.items()])


def _questions(answers: Mapping[str, Answer], reads: Mapping[str, Sequence[Read]]) -> str:
    header = ["#", "question", "number of a unit", "mean (95 %)", "pinned, plain", "pinned, adjusted", "survives"]
    rows = [
        [
            name,
            asked.asks,
            asked.statistic,
            effect(own := answers[name]),
            own.plain,
            own.adjusted,
            cards.survives(reads[name]),
        ]
        for name, asked in QUESTIONS.items()
    ]
    return advice.table(header, rows)


def _claims(
    measured: Measured, paper: Mapping[str, Any], answers: Mapping[str, Answer], reads: Mapping[str, Sequence[Read]]
) -> str:
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
    verdicts = {
        name: f"{cards.survives(own)} (pinned: {answers[name].adjusted})"
        if cards.survives(own) is not answers[name].adjusted
        else str(answers[name].adjusted)
        for name, own in reads.items()
    }
    return advice.table(header, [claims.row(each, answers, verdicts, numbers) for each in claims.load()])
