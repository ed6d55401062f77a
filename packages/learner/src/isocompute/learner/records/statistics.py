"""What the responses of a step were like, and the advantages that were learnt from."""

from __future__ import annotations

import numpy as np
import polars as pl

from .steps import AdvantageStatistics, ResponseStatistics


def response_statistics(batch: pl.DataFrame) -> ResponseStatistics | None:
    """Describe the completed responses of a step.

    Four responses of 2, 4, 6 and 8 tokens with rewards 1, 0, 0 and 0, the last one cut off, in one group: a reward of
    0.25, a ``reward_std`` of 0.5, a ``response_length`` of 5, at most 8, and a ``truncated_share`` of 0.25.

    Args:
        batch: A ``rollouts`` table with the columns ``cohort`` and ``zero_variance`` of ``with_cohorts``.

    Returns:
        The statistics, or None where every response failed.
    """
    completed = batch.filter(pl.col("cohort") != "failed")
    if not len(completed):
        return None
    deviations = completed.group_by("problem_id", maintain_order=True).agg(pl.col("reward").cast(pl.Float64).std())
    lengths = completed["response_ids"].list.len().to_numpy()
    return ResponseStatistics(
        reward=float(completed["reward"].to_numpy().mean()),
        # A group of one has no deviation.
        reward_std=float(deviations["reward"].fill_null(0.0).to_numpy().mean()),
        zero_variance_share=_of_groups(completed),
        response_length=float(lengths.mean()),
        truncated_share=_share(completed, pl.col("finish_reason") == "length"),
        interrupted_share=_share(completed, ~pl.col("sampled").list.all()) if "sampled" in batch.columns else 0.0,
        score_error_share=_share(completed, pl.col("score_error").is_not_null())
        if "score_error" in batch.columns
        else 0.0,
        response_length_max=int(lengths.max()),
        sampled_entropy=_sampled_entropy(completed),
    )


def advantage_statistics(trained: pl.DataFrame) -> AdvantageStatistics | None:
    """Describe the advantages that a step is learnt from.

    Args:
        trained: Responses with a column ``advantage``, or with a list column ``advantages`` of one per token.

    Returns:
        The statistics, or None where there is no advantage.
    """
    column = trained["advantages"].explode() if "advantages" in trained.columns else trained["advantage"]
    values = column.drop_nulls().to_numpy().astype(np.float64)
    if not len(values):
        return None
    return AdvantageStatistics(advantage=float(values.mean()), advantage_std=float(values.std()))


def _sampled_entropy(responses: pl.DataFrame) -> float | None:
    """−mean log-probability of the tokens that were sampled; None where there is none."""
    if "logprobs" not in responses.columns:
        return None
    given = responses.select("logprobs", *(["sampled"] if "sampled" in responses.columns else []))
    given = given.filter(pl.col("logprobs").list.len() > 0)
    scores = given["logprobs"].explode()
    if "sampled" in given.columns and len(given):
        throughout = pl.lit(True).repeat_by(pl.col("logprobs").list.len())
        marks = given.select(sampled=pl.coalesce("sampled", throughout))["sampled"].explode()
        if len(marks) == len(scores):
            scores = scores.filter(marks.fill_null(value=False))
    return -float(scores.to_numpy().mean(dtype=np.float64)) if len(scores) else None


def _of_groups(completed: pl.DataFrame) -> float | None:
    """Share of the responses of groups of two or more whose group has equal rewards; None where there is no such group.

    A group of one always has.
    """
    grouped = completed.filter(pl.col("problem_id").is_duplicated())
    return float(grouped["zero_variance"].to_numpy().mean()) if len(grouped) else None


def _share(responses: pl.DataFrame, condition: pl.Expr) -> float:
    """Share of responses that fulfil a condition; one that is unknown does not."""
    return float(responses.select(condition.fill_null(value=False).cast(pl.Float64).mean()).item())
