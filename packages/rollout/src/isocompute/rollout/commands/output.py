"""Inputs and outputs of the commands: tables read from any source, written to files and logged to MLflow."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from .. import tracking
from ..contract import tables
from ..contract.errors import IsoComputeError
from ..contract.files import write_text
from ..contract.tracking import fetch, is_of_mlflow
from ..errors import RolloutError
from .store import Groups

SOURCE = "a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID"
"""Sources of a table, as a command describes them."""
TABLE_FILES, ROLLOUT_FILES, DOCUMENT_FILES = (".parquet", ".csv"), (".parquet",), (".json",)
"""File suffixes; a .csv file cannot hold lists of tokens."""
BESIDES = {"rollouts_out": ROLLOUT_FILES, "pass_rates": TABLE_FILES}
"""Flags that name additional tables to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table that a command read from an address, and the files read; for MLflow these are copies."""

    address: str
    table: pl.DataFrame
    files: Sequence[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output of a command.

    Attributes:
        name: Name of the table or document.
        lines: Lines printed before the summary.
        sources: Tables it was made from, by name.
        besides: Additional tables, each with its name and file.
        store: Store of unfinished work, no longer needed once this is written.
        dropped: Problems left out since they cannot be scored (``evaluation.without_unusable``); None: not applicable.
    """

    name: str
    summary: str
    table: pl.DataFrame | None = None
    document: Mapping[str, Any] | None = None
    lines: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    besides: Sequence[tuple[str, pl.DataFrame, Path]] = ()
    store: Groups | None = None
    dropped: pl.DataFrame | None = None


def read(address: str, name: str) -> Source:
    """Read a table from any source, and keep track of its files."""
    if is_of_mlflow(address):
        # Read the same files whose hashes are logged: an experiment may gain runs in between.
        files = fetch(address, name)
        try:
            table = tables.concat([tables.read(path, name) for path in files], name, where=address)
        except tables.TableError as error:
            message = str(error)
            for path in files:
                message = message.replace(str(path), f"{address} ({path.parent.name})")
            raise tables.TableError(message) from None
        return Source(address=address, table=table, files=files)
    path = Path(address)
    table = tables.read(path, name)
    return Source(address=address, table=table, files=[path] if path.is_file() else tables.files_of(path, name))


def rewarded(rollouts: pl.DataFrame, **details: Any) -> Output:
    """Return a ``rollouts`` table as output, with its mean reward and its faults."""
    mean = float(rollouts["reward"].to_numpy().mean())
    summary = ", ".join([f"{len(rollouts):,} rollouts", f"mean reward {mean:.3f}", *faults(rollouts)])
    return Output(name="rollouts", table=rollouts, summary=summary, metrics={"mean_reward": mean}, **details)


def faults(rollouts: pl.DataFrame) -> Iterator[str]:
    """Report how many responses were cut off, failed, or broke their verifiers, and why."""
    answered = rollouts.filter(pl.col("finish_reason") != "aborted")
    cut = int((answered["finish_reason"] == "length").sum())
    if cut:
        yield f"{cut / len(answered):.1%} cut off at the longest length"
    if len(answered) < len(rollouts):
        yield f"{len(rollouts) - len(answered):,} aborted{_reasons(rollouts, 'failure')}"
    errors = rollouts["score_error"].count() if "score_error" in rollouts.columns else 0
    if errors:
        yield f"{errors:,} score errors{_reasons(rollouts, 'score_error')}"


def _reasons(rollouts: pl.DataFrame, column: str, *, most: int = 3) -> str:
    """Return the most frequent values of a column, counted."""
    reasons = rollouts[column].drop_nulls() if column in rollouts.columns else pl.Series(dtype=pl.String)
    if reasons.is_empty():
        return ""
    counts = reasons.cast(pl.String).value_counts(sort=True, name="times").head(most)
    return ": " + "; ".join(f"{reason} ({times:,})" for reason, times in counts.iter_rows())


def add_flags(command: argparse.ArgumentParser, *, out: str = "the .parquet or .csv file to write") -> None:
    """Add the flags of the output."""
    command.add_argument("--out", required=True, type=Path, help=out)
    command.add_argument("--log", metavar="EXPERIMENT", help="also log it to MLflow (MLFLOW_TRACKING_URI)")


def check(arguments: argparse.Namespace) -> None:
    """Check before the work that files can be written and that the tracking store answers."""
    for name, allowed in {"out": getattr(arguments, "files", TABLE_FILES), **BESIDES}.items():
        path, flag = getattr(arguments, name, None), f"--{name.replace('_', '-')}"
        if path is not None and path.is_dir():
            raise RolloutError(f"{path}: {flag} is a folder, and must be a file")
        if path is not None and path.suffix not in allowed:
            raise RolloutError(f"{path}: {flag} must be a {' or a '.join(allowed)} file")
    if arguments.log:
        tracking.ensure_store()


def deliver(arguments: argparse.Namespace, output: Output) -> Iterator[str]:
    """Write an output to ``--out`` and log it to ``--log``; yield lines to print."""
    for name, table, path in output.besides:
        tables.write(table, name, path)
    if output.table is not None:
        tables.write(output.table, output.name, arguments.out)
    else:
        write_text(arguments.out, json.dumps(output.document, indent=2) + "\n")
    yield from output.lines
    if output.dropped is not None:
        listed = arguments.out.with_suffix(".dropped.json")
        listed.unlink(missing_ok=True)
        if len(output.dropped):
            write_text(listed, json.dumps(output.dropped.to_dicts(), indent=1) + "\n")
            row = output.dropped.row(0, named=True)
            yield (
                f"{len(output.dropped):,} problems dropped that cannot be scored, such as {row['problem_id']} "
                f"({row['reason']}), listed in {listed}"
            )
    yield f"{output.summary}, in {arguments.out}"
    if arguments.log:
        yield f"logged as runs:/{_log(arguments, output)}"
    if output.store is not None:
        # Only after logging: if that fails, the same command must not sample everything again.
        output.store.discard()


def _log(arguments: argparse.Namespace, output: Output) -> str:
    inputs = {
        f"{name}.{i}" if len(source.files) > 1 else name: path
        for name, source in output.sources.items()
        for i, path in enumerate(source.files, start=1)
    }
    metrics = dict(output.metrics)
    if output.dropped is not None:
        metrics["dropped_problems"] = float(len(output.dropped))
    try:
        return tracking.log_artifacts(
            arguments.log,
            {output.name: arguments.out, **{name: path for name, _, path in output.besides}},
            run_name=arguments.command,
            params={**output.params, **{f"source_{name}": source.address for name, source in output.sources.items()}},
            metrics=metrics,
            inputs=inputs,
        )
    except IsoComputeError as error:
        if output.store is None:
            raise
        raise RolloutError(
            f"{error}; {arguments.out} is written, and the same command with --overwrite logs it without sampling again"
        ) from None
