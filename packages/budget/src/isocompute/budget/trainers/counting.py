"""Counts from what was logged of each step: cumulative rollouts and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import BudgetError
from .logs.log import Log
from .settings import Settings

LARGEST_COUNT = 2**53
"""A larger count is wrong: a float holds every whole number up to here."""
TRAINING_REWARD = (
    "TRAINING REWARD: measured on the problems that are trained on, by the policy before each update; it says how a "
    "run learnt, not how well it answers problems that it has not seen"
)
LONGEST_RESPONSE = 2**40
"""A longer mean response, in tokens, is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The spread of an evaluation's rewards, as far as it is logged.

    Attributes:
        deviation: The mean of the standard deviations of groups of responses, or None.
        size: Responses in each group, a last one may hold fewer; None where a mean is not of equal groups.
        corrected: Whether deviations are those of samples, not of populations.
    """

    deviation: float | None = None
    size: int | None = None
    corrected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What is logged of one problem set in an evaluation.

    Attributes:
        scores: By metric column: means of rewards as they are logged, success rates once ``success_rates`` made them.
        spread: What is logged of the rewards beside their means; None where that says nothing.
        binary: Whether the trainer found all rewards to be 0 or 1; None where it does not say.
    """

    samples: int
    scores: Mapping[str, float]
    metric: str = ""
    spread: Spread | None = None
    binary: bool | None = None
    questions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Rollouts and tokens that a run had generated for training when it logged a step.

    Attributes:
        logged: The step by the trainer's own count.
        step: Optimizer steps taken.
        rollouts_error: By how much that may be wrong, either way.
        count_source: ``log``, ``log and formula`` where both agree, or ``formula``.
    """

    logged: int
    step: int
    rollouts: int
    rollouts_error: int
    tokens: int
    count_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvaluation(Score):
    """One evaluation of a run.

    Attributes:
        count: What was generated for training before it.
        split: ``validation``, or ``train`` for the reward of training itself.
    """

    count: StepCount
    problem_set: str
    split: str = "validation"

    @classmethod
    def of(cls, score: Score, count: StepCount, problem_set: str, split: str = "validation") -> LoggedEvaluation:
        """A score at a step."""
        parts = {part.name: getattr(score, part.name) for part in fields(Score)}
        return cls(count=count, problem_set=problem_set, split=split, **parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Rollouts and tokens generated for training, at each step that a run logged.

    Attributes:
        following: Rollouts of the step after the last one that is logged, where settings say so or steps are alike.
        plain: Rollouts of these steps by the settings alone: whole batches or parts of them, each generated once.
        more: What was generated in addition to these, or less, by mechanism.
        ahead: Rollouts that the settings have generated before their step is taken, and that no log counts at its end.
    """

    points: Sequence[StepCount]
    following: int | None
    plain: int = 0
    more: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0

    @classmethod
    def of(cls, points: Sequence[StepCount], per_step: int | None, *, plain: int, baselines: int = 0) -> StepCounts:
        """Make counts in which all that exceeds whole batches replaced discarded groups.

        Where no setting says what a step generates, the next one is taken to be like the last.

        Args:
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
        per_step: Rollouts of a step whose count is not logged, where that is known.
        reason_unknown: Why it is not known otherwise, and what a log must hold to say it.
        episode: Steps of a pass over the problems, if its last batch is short, and the rollouts that this one lacks.
    """

    where: str
    per_step: int | None
    reason_unknown: str
    episode: tuple[int, int] | None = None
    step: int = 0
    rollouts: int = 0
    rollouts_error: int = 0
    tokens: float = 0.0
    sources: set[str] = field(default_factory=set)

    def advance(self, step: int, own: int | None, length: float, *, error: int = 0) -> None:
        """Count all steps up to one.

        Args:
            length: Mean tokens of the responses.
            error: Rollouts that may have been started in addition.
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
        if self.episode is not None:
            steps, lacking = self.episode
            new -= ((self.step + missing) // steps - self.step // steps) * lacking
        self.step = step
        self.rollouts += new
        self.rollouts_error += error
        self.tokens += new * length

    def at(self, step: int, *, logged: int | None = None) -> StepCount:
        """Return what has been counted so far; ``logged`` is the step by the trainer's own count, if another."""
        return StepCount(
            logged=step if logged is None else logged,
            step=step,
            rollouts=self.rollouts,
            rollouts_error=self.rollouts_error,
            tokens=int(self.tokens),
            count_source="formula" if self.sources != {"log"} else "log",
        )

    def evaluations(self, scores: Mapping[str, Score], step: int, split: str = "validation") -> list[LoggedEvaluation]:
        """The evaluations of a step, from scores by problem set."""
        return [LoggedEvaluation.of(score, self.at(step), name, split) for name, score in scores.items()]


Metrics = Mapping[str, float]
Own = Callable[[int, Metrics], tuple[int | None, int]]
"""Of a logged step, the rollouts that its metrics say it generated, or None, and by how much they may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """The count of a run whose every row is of one step, with the evaluation after it.

    Attributes:
        updates: Optimizer steps of each logged step.
        batch: Rollouts of a logged step by the settings alone.
        lengths: Mean tokens of a response at each row.
        trains: Whether a row is of training, and not of an evaluation alone.
    """

    log: Log
    tally: Tally
    updates: int
    batch: int
    lengths: Sequence[float]
    own: Own
    trains: Callable[[Metrics], bool]

    def progress(self, *, one_in: int = 0) -> StepCounts:
        """What was generated for training at each step, one in so many only as a baseline."""
        points = []
        for (step, metrics), length in zip(self.log.rows, self.lengths, strict=True):
            if self.trains(metrics):
                self._advance(step, metrics, length)
                points.append(self.tally.at(step * self.updates, logged=step))
        baselines = self.tally.rollouts // one_in if one_in else 0
        return StepCounts.of(points, self.tally.per_step, plain=self.tally.step * self.batch, baselines=baselines)

    def evaluations(self, scores: Mapping[int, Mapping[str, Score]]) -> list[LoggedEvaluation]:
        """The evaluations of a run."""
        found = []
        for (step, metrics), tokens in zip(self.log.rows, self.lengths, strict=True):
            if step > max(scores):
                break
            # A run that was resumed evaluates before its first step, too.
            self._advance(step, metrics, tokens)
            found += self.tally.evaluations(scores.get(step, {}), step * self.updates)
        return found

    def _advance(self, step: int, metrics: Metrics, length: float) -> None:
        own, error = self.own(step, metrics)
        self.tally.advance(step, own, length, error=error)


def note_no_tokens(log: Log, settings: Settings, evaluations: Sequence[LoggedEvaluation], *names: str) -> None:
    """Note that a run's mean response, the metric of one of these names, is not logged, so that tokens are unknown."""
    if evaluations and evaluations[-1].count.rollouts and log.keys.isdisjoint(names):
        settings.notes.append(f"{names[-1]} is not logged: tokens are 0 and cannot be the unit of a fit")


def lengths(log: Log, *names: str) -> list[float]:
    """Mean response length at each row: the last one logged, or the first where none was before; 0 without any."""
    logged = [next((metrics[name] for name in names if name in metrics), None) for _, metrics in log.rows]
    odd = next((value for value in logged if value is not None and not 0 <= value < LONGEST_RESPONSE), None)
    if odd is not None:
        raise BudgetError(f"{log.name}: {names[0]} is {odd:g} in entry {logged.index(odd) + 1}, which is not a length")
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
    """Return a number of things from how long they took and how many a second: both are logged rounded.

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
