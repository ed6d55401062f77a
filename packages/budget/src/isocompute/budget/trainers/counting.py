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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run had generated for training when it logged a step.

    Attributes:
        logged: The step by the trainer's own count.
        step: Optimizer steps taken.
        rollouts: Generated up to and including it.
        rollouts_error: By how much that may be wrong, either way.
        tokens: Response tokens of these rollouts.
        count_source: As in ``Evaluation``.
    """

    logged: int
    step: int
    rollouts: int
    rollouts_error: int
    tokens: int
    count_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """What a run generated for training, at each step that it logged.

    Attributes:
        points: In the order of steps.
        following: Rollouts of the step after the last one that is logged, where settings say so or steps are alike.
        plain: Rollouts of these steps by the settings alone: whole batches or parts of them, each generated once.
        more: What was generated in addition to these, or less, by mechanism.
        ahead: Rollouts that the settings have generated before their step is taken, and that no log counts at its end.
    """

    points: Sequence[Progress]
    following: int | None
    plain: int = 0
    more: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0

    @classmethod
    def of(cls, points: Sequence[Progress], per_step: int | None, *, plain: int, baselines: int = 0) -> Progressed:
        """What was generated in addition to whole batches replaced groups that were discarded.

        Where no setting says what a step generates, the next one is taken to be like the last.

        Args:
            per_step: Rollouts of a logged step, or None.
            plain: Rollouts of these steps by the settings alone.
            baselines: Rollouts that only served as baselines.
        """
        more = {"remax baselines": baselines, "refill": (points[-1].rollouts if points else 0) - plain - baselines}
        if per_step is None and points:
            before = points[-2] if len(points) > 1 else None
            new = points[-1].rollouts - (before.rollouts if before else 0)
            per_step = -(-new // max(points[-1].logged - (before.logged if before else points[-1].logged - 1), 1))
        return cls(points=points, following=per_step, plain=plain, more={k: v for k, v in more.items() if v})


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
        """
        return Evaluation(
            step=step, rollouts=self.rollouts, rollouts_error=self.rollouts_error, tokens=int(self.tokens),
            count_source="formula" if self.sources != {"log"} else "log",
            problem_set=problem_set, samples=samples, scores=scores,
        )  # fmt: skip

    def progress(self, *, logged: int, step: int) -> Progress:
        """What has been counted so far.

        Args:
            logged: The step by the trainer's own count.
            step: Optimizer steps taken.
        """
        return Progress(
            logged=logged, step=step, rollouts=self.rollouts, rollouts_error=self.rollouts_error,
            tokens=int(self.tokens), count_source="formula" if self.sources != {"log"} else "log",
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
