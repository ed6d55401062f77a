"""``export``: ledgers as the ``ledger`` table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..ledger.accounts import account
from .text import SOURCES, plural


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    export = commands.add_parser(
        "export",
        help="write the ledger table",
        description="Write the canonical charges as the ledger table, and log it to MLflow on request.",
    )
    export.add_argument("sources", nargs="+", metavar="LEDGER", help=SOURCES)
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .parquet or .csv file")
    export.add_argument(
        "--log", metavar="EXPERIMENT", help="also log it to this MLflow experiment (at MLFLOW_TRACKING_URI)"
    )
    export.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the table, and log it on request."""
    from ..contract import tables, tracking

    found = account(arguments.sources)
    path: Path = arguments.out
    tables.write(found.ledger, "ledger", path)
    runs = found.ledger["run_id"].n_unique()
    yield f"{path}: {plural(found.ledger.height, 'row')}, {plural(runs, 'run')}"
    if arguments.log:
        sums = found.by("run")
        names = [name for name in sums.columns if name != "run_id"]
        run_id = tracking.log_artifacts(
            arguments.log,
            {"ledger": path},
            run_name="ledger",
            metrics={name: float(sums[name].sum()) for name in names},
        )
        yield f"runs:/{run_id}/ledger"
