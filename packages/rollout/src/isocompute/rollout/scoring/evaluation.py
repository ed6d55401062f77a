"""One evaluation of a policy: avg, best and worst of k on fixed questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from ..errors import RolloutError
from .estimators import avg_at_k, best_at_k, worst_at_k

ROUNDS = 3
"""Times that the policy is asked for a question's responses, the first included."""
LARGEST_LEFT_OUT_SHARE = 0.1
"""Share of the questions that may still lack responses after these rounds."""


class Sampler(Protocol):
    """Anything that answers problems, as those of ``samplers`` do."""

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
        """Return a ``rollouts`` table.

        Args:
            step: Cumulative rollouts trained on.
            first_sample: Index of a problem's first response; given only where earlier responses were aborted.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """What one evaluation found.

    Attributes:
        metrics: ``avg_at_k``, ``best_at_k`` and ``worst_at_k``, means over the questions.
        rollouts: The ``rollouts`` table behind them, aborted responses included.
        pass_rates: ``problem_id``, ``successes``, ``samples``: the completed responses of every problem.
        questions: Number of problems with at least k completed responses; the metrics are means over these.
    """

    metrics: Mapping[str, float]
    rollouts: pl.DataFrame
    pass_rates: pl.DataFrame
    questions: int
    samples: int


def evaluate(
    sampler: Sampler, problems: pl.DataFrame, *, samples: int, seed: int, at: int, run_id: str, phase: str = "eval"
) -> EvaluationResult:
    """Answer every problem ``samples`` times and score the answers.

    Aborted responses are sampled again, at most twice, under new sample indices. A problem that still lacks some is
    left out of the metrics; the estimators use all completed responses.

    Args:
        samples: Responses per problem, k.
        at: Cumulative rollouts trained on. The sampling seeds depend on it: at one point of the grid, runs of one
            seed share them, whatever their n.
        phase: What the responses are for; their seeds depend on it, too.

    Returns:
        Metrics, responses and pass rates.

    Raises:
        RolloutError: More than a tenth of the problems lack responses.
    """
    rollouts = sample_completed(
        sampler, problems, samples=samples, seed=seed, step=at, phase=phase, run_id=run_id
    )  # fmt: skip
    left_out = len(lacking(problems, rollouts, samples))
    if left_out > LARGEST_LEFT_OUT_SHARE * len(problems):
        raise RolloutError(
            f"{left_out} of {len(problems)} questions have fewer than {samples} responses after {ROUNDS} rounds, since "
            "the rest were aborted: the engine fails too often to measure anything"
        )
    rates = successes(rollouts)
    complete = rates.filter(pl.col("samples") >= samples)
    counts: Any = (complete["successes"].to_numpy(), complete["samples"].to_numpy(), samples)
    return EvaluationResult(
        metrics={
            f"avg_at_{samples}": float(avg_at_k(*counts).mean()),
            f"best_at_{samples}": float(best_at_k(*counts).mean()),
            f"worst_at_{samples}": float(worst_at_k(*counts).mean()),
        },
        rollouts=rollouts,
        pass_rates=rates,
        questions=len(complete),
        samples=samples,
    )


def sample_completed(sampler: Sampler, problems: pl.DataFrame, *, samples: int, **asked: Any) -> pl.DataFrame:
    """Answer every problem ``samples`` times, and ask again, at most twice, where responses were aborted.

    Args:
        **asked: The other arguments of ``Sampler.sample``: ``seed``, ``step``, ``phase`` and ``run_id``.

    Returns:
        A ``rollouts`` table, aborted responses included; what was asked again has new sample indices.
    """
    rollouts = sampler.sample(problems, samples=samples, **asked)
    first_sample = samples
    for _ in range(ROUNDS - 1):
        again = lacking(problems, rollouts, samples)
        if again.is_empty():
            break
        # As many for each as for the one that lacks most, so that their sample indices stay the same.
        more = int(again["lacks"].to_numpy().max())
        retried = sampler.sample(again.drop("lacks"), samples=more, first_sample=first_sample, **asked)
        rollouts = pl.concat([rollouts, retried]).sort("problem_id", "sample")
        first_sample += more
    return rollouts


def lacking(problems: pl.DataFrame, rollouts: pl.DataFrame, samples: int) -> pl.DataFrame:
    """Return the problems with fewer completed responses than asked for, with the number that each ``lacks``.

    Args:
        samples: Responses asked for per problem.
    """
    completed = successes(rollouts).select("problem_id", completed=pl.col("samples").cast(pl.Int64))
    counted = problems.join(completed, on="problem_id", how="left", maintain_order="left")
    lacks = samples - pl.col("completed").fill_null(0)
    return counted.with_columns(lacks=lacks).drop("completed").filter(pl.col("lacks") > 0)


def successes(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Count right answers per problem, aborted responses left out.

    Right is a reward of exactly 1. With a length penalty the rewards of phase ``train`` are less for right responses
    that are long: ``score`` writes them without penalty.

    Args:
        rollouts: A ``rollouts`` table, of which ``problem_id``, ``reward`` and ``finish_reason`` are read.

    Returns:
        ``problem_id``, ``successes`` i32, ``samples`` i32, sorted by problem.
    """
    return (
        rollouts.filter(pl.col("finish_reason") != "aborted")
        .group_by("problem_id")
        .agg(
            (pl.col("reward") == 1).sum().cast(pl.Int32).alias("successes"),
            pl.len().cast(pl.Int32).alias("samples"),
        )
        .sort("problem_id")
    )
