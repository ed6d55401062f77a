"""Claims of the papers, from claims.yaml, and the row of each: what was done, effect, verdict or why there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from isocompute.rollout.contract.documents import parsed
from pydantic import AfterValidator, Field

from ...settings.sections import Settings
from .questions import QUESTIONS, Answer, Question
from .statistics import Estimate, Verdict

FILE = Path(__file__).with_name("claims.yaml")


def _known(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        raise ValueError(f"{unknown[0]} is none; the questions are {', '.join(QUESTIONS)}")
    return names


class Claim(Settings):
    """A claim, and what answers it."""

    id: int | str
    """Its number in the list of claims."""
    says: str
    """The claim, in our words."""
    where: str
    """Place of the claim."""
    questions: Annotated[list[str], AfterValidator(_known)] = Field(default_factory=list)
    """Questions of plan.md that answer it."""
    did: str = ""
    """Work done; braces name numbers of ``findings``."""
    absent: str = ""
    """Why nothing in this panel answers it."""
    known: str = ""
    """Knowledge from outside the panel, of the unit that it names."""
    page: str = ""
    """The page where that stands, from docs/."""
    quotes: list[str] = Field(default_factory=list)
    """Pieces of that page on which ``known`` rests."""
    command: str = ""
    """Source of the numbers, where it is not ``findings`` itself."""

    def impossible(self) -> Iterator[str]:
        """It is answered, or it is said why not."""
        if bool(self.questions) == bool(self.absent):
            yield "it has questions or the reason why none answers it, and not both"


def load() -> list[Claim]:
    """Every claim, in the order of the page."""
    return [Claim.model_validate_json(json.dumps(each)) for each in parsed(FILE.read_text())]


def row(
    claim: Claim, answers: Mapping[str, Answer], verdicts: Mapping[str, str], numbers: Mapping[str, str]
) -> list[str]:
    """The row of a claim in the table of the page: claim, what was done, effect, verdict, command."""
    did = claim.did.format_map(numbers) or "Nothing"
    did += claim.absent and ": " + claim.absent
    if claim.known:
        outside = claim.page.startswith("../")
        link = f" (`{claim.page[3:]}`)" if outside else claim.page and f" ([{claim.page}]({claim.page}))"
        did += ". " + claim.known.format_map(numbers) + link
    effects = [f"{name}: {effect(answers[name])}" for name in claim.questions] or ["–"]
    found = [f"{name}: {verdicts[name]}" for name in claim.questions] or [str(Verdict.NOT_TESTABLE)]
    says = f"{claim.says} ({claim.where})"
    commands = [f"`{each}`" for each in ("findings" * bool(claim.questions), claim.command) if each] or ["–"]
    return [str(claim.id), says, did, "; ".join(effects), "; ".join(found), "; ".join(commands)]


def effect(answer: Answer) -> str:
    """The estimate with its interval, and of how many units."""
    value, low, high = shown(answer.question, answer.estimate)
    unit = answer.question.unit and f" {answer.question.unit}"
    return f"{value}{unit} ({low} to {high} over {answer.estimate.units} units)"


def shown(question: Question, own: Estimate) -> list[str]:
    """An estimate and both ends of its interval, to be printed; a share or an exponent has no sign."""
    numbers = (own.value, *own.interval)
    if question.rule.bounds != (0.0,):
        return [f"{number:.2f}".replace("-", "−") for number in numbers]
    return [signed(number, 2 if question.unit else 3) for number in numbers]


def signed(number: float, digits: int) -> str:
    """A number with its sign."""
    return f"{number:+.{digits}f}".replace("-", "−")
