"""The robustness card of a verdict: its question in every reading of the tables, each decided by the pinned rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot

from isocompute.frontier.fitting.intervals import t_quantile

from .claims import effect, shown
from .measures import AS_PINNED
from .questions import QUESTIONS, Answer, Measured, Numbers, mean_of, pinned_numbers, read
from .statistics import Estimate, Verdict, over_units

FIELDS = {
    "anchor": "anchor of the rate",
    "edges": "grid edges",
    "estimator": "estimator",
    "failures": "failures",
    "units": "units",
    "processor": "processor",
}
"""Columns of a card: what could have been otherwise."""


PINNED = "pinned analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A question in one reading.

    Attributes:
        name: ``FIELD: what``.
        verdict: Plain, by the rule of plan.md.
    """

    name: str
    estimate: Estimate
    verdict: Verdict

    @property
    def field(self) -> str:
        """The column that it stands in; empty for the rule that was pinned."""
        return self.name.partition(": ")[0] if ": " in self.name else ""


def card(name: str, measured: Measured) -> list[Read]:
    """A question as the pinned analysis answered it, as today's posterior does, and in all other readings."""
    question, today = QUESTIONS[name], read(name, measured)
    where = "late" if question.less else name
    every = dict.fromkeys(key for own in measured.values() for key in own["questions"].get(where, {}))
    numbers = {reading: read(name, measured, reading) for reading in every}
    estimates = {reading: mean_of(own) for reading, own in numbers.items() if len(own) > 1}
    estimates = {PINNED: mean_of(pinned_numbers()[name]), **estimates, **_over_units(today, estimates[AS_PINNED])}
    # An interval without width, of units that all say the same whole octave, decides nothing.
    verdicts = {key: question.rule.of(each)[0] if each.error else Verdict.UNDECIDED for key, each in estimates.items()}
    return [Read(name=key, estimate=each, verdict=verdicts[key]) for key, each in estimates.items()]


def _over_units(numbers: Numbers, pinned: Estimate) -> dict[str, Estimate]:
    """The mean with other degrees of freedom, and with what is within units on top of what lies between them."""
    values = {unit: value for unit, (value, _, _) in numbers.items()}
    settings = {setting: [v for (own, _), v in values.items() if own == setting] for setting, _ in values}
    found = {}
    if len(settings) > 1:
        found["units: independent"] = over_units({(f"{s}-{base}", 0): value for (s, base), value in values.items()})
        means = {(setting, 0): sum(own) / len(own) for setting, own in settings.items()}
        found["units: settings alone"] = over_units(means)
    # An end of its own interval lies 1.96 standard errors away.
    within = sum(((high - low) / (2 * t_quantile(1e9))) ** 2 for _, low, high in numbers.values()) ** 0.5 / len(numbers)
    if within:
        found["units: and within them"] = replace(pinned, error=hypot(pinned.error, within))
    return found


def counted(reads: Sequence[Read]) -> str:
    """How many readings say what."""
    times = {verdict: sum(each.verdict is verdict for each in reads) for verdict in Verdict}
    said = [f"{verdict} in {times[verdict]}" for verdict in Verdict if times[verdict]]
    return (
        f"{', '.join(said)} of {len(reads)} readings"
        if len(said) > 1
        else f"{reads[0].verdict} in all {len(reads)} readings"
    )


def survives(reads: Sequence[Read]) -> Verdict:
    """The verdict that every reading gives; undecided where they differ."""
    found = {each.verdict for each in reads}
    return found.pop() if len(found) == 1 else Verdict.UNDECIDED


def row(name: str, answer: Answer, reads: Sequence[Read]) -> list[str]:
    """The row of a question in the table of cards, after what was pinned and its adjusted verdict."""
    _, first, *others = reads
    cells = [[_cell(each, answer) for each in others if each.field == field] for field in FIELDS]
    today = f"{effect(replace(answer, estimate=first.estimate))}, {first.verdict}"
    return [
        name,
        f"{effect(answer)}: {answer.adjusted}",
        f"{today}; {first.estimate.freedom:.1f} degrees of freedom",
        *("<br>".join(cell) or "–" for cell in cells),
        f"**{survives(reads)}**: {counted(reads)}",
    ]


def _cell(own: Read, answer: Answer) -> str:
    numbers = shown(answer.question, own.estimate)
    letter = f"**{own.verdict[0]}**" if own.verdict is not Verdict.UNDECIDED else own.verdict[0]
    return f"{own.name.partition(': ')[2]}: {numbers[0]} ({numbers[1]} to {numbers[2]}) {letter}"
