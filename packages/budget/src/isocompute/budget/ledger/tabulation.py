"""Sums of charges as the ``ledger`` table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .counts import COHORTS

if TYPE_CHECKING:
    import polars as pl

COUNTED = ("rollouts", "prompt_tokens", "response_tokens")
"""Columns of the ``ledger`` table that count."""


def ledger_table(run_id: str, rows: Iterable[tuple[int, ...]], *, by_attempt: bool = False) -> pl.DataFrame:
    """Sum charges up into the ``ledger`` table, sorted by its key.

    Args:
        rows: Step, place of the cohort in ``COHORTS``, attempt, rollouts, prompt tokens, response tokens.
        by_attempt: Whether attempts are kept apart, in a further column ``attempt``.

    Returns:
        The table; without rows when there are none.
    """
    import polars as pl

    from ..contract import tables

    extra = ["attempt"] if by_attempt else []
    keys = ["run_id", "step", "cohort", *extra]
    types = pl.Schema({column.name: column.dtype() for column in tables.schema("ledger").columns})
    names = ("step", "code", "attempt", *COUNTED)
    frame = pl.DataFrame(list(rows), schema=dict.fromkeys(names, pl.Int64), orient="row")
    cohorts = pl.col("code").replace_strict(range(len(COHORTS)), COHORTS, return_dtype=pl.String)
    return (
        frame.group_by("step", "code", *extra)
        .agg(pl.col(COUNTED).sum())
        .with_columns(cohorts.alias("cohort"), pl.lit(run_id).alias("run_id"))
        .sort(keys)
        .select([*types, *extra])
        .cast(types)
    )
