"""Problems from the user's own JSONL or Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from ..errors import RolloutError
from ..scoring import metadata
from .candidates import Candidate
from .sources import LocalSource


def candidates(source: LocalSource) -> Iterator[Candidate]:
    """Yield each row, in shuffled order.

    Raises:
        RolloutError: The file is missing or unreadable, or it lacks a column or a value.
    """
    path = Path(source.path)
    if not path.is_file():
        raise RolloutError(f"{path}: no such file of problems")
    if path.suffix not in {".jsonl", ".parquet"}:
        raise RolloutError(f"{path}: problems are read from a .jsonl or a .parquet file")
    try:
        frame = pl.read_ndjson(path) if path.suffix == ".jsonl" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise RolloutError(
            f"{path}: not readable as {path.suffix[1:]} ({str(error).strip().splitlines()[0]})"
        ) from None
    needed = (source.prompt, source.answer)
    for column in (*needed, *filter(None, [source.metadata])):
        if column not in frame.columns:
            raise RolloutError(f"{path}: there is no column {column} (it has {', '.join(frame.columns)})")
    for column in needed:
        nulls = frame[column].is_null().arg_true()
        if len(nulls):
            raise RolloutError(f"{path}: row {nulls[0] + 1} has no {column}")
    besides = pl.col(source.metadata) if source.metadata else pl.lit("")
    shuffled = frame.select(
        prompt=pl.col(source.prompt).cast(pl.String), answer=pl.col(source.answer).cast(pl.String), besides=besides
    ).sample(fraction=1.0, shuffle=True, seed=source.seed)
    for prompt, answer, value in shuffled.iter_rows():
        context = metadata.from_column(value, where=source.name)
        yield Candidate(prompt=prompt, answer=answer, verifier=source.verifier, metadata=context)
