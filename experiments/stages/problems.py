"""Make the ``problems`` table of all sources."""

from __future__ import annotations

import json

import polars as pl
from isocompute.rollout import Loaded, load_checked
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.problems.candidates import problem_id

from ..settings import Preset
from ..settings.model import AnySource
from ..tiny import mixture, needle
from ..tiny.config import MixtureSource, NeedleSource, TinySource
from .base import FOLDER
from .shared import log


def make(preset: Preset) -> pl.DataFrame:
    """Write the problems, and beside them those that were dropped since their own answer is not scored right."""
    parts = [_loaded(source) for source in preset.problems]
    # Sources may overlap; a training problem must not be a validation problem elsewhere.
    same = pl.col("prompt").str.to_lowercase().str.split(" ").list.join("")
    table = pl.concat([part.problems for part in parts], how="diagonal_relaxed")
    table = table.sort("split", "problem_id", descending=[True, False]).unique(same, keep="first")
    dropped = [row for part in parts for row in part.dropped.to_dicts()]
    path = tables.write(table, "problems", FOLDER / "problems.parquet")
    listed = write_text(FOLDER / "dropped.json", json.dumps(dropped, indent=1, sort_keys=True) + "\n")
    count = table.group_by("split").len().sort("split")
    print(f"problems: {', '.join(f'{n} {side}' for side, n in count.iter_rows())} in {path}")
    if dropped:
        print(f"problems: {len(dropped)} dropped, whose own answer is not scored right; they are listed in {listed}")
    metrics = {str(side): int(n) for side, n in count.iter_rows()} | {"dropped": len(dropped)}
    log(preset, "problems", {"problems": path, "dropped": listed}, metrics=metrics)
    return tables.read(path, "problems")


def _loaded(source: AnySource) -> Loaded:
    if isinstance(source, TinySource):
        return Loaded(problems=table_of(source), dropped=pl.DataFrame())
    return load_checked(source)


def table_of(source: NeedleSource | MixtureSource) -> pl.DataFrame:
    """The problems of a source that this repository makes; the same source gives the same."""
    rows = needle.problems(source) if isinstance(source, NeedleSource) else mixture.problems(source)
    frame = pl.DataFrame(list(rows), schema=["split", "prompt", "answer", "verifier"], orient="row")
    frame = frame.with_columns(
        problem_id=pl.Series([problem_id(source.name, prompt) for prompt in frame["prompt"]], dtype=pl.String),
        source=pl.lit(source.name),
        metadata=pl.lit(""),
    )
    columns = ["problem_id", "prompt", "answer", "verifier", "source", "split", "metadata"]
    return tables.check(frame.select(columns), "problems", where=source.name)
