"""Evaluations: a policy answers questions, and its responses give scores with standard errors, or pass rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from ..contract.settings import Count, Share, settings
from ..errors import ProblemError, RolloutError
from .rules import decode_metadata, metadata_of, own_response, rule
from .scorer import Item, Scorer, Verdict

Z = 1.959964
"""Half-width of a normal distribution's central 95 %, in standard deviations."""
ROUNDS = 3
"""Rounds of sampling per question, including the first."""
LARGEST_LEFT_OUT_SHARE = 0.1
"""Largest fraction of the questions that may still lack responses after these rounds."""
DROPPED = dict.fromkeys(("problem_id", "prompt", "answer", "verifier", "reason"), pl.String)
"""Columns of a table of dropped problems."""


class Sampler(Protocol):
    """Anything that answers problems, like the samplers in ``samplers``."""

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str,
        run_id: str,
        first_sample: int = 0,
    ) -> pl.DataFrame:
        """Return a ``rollouts`` table; ``first_sample`` is passed only if earlier responses were aborted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Responses and scores of one evaluation."""

    metrics: Mapping[str, float]
    """``avg_at_k``, ``best_at_k`` and ``worst_at_k``, means over the questions."""
    rollouts: pl.DataFrame
    """The ``rollouts`` table behind the metrics, aborted responses included."""
    pass_rates: pl.DataFrame
    """``problem_id``, ``successes``, ``samples``: the completed responses of every problem."""
    questions: int
    """Number of problems with at least k completed responses; the metrics are means over these."""
    samples: int


def evaluate(
    sampler: Sampler, problems: pl.DataFrame, *, samples: int, seed: int, at: int, run_id: str, phase: str = "eval"
) -> EvaluationResult:
    """Answer every problem ``samples`` times and score the answers.

    Aborted responses are sampled again, at most twice, with new sample indices. A problem that still lacks responses is
    left out of the metrics. The estimators use all completed responses.

    Args:
        samples: Responses per problem, k.
        at: Cumulative rollouts trained on. The sampling seeds depend on it: at the same point of the grid, runs with
            the same seed share them, whatever their n.
        phase: Purpose of the responses; their seeds depend on it, too.

    Raises:
        RolloutError: More than a tenth of the problems lack responses.
    """
    rollouts = sample_completed(sampler, problems, samples=samples, seed=seed, step=at, phase=phase, run_id=run_id)
    left_out = len(lacking(problems, rollouts, samples))
    if left_out > LARGEST_LEFT_OUT_SHARE * len(problems):
        raise RolloutError(
            f"{left_out} of {len(problems)} questions have fewer than {samples} responses after {ROUNDS} rounds, since "
            "the rest were aborted: the engine fails too often to measure anything"
        )
    rates = successes(rollouts)
    complete = rates.filter(pl.col("samples") >= samples)
    return EvaluationResult(
        metrics={f"{metric}_at_{k}": float(values.mean()) for metric, k, values in _estimates(complete, [samples])},
        rollouts=rollouts,
        pass_rates=rates,
        questions=len(complete),
        samples=samples,
    )


def sample_completed(sampler: Sampler, problems: pl.DataFrame, *, samples: int, **request: Any) -> pl.DataFrame:
    """Answer every problem ``samples`` times; aborted responses are sampled again, at most twice.

    Returns a ``rollouts`` table, aborted responses included; repeated ones have new sample indices.
    """
    rollouts = sampler.sample(problems, samples=samples, **request)
    first_sample = samples
    for _ in range(ROUNDS - 1):
        again = lacking(problems, rollouts, samples)
        if again.is_empty():
            break
        # The same number for all problems, so that sample indices stay aligned.
        more = int(again["lacks"].to_numpy().max())
        retried = sampler.sample(again.drop("lacks"), samples=more, first_sample=first_sample, **request)
        rollouts = pl.concat([rollouts, retried]).sort("problem_id", "sample")
        first_sample += more
    return rollouts


def lacking(problems: pl.DataFrame, rollouts: pl.DataFrame, samples: int) -> pl.DataFrame:
    """Return the problems with fewer completed responses than ``samples``, and how many each ``lacks``."""
    completed = successes(rollouts).select("problem_id", completed=pl.col("samples").cast(pl.Int64))
    counted = problems.join(completed, on="problem_id", how="left", maintain_order="left")
    lacks = samples - pl.col("completed").fill_null(0)
    return counted.with_columns(lacks=lacks).drop("completed").filter(pl.col("lacks") > 0)


