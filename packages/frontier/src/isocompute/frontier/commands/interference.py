"""``interference``: measure how unevenly training improves problems."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ..answers.interference import at_equal_rollouts, comparable, interference
from ..contract import tables
from ..data.reading import write_parquet
from ..errors import FrontierError
from ..show.drawing import save
from ..show.panels import interference_panels

TRAINING = "training_pass_rates.parquet"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "interference",
        help="measure how unevenly training helps problems",
        epilog="example: isocompute-frontier interference outputs/sweep/hard --out uneven",
    )
    parser.add_argument(
        "source",
        help="pass_rates: file, folder, mlflow:EXPERIMENT or runs:/RUN_ID; of a folder those "
        f"of the training problems where it holds {TRAINING}",
    )
    parser.add_argument("--evals", help="evals of the same runs, for their rollouts; by default those of the source")
    parser.add_argument(
        "--problems-per-batch", type=int, help="B_p of the runs that are compared (default: that of the most n)"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder for interference.parquet and its figure")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the measures and their figure, and print the measures of every n at equal rollouts."""
    source = arguments.source
    if arguments.evals is None and Path(source).is_file():
        raise FrontierError("runs are compared at equal rollouts, which their evaluations know: name them with --evals")
    training = Path(source) / TRAINING
    of = "training problems" if training.is_file() else "problems"
    pass_rates = tables.read(training if training.is_file() else source, "pass_rates")
    evals, notes = comparable(
        tables.read(arguments.evals or source, "evals"), problems_per_batch=arguments.problems_per_batch
    )
    measures = interference(pass_rates, evals)
    write_parquet(measures, arguments.out / "interference.parquet")
    save(interference_panels(pass_rates, evals, of=of), arguments.out / "interference")
    matched = at_equal_rollouts(measures)
    yield (
        f"{matched['problems'][0]:,} {of}, at {max(matched['rollouts'].to_list()):,} rollouts, "
        f"B_p = {matched['problems_per_batch'][0]}, each n at its best rate:"
    )
    means = [pl.col(c).mean() for c in ("mean", "zero_fraction", "one_fraction", "dispersion", "distance_to_start")]
    for row in matched.group_by("rollouts_per_problem").agg("run_id", *means).sort("rollouts_per_problem").to_dicts():
        moved = "" if row["distance_to_start"] is None else f", moved {row['distance_to_start']:.3f}"
        yield (
            f"n = {row['rollouts_per_problem']:4d}: mean {row['mean']:.3f}, never solved {row['zero_fraction']:.1%}, "
            f"always solved {row['one_fraction']:.1%}, dispersion {row['dispersion']:.3f}{moved} "
            f"(run{'s' if len(row['run_id']) > 1 else ''} {', '.join(row['run_id'])})"
        )
    yield from (f"note: {note}" for note in notes)
    yield f"figure: {arguments.out / 'interference.png'}"
