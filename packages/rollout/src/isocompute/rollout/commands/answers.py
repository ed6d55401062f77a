"""The responses of one run to a set of questions, chosen from a table that may hold more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ..errors import RolloutError
from ..scoring.evaluation import LARGEST_LEFT_OUT_SHARE, successes, usual_samples
from .output import faults

CHOICE = ("run_id", "step", "phase")
"""Columns that tell one run of a table from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Responses of one run, counted.

    Attributes:
        counts: ``problem_id``, ``successes`` and ``samples`` of the questions with enough completed responses.
        left_out: Questions with fewer.
        responses: Responses to all questions, the aborted ones included.
        truncated: Responses cut off at the longest length.
        errors: Responses that broke their verifier.
        faults: Faults in words.
    """

    counts: pl.DataFrame
    k: Sequence[int]
    left_out: int
    responses: int
    aborted: int
    truncated: int
    errors: int
    faults: Sequence[str]
    run_id: str
    step: int
    phase: str

    def pass_rates(self) -> pl.DataFrame:
        """Return a ``pass_rates`` table."""
        return self.counts.select(pl.lit(self.run_id).alias("run_id"), pl.lit(self.step).alias("step"), pl.all())

    def summary(self) -> str:
        """Say how much was scored, with its faults."""
        parts = [f"{len(self.counts):,} questions", f"{self.responses:,} responses"]
        if self.left_out:
            parts.append(f"{self.left_out:,} questions left out with too few responses")
        return ", ".join([*parts, *self.faults])


def answers_of(
    rollouts: pl.DataFrame,
    problems: pl.DataFrame | None,
    *,
    where: str,
    k: Sequence[int] | None = None,
    choice: Mapping[str, Any] | None = None,
) -> Answers:
    """Return the counted responses of one run to the questions.

    Responses that select never measure: those of phase ``difficulty`` say nothing of a set that they have chosen.

    Args:
        problems: The questions; None for all that were answered.
        k: Responses drawn; None for as many as most questions have.
        choice: Selects one of several runs, by the columns of ``CHOICE``; None where flags cannot.
    """
    for name in CHOICE:
        rollouts = _picked(rollouts, name, choice, where=where)
    answered = rollouts["problem_id"].unique()
    if problems is not None:
        _refuse_selecting(rollouts, problems, answered, where=where)
        rollouts = rollouts.filter(pl.col("problem_id").is_in(problems["problem_id"].to_list()))
        if rollouts.is_empty():
            raise RolloutError(f"{where}: answers none of the {len(problems)} questions")
    counts = successes(rollouts)
    if counts.is_empty():
        raise RolloutError(f"{where}: all {len(rollouts):,} responses were aborted, so nothing can be scored")
    drawn = sorted(set(k)) if k else [usual_samples(counts)]
    enough = counts.filter(pl.col("samples") >= drawn[-1])
    questions = len(answered) if problems is None else len(problems)
    left_out = questions - len(enough)
    if left_out > LARGEST_LEFT_OUT_SHARE * questions:
        raise RolloutError(
            f"{where}: {left_out} of {questions} questions have fewer than {drawn[-1]} completed responses; a smaller "
            "--k would score them"
        )
    reasons = rollouts["finish_reason"]
    return Answers(
        counts=enough,
        k=drawn,
        left_out=left_out,
        responses=len(rollouts),
        aborted=int((reasons == "aborted").sum()),
        truncated=int((reasons == "length").sum()),
        errors=int(rollouts["score_error"].count()) if "score_error" in rollouts.columns else 0,
        faults=tuple(faults(rollouts)),
        run_id=rollouts["run_id"][0],
        step=rollouts["step"][0],
        phase=rollouts["phase"][0],
    )


def _picked(rollouts: pl.DataFrame, name: str, choice: Mapping[str, Any] | None, *, where: str) -> pl.DataFrame:
    """Return the rows of one run, step or phase."""
    value = None if choice is None else choice[name]
    values = rollouts[name].unique().sort().to_list()
    if value is None and len(values) == 1:
        return rollouts
    if value is None:
        flag = f"--{name.replace('_', '-')}"
        advice = "a table with one is needed" if choice is None else f"{flag} must choose one"
        shown = ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
        raise RolloutError(f"{where}: holds responses of {len(values)} {name}s ({shown}); {advice}")
    if value not in values:
        raise RolloutError(f"{where}: has no responses of {name} {value} (it has {', '.join(map(str, values[:5]))})")
    return rollouts.filter(pl.col(name) == value)


def _refuse_selecting(rollouts: pl.DataFrame, problems: pl.DataFrame, answered: pl.Series, *, where: str) -> None:
    """Refuse responses that may have chosen the questions: those with pass rates, or a part of those answered."""
    if rollouts["phase"][0] != "difficulty":
        return
    if "pass_rate" in problems.columns or not answered.is_in(problems["problem_id"].to_list()).all():
        raise RolloutError(
            f"{where}: the responses are of phase difficulty and chose the questions, so they cannot measure them; "
            "fresh ones are needed, of phase eval or baseline"
        )
