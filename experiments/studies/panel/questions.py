"""The questions of plan.md over units: estimate, interval, and the verdict by its rules, plain and Holm-adjusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .measures import AS_PINNED, Number
from .statistics import TAIL, Estimate, Rule, Verdict, holm, over_units
from .study import STUDY, UNITS

PINNED = Path(__file__).with_name("pinned.json")
"""The numbers of the pinned analysis, by question and unit, as the commit that it names made them."""
OCTAVE = 0.5
"""δ of n* (octaves)."""
REWARD = 0.02
"""δ of a reward."""
Measured = Mapping[str, Mapping[str, Any]]
"""Results of ``runs.measure`` of each unit, by its name."""
Numbers = dict[tuple[str, int], Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of plan.md that is decided.

    Attributes:
        statistic: What is computed of each unit.
        rule: When it is decided.
        unit: Of the number; empty for a reward, a share or an exponent.
        less: Settings whose mean n* is taken off that of the first of them, base by base; empty where every unit has a
            number of its own.
    """

    asks: str
    statistic: str
    rule: Rule
    unit: str = ""
    less: tuple[str, ...] = ()


QUESTIONS = {
    "Q1": Question(
        asks="Does n* rise with C under the √B rule?",
        statistic="v(C_max) − v(C_max/8)",
        rule=Rule(claimed="above", least=OCTAVE),
        unit="octaves",
    ),
    "Q2": Question(
        asks="Does it still with the rate tuned per n?",
        statistic="the same, best factor at C_max",
        rule=Rule(claimed="above", least=OCTAVE),
        unit="octaves",
    ),
    "Q3": Question(
        asks="Does it still with the rate tuned per n and C, with decay?",
        statistic="the same, ends of the branches",
        rule=Rule(claimed="above", least=OCTAVE),
        unit="octaves",
    ),
    "Q4": Question(
        asks="Is n* lower on harder problems?",
        statistic="v(C_max) of Easy − Hard",
        rule=Rule(claimed="above", least=OCTAVE),
        unit="octaves",
        less=("easy", "hard"),
    ),
    "Q5": Question(
        asks="Does the best rate grow as √B?",
        statistic="slope of log η* in log B",
        rule=Rule(claimed="inside", bounds=(0.25, 0.75)),
    ),
    "Q6": Question(
        asks="Does only B = B_p·n count?",
        statistic="reward of n = 4 − that of larger n at equal B",
        rule=Rule(claimed="equal", least=REWARD),
    ),
    "Q7": Question(
        asks="Does larger n raise best@4 at equal avg@4?",
        statistic="slope of best@4, per octave of n",
        rule=Rule(claimed="above", least=0.005),
    ),
    "Q8": Question(
        asks="Does larger n lower worst@4 at equal avg@4?",
        statistic="slope of worst@4, per octave of n",
        rule=Rule(claimed="below", least=0.005),
    ),
    "Q9": Question(
        asks="Are training problems less polarised at larger n?",
        statistic="slope of the share of them at 0 or 1, per octave of n, at equal mean",
        rule=Rule(claimed="below"),
    ),
    "Q10": Question(
        asks="Does smaller n win on training problems where it loses on validation?",
        statistic="v(training) − v(validation)",
        rule=Rule(claimed="below", least=OCTAVE),
        unit="octaves",
    ),
    "Q11": Question(
        asks="Is a rare way missed at small n?",
        statistic="slope of its share (mean length), per octave of n",
        rule=Rule(claimed="above"),
    ),
    "Q12": Question(
        asks="Does interference favour larger n?",
        statistic="v(C_max) of mixture − of the other chains",
        rule=Rule(claimed="above", least=OCTAVE),
        unit="octaves",
        less=("mixture", "easy", "hard"),
    ),
    "Q14": Question(
        asks="Does a fit to C_max/4 choose better than n = 8 always?",
        statistic="regret at C_max − that of n = 8",
        rule=Rule(claimed="below", least=REWARD),
    ),
    "Q15": Question(
        asks="Does half a run forecast its end within ±0.02?",
        statistic="share of trunks for which it does",
        rule=Rule(claimed="above", bounds=(0.8,)),
    ),
}
"""Q13 is described: which runs fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The panel's answer to a question.

    Attributes:
        numbers: Of each unit (or base), with its own interval.
        estimate: Over units.
        adjusted: The verdict after Holm's adjustment over all questions.
        p: Of the plain verdict, one-sided.
    """

    question: Question
    numbers: Numbers
    estimate: Estimate
    plain: Verdict
    adjusted: Verdict
    p: float


def answers(numbers: Mapping[str, Numbers]) -> dict[str, Answer]:
    """Every question answered over all of its units."""
    means = {name: mean_of(own) for name, own in numbers.items()}
    plain = {name: question.rule.of(means[name]) for name, question in QUESTIONS.items()}
    adjusted = holm({name: p for name, (_, p) in plain.items()})
    return {
        name: Answer(
            question=QUESTIONS[name],
            numbers=numbers[name],
            estimate=means[name],
            plain=verdict,
            p=p,
            adjusted=verdict if adjusted[name] <= TAIL else Verdict.UNDECIDED,
        )
        for name, (verdict, p) in plain.items()
    }


def mean_of(numbers: Numbers) -> Estimate:
    """The mean of the values of units."""
    return over_units({unit: value for unit, (value, _, _) in numbers.items()})


def pinned() -> dict[str, Answer]:
    """What the pinned analysis said."""
    return answers(pinned_numbers())


@cache
def pinned_numbers() -> dict[str, Numbers]:
    """Its numbers, by question."""
    every = json.loads(PINNED.read_text())["numbers"]
    units = {unit.name: (unit.problem_set, unit.base_seed) for unit in UNITS}
    return {name: {units[unit]: tuple(own) for unit, own in rows.items()} for name, rows in every.items()}


def read(name: str, measured: Measured, reading: str = AS_PINNED) -> Numbers:
    """The numbers of units that answer a question, in one reading of ``measures``; some readings lack a unit."""
    question = QUESTIONS[name]
    if not question.less:
        own = {(unit.problem_set, unit.base_seed): measured[unit.name]["questions"].get(name, {}) for unit in UNITS}
        return {key: tuple(values[reading]) for key, values in own.items() if reading in values}
    found: Numbers = {}
    for base in STUDY["base_seeds"]:
        first, *others = (measured[f"{setting}-{base}"]["questions"]["late"][reading] for setting in question.less)
        found[question.less[0], base] = _difference(first, others)
    return found


def _difference(first: Number, others: list[Number]) -> Number:
    """First less the mean of the others, and its interval: theirs are independent."""
    value = first[0] - sum(other[0] for other in others) / len(others)
    down, up = (
        ((first[side] - first[0]) ** 2 + sum((o[other] - o[0]) ** 2 for o in others) / len(others) ** 2) ** 0.5
        for side, other in ((1, 2), (2, 1))
    )
    return value, value - down, value + up