def successes(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Count right answers per problem, aborted responses left out.

    A response is right if its reward is exactly 1. With a length penalty, long right responses of phase ``train`` have
    a lower reward; ``score`` writes rewards without the penalty.

    Returns:
        ``problem_id``, ``successes`` i32, ``samples`` i32, sorted by problem.
    """
    return (
        rollouts.filter(pl.col("finish_reason") != "aborted")
        .group_by("problem_id")
        .agg((pl.col("reward") == 1).sum().cast(pl.Int32).alias("successes"), pl.len().cast(pl.Int32).alias("samples"))
        .sort("problem_id")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A mean over questions, or the mean of paired differences.

    Attributes:
        name: Such as ``avg_at_4``.
        value: The mean.
        standard_error: Standard error with the questions as a sample of a population: the standard deviation over
            questions divided by the root of their number. It includes the sampling of responses. None for a single
            question, or if there is an ``interval`` instead.
        sampling_error: The part due to sampling responses, for fixed questions. None with too few responses (at least 2
            are needed for avg@k, 2k for the others), if there is a ``sampling_interval`` instead, and for differences.
        questions: Number of questions in the mean.
        interval: 95 % interval of a value of 0 or 1, whose standard error would be 0: Wilson's, with the questions as
            trials, or Newcombe's for a difference of two such values. None for all other values.
        sampling_interval: The same for fixed questions: for avg@k every response is a trial.
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
        counts: ``problem_id``, ``successes`` and ``samples``, with at least the largest k samples each.
    """
    if counts.is_empty():
        raise RolloutError("there are no questions to score")
    responses = int(counts["samples"].sum())
    found, fewest = [], int(counts["samples"].to_numpy().min())
    for metric, k, values in _estimates(counts, ks):
        value, questions = float(values.mean()), len(values)
        certain, trials = value in (0.0, 1.0), responses if metric == "avg" else questions
        error = None
        if not certain and fewest >= (2 if metric == "avg" else 2 * k):
            variances = sampling_variance(metric, counts["successes"].to_numpy(), counts["samples"].to_numpy(), k)
            error = float(np.sqrt(max(variances.sum(), 0.0)) / questions)
        found.append(
            Score(
                name=f"{metric}_at_{k}",
                value=value,
                standard_error=None if certain else _standard_error(values),
                sampling_error=error,
                questions=questions,
                interval=wilson_interval(value, questions) if certain else None,
                sampling_interval=wilson_interval(value, trials) if certain else None,
            )
        )
    return found


def differences(ours: pl.DataFrame, theirs: pl.DataFrame, ks: Sequence[int]) -> list[Score]:
    """Return the mean differences between two policies on the questions that both answered, ours minus theirs.

    Pairing removes the variation that both share: the standard error is that of the differences.
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
        found.append(
            Score(
                name=f"{metric}_at_{k}",
                value=float((mine - other_values).mean()),
                standard_error=None if interval else _standard_error(mine - other_values),
                sampling_error=None,
                questions=len(mine),
                interval=interval,
            )
        )
    return found


def usual_samples(counts: pl.DataFrame) -> int:
    """Return the most frequent number of responses per question; the larger one in a tie."""
    frequent = counts.group_by("samples").len().sort("len", "samples")
    return int(frequent["samples"][-1])


def _estimates(counts: pl.DataFrame, ks: Sequence[int]) -> list[tuple[str, int, NDArray[np.float64]]]:
    right, samples = counts["successes"].to_numpy(), counts["samples"].to_numpy()
    return [(metric, k, estimate(right, samples, k)) for k in ks for metric, estimate in METRICS.items()]


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


def avg_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Expected mean reward of k responses (avg@k): successes / samples, for any k.

    Args:
        successes: Responses with reward 1, per problem.
        samples: Responses sampled, per problem.
        k: Number of responses drawn; at most ``samples``.

    Returns:
        One value per problem.

    Raises:
        RolloutError: k is below 1 or above a problem's samples, or successes lie outside 0..samples.
    """
    c, m = _checked(successes, samples, k)
    return np.asarray(c / m, dtype=np.float64)


def best_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that at least one of k responses is right: 1 − C(m−c, k) / C(m, k) (pass@k); see ``avg_at_k``."""
    c, m = _checked(successes, samples, k)
    return 1.0 - _all_of(m - c, m, k)


def worst_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that all of k responses are right: C(c, k) / C(m, k) (pass^k); see ``avg_at_k``."""
    c, m = _checked(successes, samples, k)
    return _all_of(c, m, k)


METRICS = {"avg": avg_at_k, "best": best_at_k, "worst": worst_at_k}


def sampling_variance(metric: str, successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased estimate of the sampling variance of an estimate, for a fixed question.

    The estimators are means over all draws of k responses, U, and Var U = E U² − θ². Two disjoint draws of k give an
    unbiased estimate of θ², which for a success in every draw is that of 2k responses: C(c, 2k) / C(m, 2k). A single
    estimate may be negative; use the mean over many questions.

    Args:
        samples: Responses sampled, per problem: at least 2 for ``avg``, and at least 2k for the others.

    The other arguments, and the return value, are those of the estimators.
    """
    drawn = 1 if metric == "avg" else k
    c, m = _checked(successes, samples, 2 * drawn)
    right = m - c if metric == "best" else c
    return np.asarray(_all_of(right, m, drawn) ** 2 - _all_of(right, m, 2 * drawn), dtype=np.float64)


def wilson_interval(rate: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, which also has a width at 0 and 1, where √(p(1 − p)/N) is 0.

    Its ends are the p with |rate − p| = z·√(p(1 − p)/N), z = 1.96 (Wilson, JASA 22, 1927).
    """
    shrinkage = Z**2 / trials
    middle = (rate + shrinkage / 2) / (1 + shrinkage)
    half = (shrinkage * (rate * (1 - rate) + shrinkage / 4)) ** 0.5 / (1 + shrinkage)
    # Rounding must not exclude the proportion itself.
    return max(min(middle - half, rate), 0.0), min(max(middle + half, rate), 1.0)


def proportion_error(rate: float, trials: int) -> float:
    """Standard error of a proportion: √(p(1 − p)/N), or at 0 and 1 the one for the width of Wilson's interval."""
    if 0 < rate < 1:
        return float((rate * (1 - rate) / trials) ** 0.5)
    lowest, highest = wilson_interval(rate, trials)
    return (highest - lowest) / (2 * Z)


def _checked(successes: ArrayLike, samples: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    c, m = np.broadcast_arrays(np.asarray(successes, dtype=np.int64), np.asarray(samples, dtype=np.int64))
    if k < 1 or (m.size and k > m.min()):
        raise RolloutError(f"k is {k}; it must lie between 1 and the {m.min() if m.size else 1} samples")
    if (c < 0).any() or (c > m).any():
        raise RolloutError("successes must lie between 0 and the samples")
    return c, m


def _all_of(c: NDArray[np.int64], m: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """C(c, k) / C(m, k) as a product of k factors; exactly 0 for c < k."""
    result = np.ones(c.shape, dtype=np.float64)
    for i in range(k):
        result *= np.maximum(c - i, 0) / (m - i)
    return result


def without_unusable(problems: pl.DataFrame, scorer: Scorer) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Separate problems from those that cannot be scored, whatever the response, as their rule or its library reports.

    The problem's own answer is scored, and any score will do. A user function is not called, but its metadata must be
    readable.

    Returns:
        The problems that can be scored, in order, and the others with the ``reason`` (``DROPPED``).

    Raises:
        RolloutError: No problem can be scored, or a rule is unknown or refused.
    """
    scorer.check(problems["verifier"].unique().to_list())
    columns = (problems["verifier"].to_list(), problems["answer"].to_list(), metadata_of(problems))
    reasons: list[str | None] = [None] * len(problems)
    futures: dict[int, Future[list[Verdict]]] = {}
    for row, (name, answer, note) in enumerate(zip(*columns, strict=True)):
        if not rule(name).base.startswith("python:"):
            rule_name, response = own_response(name, answer)
            item = Item(verifier=rule_name, response=response, answer=answer, metadata=note)
            futures[row] = scorer.submit([item], hold=True)
        elif note:
            try:
                decode_metadata(note, where=name)
            except RolloutError as error:
                reasons[row] = str(error)
    scorer.flush()
    for row, future in futures.items():
        try:
            future.result()
        except ProblemError as error:
            reasons[row] = str(error)
    marked = problems.with_columns(reason=pl.Series(reasons, dtype=pl.String))
    dropped = marked.filter(pl.col("reason").is_not_null()).select(*DROPPED)
    if len(dropped) == len(problems) and len(problems):
        raise RolloutError(
            f"none of the {len(problems)} problems can be scored, such as {dropped['problem_id'][0]}, since "
            f"{dropped['reason'][0]}"
        )
    return marked.filter(pl.col("reason").is_null()).drop("reason"), dropped


def with_pass_rates(problems: pl.DataFrame, rollouts: pl.DataFrame, *, fresh: bool = False) -> pl.DataFrame:
    """Add ``pass_rate`` and ``pass_rate_samples`` (avg@m over the m responses) to the answered problems, by id.

    Responses that select problems never measure them: they overstate how well the selected problems fit the interval
    (regression to the mean). Fresh responses do not; they add ``fresh_pass_rate`` and ``fresh_pass_rate_samples``.
    """
    wrong = "difficulty" if fresh else "baseline"
    if "phase" in rollouts.columns and (rollouts["phase"] == wrong).any():
        why = "selected problems, and fresh ones are needed" if fresh else "measure problems already selected"
        raise RolloutError(f"the rollouts are of phase {wrong}; they {why}")
    name = "fresh_pass_rate" if fresh else "pass_rate"
    rates = successes(rollouts).select(
        "problem_id", (pl.col("successes") / pl.col("samples")).alias(name), pl.col("samples").alias(f"{name}_samples")
    )
    return problems.drop(name, f"{name}_samples", strict=False).join(rates, on="problem_id").sort("problem_id")


@settings(RolloutError)
class DifficultySplit:
    """A set of problems selected by pass rate."""

    name: str = ""
    """Name of the set, such as ``easy``; in settings it is the key."""
    lowest: Share
    """Smallest pass rate."""
    highest: Share
    """Largest pass rate."""
    train: Count
    """Training problems."""
    validation: Count = 300
    """Validation problems."""

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise RolloutError(
                f"lowest is {self.lowest}, and highest is {self.highest}: an interval within 0 to 1 is needed"
            )


def split(problems: pl.DataFrame, wanted: DifficultySplit, *, min_samples: int = 1) -> pl.DataFrame:
    """Select the problems of a set, ``train`` and ``validation``.

    Problems stay on the side for which they were generated. Each side takes the smallest values of ``problem_id``,
    which is a hash, so the choice is arbitrary but fixed.
    """
    found = inside(problems, lowest=wanted.lowest, highest=wanted.highest, min_samples=min_samples)
    parts = []
    for side, count in (("train", wanted.train), ("validation", wanted.validation)):
        candidates = found.filter(pl.col("split") == side)
        if len(candidates) < count:
            total = len(problems.filter(pl.col("split") == side))
            mean = float(problems["pass_rate"].to_numpy().mean())
            advice = "generate other ones (easier or harder), or move the interval to where problems are"
            if len(candidates):
                needed = int(np.ceil(1.1 * count * total / len(candidates) / 100)) * 100
                advice = f"generate about {needed:,} {side} problems, widen the interval, or make the set smaller"
            raise RolloutError(
                f"{f'the set {wanted.name}'.strip()} needs {count} {side} problems with a pass rate from "
                f"{wanted.lowest:g} to {wanted.highest:g}, and {len(candidates)} of {total} measured ones have it (the "
                f"mean pass rate is {mean:.2f}): {advice}"
            )
        parts.append(candidates.head(count))
    return pl.concat(parts).sort("problem_id")


def inside(problems: pl.DataFrame, *, lowest: float, highest: float, min_samples: int = 1) -> pl.DataFrame:
    """Return the problems with a pass rate in an interval.

    A pass rate of 0 after m responses is a bound, not a zero: with 95 % confidence the true rate is below 3 / m.
    """
    if not 0 <= lowest <= highest <= 1:
        raise RolloutError(f"pass rates from {lowest} to {highest} are asked for; an interval within 0 to 1 is needed")
    if min_samples < 1:
        raise RolloutError(f"min_samples is {min_samples}; it must be at least 1")
    if min_samples > 1:
        counted = "pass_rate_samples" in problems.columns
        most = int(problems["pass_rate_samples"].fill_null(0).to_numpy().max()) if counted else 0
        if most < min_samples:
            raise RolloutError(
                f"problems measured {min_samples} times are asked for, and the most that any was is {most}: measure "
                f"with `difficulty --samples {min_samples}`"
            )
        problems = problems.filter(pl.col("pass_rate_samples") >= min_samples)
    return problems.filter(pl.col("pass_rate").is_between(lowest, highest)).sort("problem_id")


def histogram(problems: pl.DataFrame, *, bins: int = 16) -> pl.DataFrame:
    """Count problems by pass rate, in intervals of equal width from 0 to 1 (IsoCompute Playbook, figure 2)."""
    counts, edges = np.histogram(problems["pass_rate"].to_numpy(), bins=bins, range=(0.0, 1.0))
    return pl.DataFrame({"lowest": edges[:-1], "highest": edges[1:], "problems": counts})
