"""Cumulative counts from what was logged of each step, and the evaluations that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BudgetError
from .logs.log import Log

LARGEST_COUNT = 2**53
"""A larger count is wrong: a float holds every whole number up to here."""
LONGEST_RESPONSE = 2**40
"""A longer mean response, in tokens, is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of a run.

    Attributes:
        step: Optimizer steps taken.
        rollouts: Generated for training up to and including it.
        rollouts_error: By how much that may be wrong, either way.
        tokens: Response tokens of these rollouts.
        count_source: ``log``, ``log and formula`` where both agree, or ``formula``.
        problem_set: Name of the problems evaluated.
        samples: Responses to each.
        scores: Metric columns.
        questions: How many problems, where the log says so.
        split: ``validation``, or ``train`` for the reward of training itself.
    """

    step: int
    rollouts: int
    tokens: int
    problem_set: str
    samples: int
    scores: Mapping[str, float]
    count_source: str
    rollouts_error: int = 0
    questions: int | None = None
    split: str = "validation"


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rollouts and response tokens of a run, step by step.

    Attributes:
        where: The run, for messages.
        per_step: Rollouts of a step whose count is not logged, where that is known.
        reason_unknown: Why it is not known otherwise, and what a log must hold to say it.
        step: Last step counted.
        rollouts: Generated up to and including it.
        rollouts_error: By how much that may be wrong.
        tokens: Response tokens of these rollouts.
        sources: Where the counts came from so far.
    """

    where: str
    per_step: int | None
    reason_unknown: str
    step: int = 0
    rollouts: int = 0
    rollouts_error: int = 0
    tokens: float = 0.0
    sources: set[str] = field(default_factory=set)

    def advance(self, step: int, own: int | None, length: float, *, error: int = 0) -> None:
        """Count all steps up to one.

        Args:
            step: The step; nothing happens where it has been counted already.
            own: Rollouts that it generated, where its log says so.
            length: Mean tokens of the responses.
            error: Rollouts that may have been started in addition.

        Raises:
            BudgetError: What a step generated is not known, or its log is impossible.
        """
        if step <= self.step:
            return
        if own is not None and not 0 <= own < LARGEST_COUNT:
            raise BudgetError(f"{self.where}: step {step} is logged with {own:g} rollouts, which is impossible")
        missing = step - self.step - (own is not None)
        if missing and self.per_step is None:
            raise BudgetError(
                f"{self.where}: how many rollouts step {self.step + 1} generated is not known: {self.reason_unknown}; "
                "log or export it, or give --set rollouts_per_step=NUMBER for such steps"
            )
        self.sources |= ({"formula"} if missing else set()) | ({"log"} if own is not None else set())
        new = missing * (self.per_step or 0) + (own or 0)
        self.step = step
        self.rollouts += new
        self.rollouts_error += error
        self.tokens += new * length

    def evaluation(self, *, step: int, problem_set: str, samples: int, scores: Mapping[str, float]) -> Evaluation:
        """An evaluation with what has been counted so far.

        Args:
            step: Optimizer steps taken.
            scores: Metric columns.
        """
        return Evaluation(
            step=step, rollouts=self.rollouts, rollouts_error=self.rollouts_error, tokens=int(self.tokens),
            count_source="formula" if self.sources != {"log"} else "log",
            problem_set=problem_set, samples=samples, scores=scores,
        )  # fmt: skip


def lengths(log: Log, *names: str) -> list[float]:
    """Mean response length at each row of a log, as ``mean_lengths`` gives it."""
    return mean_lengths([metrics for _, metrics in log.rows], *names, where=log.name)


def mean_lengths(rows: Sequence[Mapping[str, float]], *names: str, where: str) -> list[float]:
    """Mean response length at each row: the last one logged, or the first where none was logged before; 0 without any.

    Raises:
        BudgetError: A value logged cannot be a length.
    """
    logged = [next((metrics[name] for name in names if name in metrics), None) for metrics in rows]
    odd = next((value for value in logged if value is not None and not 0 <= value < LONGEST_RESPONSE), None)
    if odd is not None:
        raise BudgetError(f"{where}: {names[0]} is {odd:g} in entry {logged.index(odd) + 1}, which is not a length")
    last = next((value for value in logged if value is not None), 0.0)
    out = []
    for value in logged:
        last = last if value is None else value
        out.append(last)
    return out


def best_samples(scores: Mapping[str, Any]) -> int | None:
    """The largest k of the ``avg_at_k`` among metric columns."""
    return max((int(name.split("_")[2]) for name in scores if name.startswith("avg")), default=None)


def whole_of(log: Log, seconds: str, rate: str) -> int | None:
    """How many of something there were, from how long they took and how many a second: both are logged rounded.

    Args:
        seconds: Metric of the time, to four digits.
        rate: Metric of how many a second, to three.
    """
    low, high = 0.0, float("inf")
    for _, metrics in log.rows:
        time, each = metrics.get(seconds), metrics.get(rate)
        if time and each:
            low = max(low, (time - 6e-5) * (each - 6e-4) * (1 - 1e-6))
            high = min(high, (time + 6e-5) * (each + 6e-4) * (1 + 1e-6))
    return round(high) if high < float("inf") and low <= round(high) <= high and high - low < 1 else None
