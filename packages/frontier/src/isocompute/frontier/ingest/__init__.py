"""Runs of other frameworks as ``evals`` tables: each adapter knows how its framework counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from .. import tables
from ..errors import FrontierError
from . import openrlhf, prime_rl, trl, verl
from .history import Run, read_config, read_runs
from .settings import Settings

ADAPTERS = {"verl": verl.rows, "trl": trl.rows, "openrlhf": openrlhf.rows, "prime-rl": prime_rl.rows}

__all__ = ["ADAPTERS", "Run", "Settings", "ingest"]


def ingest(
    framework: str,
    sources: Sequence[str],
    *,
    config: Path | None = None,
    constants: Mapping[str, str] | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Turn another framework's logs into an ``evals`` table.

    Args:
        framework: ``verl``, ``trl``, ``openrlhf`` or ``prime-rl``.
        sources: Logs of one run each (a file, or a folder that holds one), ``runs:/ID``, or
            ``mlflow:EXPERIMENT`` for all runs of an experiment.
        config: The runs' configuration, where the logs do not hold it.
        constants: What neither says, such as ``questions``; goes before what they say.

    Returns:
        The table, and notes on what was assumed or is biased.

    Raises:
        FrontierError: The framework is unknown, a source cannot be read or holds no evaluation, or something
            needed is nowhere to be found; its name is in the message.
    """
    if framework not in ADAPTERS:
        raise FrontierError(f"there is no adapter for {framework!r}; there are {', '.join(ADAPTERS)}")
    shared = read_config(config) if config else {}
    parts, notes = [], []
    for source in sources:
        for run in read_runs(source):
            settings = Settings(run.name, {**run.config, **shared}, constants or {})
            found, said = ADAPTERS[framework](run, settings)
            if not found:
                raise FrontierError(f"{run.name}: holds no evaluation that {framework} would have logged")
            parts.append(pl.DataFrame(found))
            notes += [note for note in said if note not in notes]
    frame = pl.concat(parts, how="diagonal")
    return tables.check(frame, "evals", where=", ".join(sources)), notes
