"""What every command ends with: the table it made, written to a file and logged to MLflow on request."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ..contract import tables

SOURCE = "a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID"
"""What a command reads a table from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A table that a command made.

    Attributes:
        name: Which table it is.
        table: Its rows.
        summary: What it holds, in a few words.
        metrics: Figures to log with it.
        sources: Tables it was made from: their names and where they were read from.
        params: Settings to log with it.
    """

    name: str
    table: pl.DataFrame
    summary: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


def rewarded(rollouts: pl.DataFrame, **details: Any) -> Output:
    """Return a ``rollouts`` table as output, with its mean reward.

    Args:
        rollouts: The table.
        **details: Further fields of ``Output``.
    """
    mean = float(rollouts["reward"].to_numpy().mean())
    return Output(
        name="rollouts", table=rollouts, summary=f"{len(rollouts):,} rollouts, mean reward {mean:.3f}",
        metrics={"mean_reward": mean}, **details,
    )  # fmt: skip


def add_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags that say where the table goes."""
    command.add_argument("--out", required=True, type=Path, help="the .parquet or .csv file to write")
    command.add_argument("--log", metavar="EXPERIMENT", help="also log the table to MLflow (MLFLOW_TRACKING_URI)")


def deliver(arguments: argparse.Namespace, make: Callable[[argparse.Namespace], Output]) -> Iterator[str]:
    """Make a table, write it to ``--out`` and log it to ``--log``.

    Args:
        arguments: The command's arguments.
        make: Makes the table of the command from its arguments.

    Yields:
        Lines to print.

    Raises:
        IsoComputeError: The table cannot be made, written or logged.
    """
    if arguments.log:
        # A store that does not answer should be known before the work, not after it.
        from ..contract import tracking

        tracking.ensure_store()
    output = make(arguments)
    tables.write(output.table, output.name, arguments.out)
    yield f"{output.summary}, in {arguments.out}"
    if arguments.log:
        yield f"logged as runs:/{_log(arguments, output)}"


def _log(arguments: argparse.Namespace, output: Output) -> str:
    """Log the table and return the run's id."""
    from ..contract import tracking

    files = {name: Path(source) for name, source in output.sources.items() if Path(source).is_file()}
    return tracking.log_artifacts(
        arguments.log,
        {output.name: arguments.out},
        run_name=arguments.command,
        params={**output.params, **{f"source_{name}": source for name, source in output.sources.items()}},
        metrics=output.metrics,
        inputs=files,
    )
