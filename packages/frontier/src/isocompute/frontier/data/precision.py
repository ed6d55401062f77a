"""How exactly an evaluation measures its metric on the questions that it asked.

The error here is that of sampling responses: what would differ if the same questions were asked again. Which questions
are asked is another matter (see ``questions``).
"""

from __future__ import annotations

import re
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from ..contract.tables import METRIC_PATTERN
from .curves import Array

RATES = np.linspace(0.0, 1.0, 513)
"""Pass rates at which the variance of a metric is tabulated."""
LEVELS = (np.arange(64) + 0.5) / 64


def kind_of(metric: str) -> tuple[str, int] | None:
    """``avg``, ``best`` or ``worst`` and k of a metric such as ``best_at_4``; None for any other."""
    if not re.fullmatch(METRIC_PATTERN, metric):
        return None
    kind, k = metric.split("_at_")
    return (kind, int(k)) if int(k) > 0 else None


def values_of(metric: str, successes: NDArray[Any], samples: int) -> Array:
    """What a question with some successes among its samples contributes to a metric.

    ``best_at_k`` and ``worst_at_k`` are the exact chances that the best and the worst of k of the samples, drawn
    without replacement, is right.

    Args:
        metric: Such as ``best_at_4``.
        successes: Whole numbers, of any shape.
        samples: Samples of each question, k or more for ``best`` and ``worst``.
    """
    kind, k = kind_of(metric) or ("avg", 1)
    if kind == "avg":
        return np.asarray(successes / samples)
    table = [comb(samples - c if kind == "best" else c, k) / comb(samples, k) for c in range(samples + 1)]
    chance = np.array(table)[np.asarray(successes, dtype=np.int64)]
    return np.asarray(1.0 - chance if kind == "best" else chance)


def response_variance(metric: str, rates: Array, samples: int) -> Array:
    """Mean variance of a question's contribution over samplings of its responses, one per evaluation.

    Questions' true pass rates are taken to follow the Beta distribution with the mean and spread of those measured,
    less the spread that sampling adds: one value per question, as of ``best_at_k`` with k samples, says nothing of it.

    Args:
        metric: Such as ``best_at_4``.
        rates: Pass rates measured, shape ``(evaluations, questions)``.
    """
    questions = rates.shape[1]
    # Half a success and half a failure more: a mean of 0 or 1 has an error too.
    trials = questions * samples
    mean = (rates.mean(axis=1) * trials + 0.5) / (trials + 1)
    largest = mean * (1 - mean)
    sampled = sampling_variance((rates * (1 - rates)).mean(axis=1), samples) if samples > 1 else largest
    between = rates.var(axis=1, ddof=1) - sampled if questions > 1 else np.zeros_like(mean)
    alike = np.clip(between / largest, 1e-3, 0.999)
    nodes = beta.ppf(LEVELS, (mean * (1 / alike - 1))[:, None], ((1 - mean) * (1 / alike - 1))[:, None])
    counts = np.arange(samples + 1)
    chance = np.array([comb(samples, c) for c in counts]) * RATES[:, None] ** counts
    chance = chance * (1 - RATES[:, None]) ** (samples - counts)
    value = values_of(metric, counts, samples)
    variance = chance @ value**2 - (chance @ value) ** 2
    return np.asarray(np.interp(nodes, RATES, np.maximum(variance, 0.0)).mean(axis=1))


def trials_of(metric: str, questions: Array, samples: Array) -> tuple[Array, bool]:
    """How many independent trials an evaluation counts as where pass rates are not known, and whether that is exact.

    ``avg_at_k`` has at most the binomial error of all its samples. A question's contribution to any other metric lies
    between 0 and 1, so that its error is at most the binomial one of the questions; at k samples it is that.

    Args:
        metric: Such as ``avg_at_4``.
        questions: Questions of each evaluation, shape ``(evaluations,)``.
        samples: Samples of each question, shape ``(evaluations,)``.
    """
    found = kind_of(metric)
    average = found is not None and found[0] == "avg"
    return np.asarray(questions * (samples if average else 1), dtype=np.float64), average


def binomial_errors(reward: Array, trials: Array) -> Array:
    """Standard errors of shares of successes.

    Half a success and half a failure are added, as shares of 0 and 1 have an error too.

    Args:
        reward: Shares, within 0 to 1.
    """
    rate = (reward * trials + 0.5) / (trials + 1.0)
    return binomial_error(rate, trials)


def binomial_error(rate: Array, trials: Array | float) -> Array:
    """Standard deviation of a share of successes in independent trials of a known rate.

    Args:
        rate: The rate, within 0 to 1.
    """
    return np.asarray(np.sqrt(rate * (1 - rate) / trials))


def sampling_variance(spread: Array, samples: Array | int) -> Array:
    """Binomial variance of a measured pass rate, estimated without bias, shape of the arguments.

    Args:
        spread: r(1−r) of the rates measured, or the mean of that over questions.
        samples: Samples of each question; one says nothing of it, and is taken as two.
    """
    return np.asarray(spread / np.maximum(samples - 1, 1))
