"""One evaluation of a policy: avg, best and worst of k on fixed questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from .errors import RolloutError
from .estimators import avg_at_k, best_at_k, worst_at_k

ROUNDS = 3
"""Times a question is asked for the responses that it lacks, the first included."""
MOST_LEFT_OUT = 0.1
"""Share of the questions that may lack responses after that."""


class Sampler(Protocol):
    """Anything that answers problems; see ``samplers``."""

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
        """Return a ``rollouts`` table; ``first_sample`` is given only where responses were aborted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """What one evaluation found.

    Attributes:
        metrics: ``avg_at_k``, ``best_at_k`` and ``worst_at_k``, means over the questions.
        rollouts: The responses behind them, those that were aborted among them.
        pass_rates: ``problem_id``, ``successes``, ``samples``: what was completed, of every problem.
        questions: Problems with at least k completed responses, which the metrics are of.
        samples: Responses per problem, k.
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

    Responses that were aborted are tried again, twice at most, under new sample indices. A problem that still lacks
    some is left out of the metrics; the estimators take all that was completed.

    Args:
        sampler: The policy.
        problems: A ``problems`` table.
        samples: Responses per problem, k.
        seed: Seed of the run.
        at: Cumulative rollouts trained on, which the sampling seeds depend on: at one point of the grid,
            runs of one seed share them, whatever their n.
        run_id: The run.
        phase: What the responses are for, which their seeds depend on, too.

    Raises:
        RolloutError: More than a tenth of the problems lack responses.
    """
    asked: dict[str, Any] = {"seed": seed, "step": at, "phase": phase, "run_id": run_id}
    rollouts = sampler.sample(problems, samples=samples, **asked)
    given = samples
    for _ in range(ROUNDS - 1):
        lacking = _lacking(problems, rollouts, samples)
        if lacking.is_empty():
            break
        # All of them as often as the one that lacks most, so that their counts go on together.
        more = int(lacking["lacks"].to_numpy().max())
        again = sampler.sample(lacking.drop("lacks"), samples=more, first_sample=given, **asked)
        rollouts = pl.concat([rollouts, again]).sort("problem_id", "sample")
        given += more
    left_out = len(_lacking(problems, rollouts, samples))
    if left_out > MOST_LEFT_OUT * len(problems):
        raise RolloutError(
            f"{left_out} of {len(problems)} questions have fewer than {samples} responses after {ROUNDS} rounds, since "
            "the rest were aborted: the engine fails too often to measure anything"
        )
    rates = successes(rollouts)
    whole = rates.filter(pl.col("samples") >= samples)
    counts: Any = (whole["successes"].to_numpy(), whole["samples"].to_numpy(), samples)
    return EvaluationResult(
        metrics={
            f"avg_at_{samples}": float(avg_at_k(*counts).mean()),
            f"best_at_{samples}": float(best_at_k(*counts).mean()),
            f"worst_at_{samples}": float(worst_at_k(*counts).mean()),
        },
        rollouts=rollouts,
        pass_rates=rates,
        questions=len(whole),
        samples=samples,
    )


def _lacking(problems: pl.DataFrame, rollouts: pl.DataFrame, samples: int) -> pl.DataFrame:
    """Problems with fewer completed responses than asked for, with the number that each ``lacks``."""
    done = successes(rollouts).select("problem_id", done=pl.col("samples").cast(pl.Int64))
    counted = problems.join(done, on="problem_id", how="left", maintain_order="left")
    return counted.with_columns(lacks=samples - pl.col("done").fill_null(0)).drop("done").filter(pl.col("lacks") > 0)


def successes(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Count right answers per problem: ``problem_id``, ``successes`` i32, ``samples`` i32; aborted ones left out."""
    return (
        rollouts.filter(pl.col("finish_reason") != "aborted")
        .group_by("problem_id")
        .agg(
            (pl.col("reward") == 1).sum().cast(pl.Int32).alias("successes"),
            pl.len().cast(pl.Int32).alias("samples"),
        )
        .sort("problem_id")
    )
