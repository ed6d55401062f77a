"""Console script ``isocompute-frontier``."""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .commands import COMMANDS
from .errors import InputWarning
from .forms import FORMS
from .selection import CRITERIA

FRAMEWORKS = ("verl", "trl", "openrlhf", "prime-rl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    arguments = _parser().parse_args(argv)
    with warnings.catch_warnings():
        # What the reader has to say is said, whatever PYTHONWARNINGS is.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
        try:
            COMMANDS[arguments.command](arguments)
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-frontier", description="What does a budget buy, and how should it be split?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _fit_arguments(commands.add_parser("fit", help="fit the frontier of a sweep"))
    two = commands.add_parser("prescribe", help="split a budget")
    two.add_argument("folder", type=Path, help="what `fit --out` wrote")
    two.add_argument("--budget", type=_positive, required=True, help="how much may be spent, in --unit")
    two.add_argument("--unit", choices=["rollouts", "tokens"], default="rollouts")
    two.add_argument("--tokens-per-rollout", type=_positive, help="mean response tokens, for --unit tokens")
    two.add_argument("--json", type=Path, help="also write the allocation here")
    _predict_arguments(commands.add_parser("predict", help="fit a curve up to a cut, extend it, and compare"))
    four = commands.add_parser("n-star", help="fit the log2-sigmoid of n*(C) to points")
    four.add_argument("points", type=Path, help="CSV, Parquet or JSON lines")
    four.add_argument("--compute", required=True, metavar="COLUMN")
    four.add_argument("--n", required=True, metavar="COLUMN")
    four.add_argument("--bootstrap", type=int, default=200)
    four.add_argument("--seed", type=int, default=0)
    four.add_argument("--json", type=Path)
    five = commands.add_parser("ingest", help="turn another framework's logs into an evals table")
    five.add_argument("framework", choices=FRAMEWORKS)
    five.add_argument(
        "source",
        nargs="+",
        help="logs: file, folder, tracking URI, runs:/ID or mlflow:EXPERIMENT; each run is read as its own",
    )
    five.add_argument("--out", required=True, type=Path, help="evals.parquet or .csv")
    five.add_argument("--config", type=Path, help="the run's configuration (JSON or YAML), where the logs lack it")
    five.add_argument("--set", dest="constants", action="append", default=[], type=_assignment, metavar="NAME=VALUE",
                      help="what neither logs nor configuration say, such as questions=300")  # fmt: skip
    six = commands.add_parser("interference", help="measure how unevenly training helps problems")
    six.add_argument("source", help="pass_rates: file, folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    six.add_argument("--evals", help="evals of the same runs, to call them by their n")
    six.add_argument("--out", required=True, type=Path, help="folder for interference.parquet and its figure")
    seven = commands.add_parser("convert", help="convert rollouts to tokens or back, along the runs of one n")
    seven.add_argument("source", nargs="+", help="evals with rollouts and tokens")
    seven.add_argument("--amount", type=_positive, required=True)
    seven.add_argument("--to", required=True, choices=["tokens", "rollouts"])
    seven.add_argument("--n", type=int, required=True, help="rollouts per problem of the runs")
    seven.add_argument("--problems-per-batch", type=int)
    return parser


def _fit_arguments(one: argparse.ArgumentParser) -> None:
    from .curves import UNITS

    one.add_argument("source", nargs="+", help="evals: file, folder, tracking URI, mlflow:EXPERIMENT or runs:/RUN_ID")
    one.add_argument("--out", required=True, type=Path, help="folder for fits.json, tables, figures and report")
    one.add_argument("--form", default="auto", choices=["auto", *FORMS])
    one.add_argument("--selection", default="aicc", choices=CRITERIA,
                     help="how --form auto chooses: AICc, or the error on the held-out tail")  # fmt: skip
    one.add_argument("--points", default="all", choices=["all", "records"])
    one.add_argument("--bin-width", type=float, default=0.005, help="of a record's bin of reward")
    one.add_argument("--window", type=int, default=1, help="evaluations averaged before records are sought")
    one.add_argument("--group", metavar="COLUMN", help="runs that differ in this column are curves of their own")
    one.add_argument("--timings", metavar="SOURCE", help="timings of the runs, for --unit gpu_hours")
    one.add_argument("--pass-rates", metavar="SOURCE",
                     help="pass rates of these evaluations, for errors that include the questions' luck")  # fmt: skip
    one.add_argument("--metric", default="avg_at_4")
    one.add_argument("--unit", default="rollouts", choices=[*UNITS])
    one.add_argument("--problem-set")
    one.add_argument("--split", default="validation")
    one.add_argument("--problems-per-batch", type=int, help="only this B_p: n against update steps")
    one.add_argument("--batch-rollouts", type=int, help="only this B = B_p n: B_p against n")
    one.add_argument("--bootstrap", type=int, default=1000)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--column", dest="columns", action="append", default=[], type=_assignment, metavar="NAME=COLUMN",
                     help="our name for a column of the source, such as rollouts=C")  # fmt: skip
    one.add_argument("--set", dest="constants", action="append", default=[], type=_assignment, metavar="NAME=VALUE",
                     help="a value for all rows, such as problems_per_batch=32")  # fmt: skip


def _predict_arguments(three: argparse.ArgumentParser) -> None:
    three.add_argument("curve", type=Path, help="CSV, Parquet or JSON lines")
    three.add_argument("--x", required=True, metavar="COLUMN", help="compute")
    three.add_argument("--y", required=True, metavar="COLUMN", help="reward, within 0 to 1")
    three.add_argument("--where", action="append", default=[], type=_assignment, metavar="COLUMN=VALUE",
                       help="only these rows, where the file holds several curves")  # fmt: skip
    three.add_argument("--form", default="hill", choices=FORMS)
    three.add_argument("--r0", type=float, help="reward before training, held fixed")
    three.add_argument("--fit-min", type=float, default=0.0, metavar="X", help="least compute fitted")
    three.add_argument("--fit-max", type=float, default=math.inf, metavar="X", help="most; beyond is the extension")
    three.add_argument("--method", default="projection", choices=["projection", "scalerl"])
    three.add_argument("--cuts", type=float, nargs="+", metavar="X", help="also a table of the fits up to these cuts")
    three.add_argument("--bootstrap", type=int, default=1000)
    three.add_argument("--seed", type=int, default=0)
    three.add_argument("--figure", type=Path, metavar="FILE", help="draw fit and extension here, as SVG and PNG")
    three.add_argument("--series", metavar="COLUMN",
                       help="compare the recipes that this column names, at one asymptote")  # fmt: skip
    three.add_argument("--asymptote", type=float, help="with --series: the asymptote held for all")
    three.add_argument(
        "--reward",
        type=float,
        help="with --series: compare the compute for this reward; by default one that half of the recipes reach",
    )
    three.add_argument("--efficiency", type=Path, metavar="FILE",
                       help="with --series: draw F(R) against compute here (ScaleRL's leave-one-out plot)")  # fmt: skip
    three.add_argument("--json", type=Path)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} has to look like NAME=VALUE")
    return name, value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not (np.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} has to be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
