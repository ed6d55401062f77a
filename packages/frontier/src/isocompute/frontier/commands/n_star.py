"""``n-star``: fit the log2-sigmoid of n*(C) to points."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..data.files import read_columns
from ..fitting.nstar import fit_points
from .arguments import write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("n-star", help="fit the log2-sigmoid of n*(C) to points")
    parser.add_argument("points", type=Path, help="CSV, Parquet or JSON lines")
    parser.add_argument("--compute", required=True, metavar="COLUMN")
    parser.add_argument("--n", required=True, metavar="COLUMN")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the parameters and their intervals."""
    compute, n = read_columns(arguments.points, [arguments.compute, arguments.n])
    found = fit_points(compute, n, refits=arguments.bootstrap, seed=arguments.seed)
    yield found.summary()
    write_json(found.as_dict(), arguments.json)
