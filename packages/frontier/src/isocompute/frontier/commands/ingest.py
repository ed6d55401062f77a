"""``ingest``: turn another framework's logs into an evals table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..contract import tables
from ..data.ingest import ADAPTERS, ingest
from ..data.units import counted
from .arguments import assignment


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("ingest", help="turn another framework's logs into an evals table")
    parser.add_argument("framework", choices=tuple(ADAPTERS))
    parser.add_argument(
        "source",
        nargs="+",
        help="logs: file, folder, tracking URI, runs:/ID or mlflow:EXPERIMENT; each run is read as its own",
    )
    parser.add_argument("--out", required=True, type=Path, help="evals.parquet or .csv")
    parser.add_argument("--config", type=Path, help="the run's configuration (JSON or YAML), where the logs lack it")
    parser.add_argument("--set", dest="constants", action="append", default=[], type=assignment, metavar="NAME=VALUE",
                        help="what neither logs nor configuration say, such as questions=300")  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the table, and print what was taken as a default or is biased."""
    evals, notes = ingest(
        arguments.framework, arguments.source, config=arguments.config, constants=dict(arguments.constants)
    )
    path = tables.write(evals, "evals", arguments.out)
    yield from (f"note: {note}" for note in notes)
    yield f"{counted(len(evals), 'evaluation')} of {counted(evals['run_id'].n_unique(), 'run')} in {path}"
