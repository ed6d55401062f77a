"""Scores with standard errors, of one set of questions or paired between two policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..errors import RolloutError
from .estimators import avg_at_k, best_at_k, sampling_variance, wilson_interval, worst_at_k

METRICS = {"avg": avg_at_k, "best": best_at_k, "worst": worst_at_k}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A mean over questions, or the mean of paired differences.

    Attributes:
        name: Such as ``avg_at_4``.
        value: The mean.
        standard_error: With the questions as drawn from a population: the standard deviation over questions by the
            root of their number, which contains the luck of sampling; None for a single question, and where there is
            an ``interval`` instead.
        sampling_error: The part from sampling responses, with the questions given; None where the responses are too
            few to tell (2 for avg@k, 2k for the others), where there is a ``sampling_interval`` instead, and for
            differences.
        questions: Questions it is a mean over.
        interval: 95 % interval of a value of 0 or 1, whose standard error would be 0: Wilson's, with the questions as
            trials; of a difference of two such values Newcombe's. None for all others.
        sampling_interval: The same with the questions given: for avg@k every response is a trial.
    """

    name: str
    value: float
    standard_error: float | None
    sampling_error: float | None
    questions: int
    interval: tuple[float, float] | None = None
    sampling_interval: tuple[float, float] | None = None


def scores(counts: pl.DataFrame, ks: Sequence[int]) -> list[Score]:
    """Return avg@k, best@k and worst@k over questions, exact for draws without replacement.

    Args:
        counts: ``problem_id``, ``successes`` and ``samples``, each with at least the largest k samples.
        ks: Responses drawn.

    Raises:
        RolloutError: There are no questions, or a question has too few responses.
    """
    if counts.is_empty():
        raise RolloutError("there are no questions to score")
    responses = int(counts["samples"].sum())
    found = []
    for metric, k, values in _estimates(counts, ks):
        name, value, questions = f"{metric}_at_{k}", float(values.mean()), len(values)
        if value in (0.0, 1.0):
            trials = responses if metric == "avg" else questions
            found.append(Score(
                name=name, value=value, standard_error=None, sampling_error=None, questions=questions,
                interval=wilson_interval(value, questions), sampling_interval=wilson_interval(value, trials),
            ))  # fmt: skip
            continue
        found.append(Score(
            name=name, value=value, standard_error=_standard_error(values),
            sampling_error=_sampling_error(metric, counts, k), questions=questions,
        ))  # fmt: skip
    return found


def differences(ours: pl.DataFrame, theirs: pl.DataFrame, ks: Sequence[int]) -> list[Score]:
    """Return the mean differences between two policies on the questions that both answered, ours minus theirs.

    Pairing removes what the questions have in common: their standard error is that of the differences.

    Args:
        ks: Responses drawn.

    Raises:
        RolloutError: The two have no question in common, or a question has too few responses.
    """
    both = ours.join(theirs, on="problem_id", suffix="_theirs").sort("problem_id")
    if both.is_empty():
        raise RolloutError(
            f"the two have none of their {len(ours)} and {len(theirs)} questions in common, so nothing can be paired"
        )
    other = both.select("problem_id", successes="successes_theirs", samples="samples_theirs")
    pairs = zip(_estimates(both, ks), _estimates(other, ks), strict=True)
    found = []
    for (metric, k, mine), (_, _, other_values) in pairs:
        interval = _newcombe(float(mine.mean()), float(other_values.mean()), len(mine))
        found.append(Score(
            name=f"{metric}_at_{k}", value=float((mine - other_values).mean()),
            standard_error=None if interval else _standard_error(mine - other_values), sampling_error=None,
            questions=len(mine), interval=interval,
        ))  # fmt: skip
    return found


def usual_samples(counts: pl.DataFrame) -> int:
    """Return the number of responses that most questions have; of two as frequent, the larger.

    Args:
        counts: With the column ``samples``.
    """
    frequent = counts.group_by("samples").len().sort("len", "samples")
    return int(frequent["samples"][-1])


def _estimates(counts: pl.DataFrame, ks: Sequence[int]) -> list[tuple[str, int, NDArray[np.float64]]]:
    right, asked = counts["successes"].to_numpy(), counts["samples"].to_numpy()
    return [(metric, k, estimate(right, asked, k)) for k in ks for metric, estimate in METRICS.items()]


def _standard_error(values: NDArray[np.float64]) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _newcombe(one: float, other: float, questions: int) -> tuple[float, float] | None:
    """95 % interval of a difference of two proportions that are 0 or 1 (Newcombe, Stat. Med. 17, 1998, method 10)."""
    if {one, other} - {0.0, 1.0}:
        return None
    (low, high), (other_low, other_high) = wilson_interval(one, questions), wilson_interval(other, questions)
    return (
        one - other - float(np.hypot(one - low, other_high - other)),
        one - other + float(np.hypot(high - one, other - other_low)),
    )


def _sampling_error(metric: str, counts: pl.DataFrame, k: int) -> float | None:
    fewest = int(counts["samples"].to_numpy().min())
    if fewest < (2 if metric == "avg" else 2 * k):
        return None
    variances = sampling_variance(metric, counts["successes"].to_numpy(), counts["samples"].to_numpy(), k)
    return float(np.sqrt(max(variances.sum(), 0.0)) / len(variances))
