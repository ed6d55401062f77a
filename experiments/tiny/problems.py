"""The ``problems`` table of a task of this folder."""

from __future__ import annotations

import polars as pl
from isocompute.rollout.contract import tables
from isocompute.rollout.problems.candidates import problem_id

from . import mixture, needle
from .config import MixtureSource, NeedleSource


def table(source: NeedleSource | MixtureSource) -> pl.DataFrame:
    """Make the problems of a source; the same source gives the same."""
    made = needle.problems(source) if isinstance(source, NeedleSource) else mixture.problems(source)
    frame = pl.DataFrame(list(made), schema=["split", "prompt", "answer", "verifier"], orient="row")
    frame = frame.with_columns(
        problem_id=pl.Series([problem_id(source.name, prompt) for prompt in frame["prompt"]], dtype=pl.String),
        source=pl.lit(source.name),
        metadata=pl.lit(""),
    )
    columns = ["problem_id", "prompt", "answer", "verifier", "source", "split", "metadata"]
    return tables.check(frame.select(columns), "problems", where=source.name)
