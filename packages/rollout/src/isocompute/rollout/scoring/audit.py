"""How often a rule is mistaken: responses that are right or wrong by construction, and responses that two rules score.

A made response is not what a policy writes, so the rates are read form by form: a rate over all of them would depend on
which forms there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

from ..errors import RolloutError
from .estimators import wilson_interval
from .judges.text import same
from .metadata import metadata_of
from .rules import Rule, rule
from .scorer import Item, Scorer

BATCH = 1024
"""Responses handed to the scorer at a time."""
PLAIN = re.compile(r"-?\d+(?:\.\d+|/[1-9]\d*)?")
"""A number as a reference answer has it: 3, -0.5, 3/4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """A problem whose reference answer responses are made from.

    Attributes:
        rule: The rule that scores it.
        other: The answer of another problem, or a made one, that is not this one's.
    """

    problem_id: str
    prompt: str
    answer: str
    metadata: str
    rule: Rule
    other: str

    @property
    def number(self) -> Fraction | None:
        """The answer's value, where it is written as a number."""
        return number_of(self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to make a response.

    Attributes:
        right: Whether such a response is right.
        make: The response to a problem, or None where it has none of this form.
    """

    name: str
    right: bool
    make: Callable[[Gold], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A response whose score is not what it should be."""

    problem_id: str
    answer: str
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How often responses of a form earn the reward.

    Attributes:
        accepted: Those of reward 1.
        mistakes: Some of those accepted that are wrong, or refused that are right.
    """

    rule: str
    form: str
    right: bool
    accepted: int
    responses: int
    mistakes: tuple[Mistake, ...]

    @property
    def share(self) -> float:
        """Share of those accepted."""
        return self.accepted / self.responses

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share, which takes problems as draws."""
        return wilson_interval(self.share, self.responses)


def number_of(text: str) -> Fraction | None:
    """The value of a text that is a plain number, such as 3, -0.5 or 3/4."""
    return Fraction(text.strip()) if PLAIN.fullmatch(text.strip()) else None


def audit(problems: pl.DataFrame, scorer: Scorer, *, examples: int = 3) -> list[Row]:
    """Score made responses to problems, and count by rule and form.

    Args:
        problems: A ``problems`` table.
        examples: Mistakes that are kept of a form.

    Raises:
        RolloutError: A rule is unknown, or executes responses: its answers are tests, and no text is right.
    """
    golds = golds_of(problems)
    made = [(gold, form, text) for gold in golds for form, text in made_of(gold)]
    accepted = _accepted(scorer, [_item(gold, text, gold.rule.name) for gold, _, text in made])
    rows: dict[tuple[str, str], list[tuple[Gold, str, bool]]] = {}
    for (gold, form, text), one in zip(made, accepted, strict=True):
        rows.setdefault((gold.rule.name, form.name), []).append((gold, text, one))
    return [
        _row(name, form, rows[name, form.name], examples)
        for name in dict.fromkeys(gold.rule.name for gold in golds)
        for form in FORMS
        if (name, form.name) in rows
    ]


def compare(responses: Sequence[tuple[Item, str]], reference: str, scorer: Scorer, *, examples: int = 3) -> list[Row]:
    """Score responses by their own rules and by another that is taken for the truth.

    Args:
        responses: Each with the id of its problem.
        reference: Name of the rule that is taken for the truth.

    Returns:
        By rule, the responses that are right and those that are wrong.
    """
    rule(reference)
    own = _accepted(scorer, [item for item, _ in responses])
    truth = _accepted(
        scorer,
        [Item(verifier=reference, response=i.response, answer=i.answer, metadata=i.metadata) for i, _ in responses],
    )
    kept: dict[tuple[str, bool], list[tuple[Item, str, bool]]] = {}
    for (item, problem_id), one, right in zip(responses, own, truth, strict=True):
        kept.setdefault((item.verifier, right), []).append((item, problem_id, one))
    rows = []
    for (name, right), tried in sorted(kept.items(), key=lambda pair: (pair[0][0], not pair[0][1])):
        mistakes = [
            Mistake(problem_id=problem_id, answer=item.answer, response=item.response)
            for item, problem_id, one in tried
            if one != right
        ]
        rows.append(
            Row(
                rule=name, form=f"what {reference} accepts" if right else f"what {reference} refuses", right=right,
                accepted=sum(one for *_, one in tried), responses=len(tried), mistakes=tuple(mistakes[:examples]),
            )
        )  # fmt: skip
    return rows


def golds_of(problems: pl.DataFrame) -> list[Gold]:
    """The problems of a table, each with the answer of the next one whose answer is another."""
    names = problems["verifier"].to_list()
    for name in dict.fromkeys(names):
        if rule(name).base == "runs":
            raise RolloutError(f"{name} executes responses and its answers are tests, so no response can be made")
    answers = problems["answer"].to_list()
    columns = (problems["problem_id"].to_list(), problems["prompt"].to_list(), answers, metadata_of(problems))
    return [
        Gold(
            problem_id=problem_id, prompt=prompt, answer=answer, metadata=metadata, rule=rule(names[k]),
            other=_other(answers, k),
        )
        for k, (problem_id, prompt, answer, metadata) in enumerate(zip(*columns, strict=True))
    ]  # fmt: skip


def _other(answers: Sequence[str], k: int) -> str:
    """The next answer in a ring that is another than the one at a place, or one with a digit more."""
    ring = (answers[(k + step) % len(answers)] for step in range(1, len(answers)))
    return next((answer for answer in ring if not alike(answer, answers[k])), f"{answers[k]}1")


def alike(one: str, other: str) -> bool:
    """Whether two answers are the same text or the same number."""
    values = number_of(one), number_of(other)
    return same(one, other) or (values[0] is not None and values[0] == values[1])


def made_of(gold: Gold) -> Iterator[tuple[Form, str]]:
    """The responses to a problem that can be made, with their forms."""
    for form in FORMS:
        text = form.make(gold)
        if text is not None:
            yield form, text


def _as_asked(gold: Gold, answer: str) -> str:
    return gold.rule.written(answer)


def _in_dollars(gold: Gold) -> str | None:
    return None if gold.number is None else _as_asked(gold, f"${gold.answer}$")


def _decimal(gold: Gold) -> str | None:
    """A fraction whose decimals end, written with them; a whole number with a zero behind the point."""
    number = gold.number
    if number is None or "." in gold.answer:
        return None
    written = f"{number.numerator}.0" if number.denominator == 1 else str(float(number))
    return _as_asked(gold, written) if Fraction(written) == number else None


def _thousands(gold: Gold) -> str | None:
    number = gold.number
    if number is None or number.denominator != 1 or abs(number) < 1000:
        return None
    return _as_asked(gold, f"{int(number):,}")


def _latex(gold: Gold) -> str | None:
    written = re.fullmatch(r"(-?)(\d+)/(\d+)", gold.answer.strip())
    return _as_asked(gold, f"{written[1]}\\frac{{{written[2]}}}{{{written[3]}}}") if written else None


def _number(gold: Gold, change: Callable[[Fraction], Fraction]) -> str | None:
    if gold.number is None or change(gold.number) == gold.number:
        return None
    return _as_asked(gold, str(change(gold.number)))


FORMS = (
    Form(name="as the rule asks for it", right=True, make=lambda g: _as_asked(g, g.answer)),
    Form(name="with blanks around it", right=True, make=lambda g: f"\n {_as_asked(g, g.answer)} \n"),
    Form(name="after a sentence", right=True, make=lambda g: f"I counted twice.\n\n{_as_asked(g, g.answer)}"),
    Form(name="in dollars, as LaTeX", right=True, make=_in_dollars),
    Form(name="as a decimal", right=True, make=_decimal),
    Form(name="with separators of thousands", right=True, make=_thousands),
    Form(name="as a fraction of LaTeX", right=True, make=_latex),
    Form(name="another problem's answer", right=False, make=lambda g: _as_asked(g, g.other)),
    Form(name="one more", right=False, make=lambda g: _number(g, lambda n: n + 1)),
    Form(name="the negative", right=False, make=lambda g: _number(g, lambda n: -n)),
    Form(name="this one, then another", right=False,
         make=lambda g: f"{_as_asked(g, g.answer)}\nNo, it is this:\n{_as_asked(g, g.other)}"),
    Form(name="this one or another", right=False, make=lambda g: _as_asked(g, f"{g.other} or {g.answer}")),
    Form(name="many numbers", right=False, make=lambda g: _as_asked(g, ", ".join(map(str, range(-20, 101))))),
    Form(name="the problem", right=False, make=lambda g: None if same(g.prompt, g.answer) else g.prompt),
    Form(name="a claim", right=False, make=lambda g: "The answer is correct."),
    Form(name="nothing", right=False, make=lambda g: "" if g.answer.strip() else None),
)  # fmt: skip


def _item(gold: Gold, response: str, name: str) -> Item:
    return Item(verifier=name, response=response, answer=gold.answer, metadata=gold.metadata)


def _accepted(scorer: Scorer, items: Sequence[Item]) -> list[bool]:
    scorer.check(item.verifier for item in items)
    waiting = [scorer.submit(items[at : at + BATCH]) for at in range(0, len(items), BATCH)]
    return [verdict.reward >= 1 for future in waiting for verdict in future.result()]


def _row(name: str, form: Form, tried: Sequence[tuple[Gold, str, bool]], examples: int) -> Row:
    mistakes = [
        Mistake(problem_id=gold.problem_id, answer=gold.answer, response=text)
        for gold, text, one in tried
        if one != form.right
    ]
    return Row(
        rule=name, form=form.name, right=form.right, accepted=sum(one for *_, one in tried), responses=len(tried),
        mistakes=tuple(mistakes[:examples]),
    )  # fmt: skip
