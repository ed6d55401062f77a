"""``interference``: measure how unevenly training helps problems."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ..answers.interference import interference
from ..contract import tables
from ..contract.files import atomic_write
from ..errors import FrontierError
from ..show.drawing import save
from ..show.panels import interference_panels


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("interference", help="measure how unevenly training helps problems")
    parser.add_argument("source", help="pass_rates: file, folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    parser.add_argument("--evals", help="evals of the same runs, to call them by their n")
    parser.add_argument("--out", required=True, type=Path, help="folder for interference.parquet and its figure")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the measures and their figure, and print the last of each run.

    Raises:
        FrontierError: The tables have no run in common, or a file cannot be written.
    """
    pass_rates = tables.read(arguments.source, "pass_rates")
    settings: dict[str, int] = {}
    if arguments.evals:
        evals = tables.read(arguments.evals, "evals").unique("run_id")
        settings = dict(evals.select("run_id", "rollouts_per_problem").iter_rows())
        pass_rates = pass_rates.filter(pl.col("run_id").is_in(list(settings)))
        if pass_rates.is_empty():
            raise FrontierError(f"{arguments.source} and {arguments.evals} have no run in common")
    measures = interference(pass_rates)
    with atomic_write(arguments.out / "interference.parquet", error=FrontierError) as stream:
        measures.write_parquet(stream)
    save(interference_panels(pass_rates, settings), arguments.out / "interference")
    last = measures.sort("run_id", "step").group_by("run_id", maintain_order=True).last()
    for row in last.iter_rows(named=True):
        run_id = row["run_id"]
        name = f"n = {settings[run_id]}" if run_id in settings else run_id
        yield (
            f"{name:16} step {row['step']:6d}: mean {row['mean']:.3f}, "
            f"never solved {row['zero_fraction']:.1%}, dispersion {row['dispersion']:.3f}, "
            f"moved {row['distance_to_start']:.3f}"
        )
    yield f"figure: {arguments.out / 'interference.png'}"
