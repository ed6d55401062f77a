"""Console script ``isocompute-frontier``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from . import tables
from .errors import FrontierError
from .fits import FitConfig, fit
from .forms import FORMS
from .prescription import prescribe


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "fit":
            return _fit(arguments)
        return _prescribe(arguments)
    except (FrontierError, tables.TableError) as error:
        print(f"error: {error}", file=sys.stderr)
    except ValueError as error:
        # tracking.TrackingError, whose module would load what only a tracking source needs
        print(f"error: {error}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-frontier", description="What does a budget buy, and how should it be split?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("fit", help="fit the frontier of a sweep")
    one.add_argument("source", nargs="+", help="evals: a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    one.add_argument("--out", required=True, type=Path, help="folder for fits.json, tables and figures")
    one.add_argument("--form", default="auto", choices=["auto", *FORMS])
    one.add_argument("--metric", default="avg_at_4")
    one.add_argument("--unit", default="rollouts", choices=["rollouts", "tokens", "update_steps"])
    one.add_argument("--problem-set")
    one.add_argument("--bootstrap", type=int, default=1000)
    one.add_argument("--seed", type=int, default=0)
    two = commands.add_parser("prescribe", help="split a budget")
    two.add_argument("folder", type=Path, help="what `fit --out` wrote")
    two.add_argument("--budget", type=float, required=True, help="rollouts")
    two.add_argument("--json", type=Path, help="also write the allocation here")
    return parser


def _fit(arguments: argparse.Namespace) -> int:
    from .figures import all_figures

    parts = [tables.read(source, "evals") for source in arguments.source]
    evals = tables.concat(parts, "evals") if len(parts) > 1 else parts[0]
    config = FitConfig(
        form=arguments.form, metric=arguments.metric, unit=arguments.unit,
        problem_set=arguments.problem_set, bootstrap=arguments.bootstrap, seed=arguments.seed,
    )  # fmt: skip
    fits = fit(evals, config)
    fits.save(arguments.out)
    all_figures(fits, arguments.out)
    print(fits.summary())
    return 0


def _prescribe(arguments: argparse.Namespace) -> int:
    allocation = prescribe(arguments.folder, budget=int(arguments.budget))
    print(allocation.summary())
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(pl.DataFrame(allocation.as_dict()["candidates"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(allocation.as_dict(), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
