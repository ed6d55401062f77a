"""A check that the rows of a file are one run: rows of several would be fitted as one curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from ..errors import FrontierError
from .files import read_file

IDENTITY = ("rollouts_per_problem", "problems_per_batch", "seed", "problem_set", "split", "run_id")
"""Columns of an ``evals`` table that tell runs apart."""
SHOWN = 5


def one_run(path: Path, x: str, y: str, where: Mapping[str, str]) -> None:
    """Refuse rows of several runs.

    Args:
        where: Only rows in which these columns hold these values.

    Raises:
        FrontierError: Runs differ in a column, or most values of compute occur more than once. Says which columns
            choose among the runs.
    """
    frame = read_file(path).filter(*[pl.col(name).cast(pl.String) == value for name, value in where.items()])
    others = [c for c in frame.columns if c not in (x, y)]
    several = [c for c in IDENTITY if c in others and frame[c].n_unique() > 1]
    repeated = frame.filter(pl.col(x).is_duplicated())
    if not several:
        # A name that many rows share, not a measurement, which differs from row to row.
        named = [c for c in others if 1 < frame[c].n_unique() <= len(frame) / 2]
        kinds = repeated.group_by(x).agg(pl.col(named).n_unique())
        several = [c for c in named if len(kinds) and (kinds[c] > 1).all()]
    if several:
        names = "; ".join(f"{c} = {_values(frame[c])}" for c in several)
        raise FrontierError(
            f"{path}: {len(frame)} rows belong to several runs ({names}): choose one with --where {several[0]}=VALUE"
        )
    if len(repeated) > len(frame) / 2:
        raise FrontierError(
            f"{path}: most values of {x} occur more than once, and no column tells runs apart: "
            "a forecast is of one run, so write each to a file of its own"
        )


def _values(column: pl.Series) -> str:
    distinct = column.cast(pl.String).unique(maintain_order=True).to_list()
    more = f", … ({len(distinct)})" if len(distinct) > SHOWN else ""
    return ", ".join(str(v) for v in distinct[:SHOWN]) + more
