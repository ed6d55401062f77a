"""What a pilot's cells scored, joined over seeds: one line for each learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

LAST = 2
"""Evaluations at the end of a cell whose mean is its score."""
NOISE = 2.0
"""Standard errors that a difference must exceed to be more than noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One score of a policy.

    Attributes:
        score: The metric.
        standard_error: Its standard error of sampling.
    """

    score: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cell of a search: a learning rate and a seed.

    Attributes:
        learning_rate: The learning rate.
        evaluations: Evaluations after the first, in order of compute; a cell that diverged may have none.
        diverged: Whether its gradient ceased to be finite.
    """

    learning_rate: float
    evaluations: Sequence[Evaluation]
    diverged: bool = False

    def end(self) -> Evaluation | None:
        """Mean of the last two evaluations, or None where there is none."""
        last = self.evaluations[-LAST:]
        if not last:
            return None
        error = sqrt(fsum(each.standard_error**2 for each in last)) / len(last)
        return Evaluation(score=fsum(each.score for each in last) / len(last), standard_error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One learning rate over the seeds of a search.

    Attributes:
        learning_rate: The learning rate.
        score: Mean over the seeds of the mean of the last two evaluations; None where a seed has no evaluation.
        standard_error: Its standard error: the larger of what sampling gives and what the seeds' spread gives, since
            the spread of two or three seeds alone is often too small by luck. None where ``score`` is.
        seeds: Seeds trained.
        diverged: Seeds whose gradient ceased to be finite.
        collapsed: Seeds that ended below the base model by more than noise.
    """

    learning_rate: float
    score: float | None
    standard_error: float | None
    seeds: int
    diverged: int
    collapsed: int

    @property
    def stable(self) -> bool:
        """Whether every seed ended, and none below the base model."""
        return self.score is not None and not self.diverged and not self.collapsed


def tried(trials: Iterable[Trial], base: Evaluation) -> tuple[Tried, ...]:
    """Join the cells of one search by their learning rates, lowest first.

    A seed has collapsed when its end s and the base model b differ by more than two standard errors,
    s + 2·√(e_s² + e_b²) < b.

    Args:
        trials: Every cell of the search.
        base: The base model's score, of responses that selected nothing.
    """
    by_rate: dict[float, list[Trial]] = {}
    for trial in trials:
        by_rate.setdefault(trial.learning_rate, []).append(trial)
    return tuple(_joined(rate, by_rate[rate], base) for rate in sorted(by_rate))


def below(one: Evaluation, other: Evaluation) -> bool:
    """Whether a score is below another by more than noise.

    Args:
        one: The score that may be lower.
        other: The score that it is held against.
    """
    return one.score + NOISE * sqrt(one.standard_error**2 + other.standard_error**2) < other.score


def _joined(rate: float, trials: Sequence[Trial], base: Evaluation) -> Tried:
    ends = [end for trial in trials if (end := trial.end()) is not None]
    mean = _mean(ends) if len(ends) == len(trials) else None
    return Tried(
        learning_rate=rate,
        score=mean.score if mean else None,
        standard_error=mean.standard_error if mean else None,
        seeds=len(trials),
        diverged=sum(trial.diverged for trial in trials),
        collapsed=sum(below(end, base) for end in ends),
    )


def _mean(ends: Sequence[Evaluation]) -> Evaluation:
    """Mean over seeds, each of which was sampled by itself."""
    count = len(ends)
    mean = fsum(end.score for end in ends) / count
    error = sqrt(fsum(end.standard_error**2 for end in ends)) / count
    if count > 1:
        spread = sqrt(fsum((end.score - mean) ** 2 for end in ends) / (count - 1) / count)
        error = max(error, spread)
    return Evaluation(score=mean, standard_error=error)
