"""What a pilot's cells scored, joined over seeds: one line for each learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from isocompute.rollout.scoring.estimators import proportion_error

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
        budget: Rollouts that the cell was to be trained on.
        evaluations: Evaluations after the first, by the rollouts spent before each; a cell that diverged may have
            none.
        diverged: Whether its gradient ceased to be finite.
    """

    learning_rate: float
    budget: int
    evaluations: Mapping[int, Evaluation]
    diverged: bool = False

    def end(self) -> Evaluation | None:
        """Mean of the evaluations after more than three quarters of the budget, or None where there is none at all.

        Where the cell has none in that quarter, as one that diverged may, its last evaluation counts. Each evaluation
        samples responses of its own, so that k of them have the standard error √(Σ e²)/k.
        """
        if not self.evaluations:
            return None
        late = [each for at, each in self.evaluations.items() if 4 * at > 3 * self.budget]
        return mean(late or [self.evaluations[max(self.evaluations)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One learning rate over the seeds of a search.

    Attributes:
        score: Mean over the seeds of ``Trial.end``; None where a seed has no evaluation.
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
        base: The base model's score, of responses that selected nothing.
    """
    by_rate: dict[float, list[Trial]] = {}
    for trial in trials:
        by_rate.setdefault(trial.learning_rate, []).append(trial)
    return tuple(_joined(rate, by_rate[rate], base) for rate in sorted(by_rate))


def below(one: Evaluation, other: Evaluation) -> bool:
    """Whether a score is below another by more than noise."""
    return one.score + NOISE * sqrt(one.standard_error**2 + other.standard_error**2) < other.score


def sampled(score: float, *, questions: int, samples: int, metric: str) -> Evaluation:
    """A score with its standard error as a proportion of responses, or of questions for a best or worst."""
    count = questions * samples if metric.startswith("avg_") else questions
    return Evaluation(score=score, standard_error=proportion_error(score, count))


def mean(scores: Sequence[Evaluation]) -> Evaluation:
    """Mean of scores, each of which was sampled by itself."""
    error = sqrt(fsum(each.standard_error**2 for each in scores)) / len(scores)
    return Evaluation(score=fsum(each.score for each in scores) / len(scores), standard_error=error)


def mean_over_seeds(ends: Sequence[Evaluation]) -> Evaluation:
    """Mean over seeds; its standard error is that of the seeds' spread, and no lower than that of sampling.

    Args:
        ends: The score of each seed; of one seed the error is that of sampling.
    """
    found, count = mean(ends), len(ends)
    if count == 1:
        return found
    spread = sqrt(fsum((end.score - found.score) ** 2 for end in ends) / (count - 1) / count)
    return Evaluation(score=found.score, standard_error=max(found.standard_error, spread))


def _joined(rate: float, trials: Sequence[Trial], base: Evaluation) -> Tried:
    ends = [end for trial in trials if (end := trial.end()) is not None]
    joined = mean_over_seeds(ends) if len(ends) == len(trials) else None
    return Tried(
        learning_rate=rate,
        score=joined.score if joined else None,
        standard_error=joined.standard_error if joined else None,
        seeds=len(trials),
        diverged=sum(trial.diverged for trial in trials),
        collapsed=sum(below(end, base) for end in ends),
    )
