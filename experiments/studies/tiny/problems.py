"""The problems of a tiny model's task as a table; those of chains are reasoning-gym's ``chain_sum``."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from isocompute.rollout.contract import tables
from isocompute.rollout.problems.sources import problem_id

from . import chains, needle
from .config import (
    ChainsModelConfig,
    MixtureModelConfig,
    MixtureSource,
    NeedleModelConfig,
    NeedleSource,
    TinyModelConfig,
)

MODELS: Mapping[str, type[ChainsModelConfig] | type[NeedleModelConfig]] = {
    "chains": ChainsModelConfig,
    "needle": NeedleModelConfig,
    "mixture": MixtureModelConfig,
}
"""The settings of each task's base model."""
SOURCES: Mapping[str, type[NeedleSource] | type[MixtureSource]] = {"needle": NeedleSource, "mixture": MixtureSource}
"""The settings of the problems of the tasks that have some of their own."""


def source_for(model: TinyModelConfig, **settings: int) -> NeedleSource | MixtureSource:
    """The source of the task that a base model is taught, with the model's own codes, digits and share."""
    kind = SOURCES[model.name]
    return kind.model_validate({**{name: getattr(model, name) for name in kind.taught}, **settings})


def table_of(source: NeedleSource | MixtureSource) -> pl.DataFrame:
    """The ``problems`` table of a source; the same source gives the same."""
    rows = needle.problems(source) if isinstance(source, NeedleSource) else chains.problems(source)
    frame = pl.DataFrame(list(rows), schema=["split", "prompt", "answer", "verifier"], orient="row")
    frame = frame.with_columns(
        problem_id=pl.Series([problem_id(source.name, prompt) for prompt in frame["prompt"]], dtype=pl.String),
        source=pl.lit(source.name),
        metadata=pl.lit(""),
    )
    columns = ["problem_id", "prompt", "answer", "verifier", "source", "split", "metadata"]
    return tables.check(frame.select(columns), "problems", where=source.name)
