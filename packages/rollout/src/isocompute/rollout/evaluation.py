"""One evaluation of a policy: avg, best and worst of k on fixed questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from .estimators import avg_at_k, best_at_k, worst_at_k


class Sampler(Protocol):
    """Anything that answers problems; see ``samplers``."""

    def sample(
        self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, phase: str, run_id: str
    ) -> pl.DataFrame:
        """Return a ``rollouts`` table."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """What one evaluation found.

    Attributes:
        metrics: ``avg_at_k``, ``best_at_k`` and ``worst_at_k``, means over the questions.
        rollouts: The responses behind them.
        pass_rates: ``problem_id``, ``successes``, ``samples``.
        questions: Problems evaluated.
        samples: Responses per problem, k.
    """

    metrics: Mapping[str, float]
    rollouts: pl.DataFrame
    pass_rates: pl.DataFrame
    questions: int
    samples: int


def evaluate(
    sampler: Sampler, problems: pl.DataFrame, *, samples: int, seed: int, at: int, run_id: str
) -> EvaluationResult:
    """Answer every problem ``samples`` times and score the answers.

    Args:
        sampler: The policy.
        problems: A ``problems`` table.
        samples: Responses per problem, k.
        seed: Seed of the run.
        at: Cumulative rollouts trained on, which the sampling seeds depend on: at one point of the grid,
            runs of one seed share them, whatever their n.
        run_id: The run.
    """
    rollouts = sampler.sample(problems, samples=samples, seed=seed, step=at, phase="eval", run_id=run_id)
    rates = successes(rollouts)
    counts: Any = (rates["successes"].to_numpy(), rates["samples"].to_numpy(), samples)
    return EvaluationResult(
        metrics={
            f"avg_at_{samples}": float(avg_at_k(*counts).mean()),
            f"best_at_{samples}": float(best_at_k(*counts).mean()),
            f"worst_at_{samples}": float(worst_at_k(*counts).mean()),
        },
        rollouts=rollouts,
        pass_rates=rates,
        questions=len(rates),
        samples=samples,
    )


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
