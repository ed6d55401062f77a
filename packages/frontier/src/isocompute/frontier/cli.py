"""Console script ``isocompute-frontier``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .errors import FrontierError
from .forms import FORMS

FRAMEWORKS = ("verl", "trl", "openrlhf", "prime-rl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    arguments = _parser().parse_args(argv)
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
    three = commands.add_parser("predict", help="fit a curve up to a cut, extend it, and compare")
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
    three.add_argument("--json", type=Path)
    four = commands.add_parser("n-star", help="fit the log2-sigmoid of n*(C) to points")
    four.add_argument("points", type=Path, help="CSV, Parquet or JSON lines")
    four.add_argument("--compute", required=True, metavar="COLUMN")
    four.add_argument("--n", required=True, metavar="COLUMN")
    four.add_argument("--bootstrap", type=int, default=200)
    four.add_argument("--seed", type=int, default=0)
    four.add_argument("--json", type=Path)
    five = commands.add_parser("ingest", help="turn another framework's logs into an evals table")
    five.add_argument("framework", choices=FRAMEWORKS)
    five.add_argument("source", nargs="+", help="logs of one run each: file, folder, runs:/ID, or mlflow:EXPERIMENT")
    five.add_argument("--out", required=True, type=Path, help="evals.parquet or .csv")
    five.add_argument("--config", type=Path, help="the run's configuration (JSON or YAML), where the logs lack it")
    five.add_argument("--set", dest="constants", action="append", default=[], type=_assignment, metavar="NAME=VALUE",
                      help="what neither logs nor configuration say, such as questions=300")  # fmt: skip
    return parser


def _fit_arguments(one: argparse.ArgumentParser) -> None:
    from .curves import UNITS

    one.add_argument("source", nargs="+", help="evals: file, folder, tracking URI, mlflow:EXPERIMENT or runs:/RUN_ID")
    one.add_argument("--out", required=True, type=Path, help="folder for fits.json, tables, figures and report")
    one.add_argument("--form", default="auto", choices=["auto", *FORMS])
    one.add_argument("--points", default="all", choices=["all", "records"])
    one.add_argument("--bin-width", type=float, default=0.005, help="of a record's bin of reward")
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


def _fit(arguments: argparse.Namespace) -> None:
    from .figures import all_figures
    from .fits import FitConfig, fit
    from .reading import read_evals
    from .report import write_report

    config = FitConfig(
        form=arguments.form, metric=arguments.metric, unit=arguments.unit, split=arguments.split,
        problem_set=arguments.problem_set, bootstrap=arguments.bootstrap, seed=arguments.seed,
        points=arguments.points, bin_width=arguments.bin_width,
        problems_per_batch=arguments.problems_per_batch, batch_rollouts=arguments.batch_rollouts,
    )  # fmt: skip
    evals = read_evals(
        arguments.source, metric=arguments.metric, unit=arguments.unit,
        columns=dict(arguments.columns), constants=dict(arguments.constants),
    )  # fmt: skip
    fits = fit(evals, config)
    fits.save(arguments.out)
    all_figures(fits, arguments.out)
    write_report(fits, arguments.out)
    print(fits.summary())
    print(f"report: {arguments.out / 'report.html'}")


def _prescribe(arguments: argparse.Namespace) -> None:
    from .prescription import prescribe

    budget = arguments.budget
    if arguments.unit == "tokens":
        if arguments.tokens_per_rollout is None:
            raise FrontierError("a budget in tokens needs --tokens-per-rollout, the mean response length")
        budget /= arguments.tokens_per_rollout
    allocation = prescribe(arguments.folder, budget=int(budget))
    print(allocation.summary())
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_cols=-1):
        print(pl.DataFrame(allocation.as_dict()["candidates"]))
    _write(arguments.json, allocation.as_dict())


def _predict(arguments: argparse.Namespace) -> None:
    from .forecast import ForecastConfig, forecast, forecasts_over_cuts
    from .reading import read_columns

    config = ForecastConfig(
        form=arguments.form, r0=arguments.r0, fit_min=arguments.fit_min, fit_max=arguments.fit_max,
        method=arguments.method, bootstrap=arguments.bootstrap, seed=arguments.seed,
    )  # fmt: skip
    x, y = read_columns(arguments.curve, [arguments.x, arguments.y], where=dict(arguments.where))
    if ((y < 0) | (y > 1)).any():
        raise FrontierError(f"{arguments.curve}: the column {arguments.y} has rewards outside 0 to 1")
    found = forecast(x, y, config)
    print(found.summary())
    document = found.as_dict()
    if arguments.cuts:
        document["cuts"] = []
        print("\n         cut  points  parameters")
        for cut, result in forecasts_over_cuts(x, y, config, arguments.cuts):
            if isinstance(result, FrontierError):
                print(f"{cut:12,.6g}          {result}")
                document["cuts"].append({"cut": cut, "reason": str(result)})
                continue
            named = "  ".join(f"{k} {v:.5g}" for k, v in result.parameters.named().items())
            print(f"{cut:12,.6g}  {result.fitted:6d}  {named}")
            document["cuts"].append({"cut": cut, **result.as_dict()})
    _write(arguments.json, document)


def _n_star(arguments: argparse.Namespace) -> None:
    from .nstar import fit_points
    from .reading import read_columns

    compute, n = read_columns(arguments.points, [arguments.compute, arguments.n])
    found = fit_points(compute, n, refits=arguments.bootstrap, seed=arguments.seed)
    print(found.summary())
    _write(arguments.json, found.as_dict())


def _ingest(arguments: argparse.Namespace) -> None:
    from . import tables
    from .ingest import ingest

    evals, notes = ingest(
        arguments.framework, arguments.source, config=arguments.config, constants=dict(arguments.constants)
    )
    path = tables.write(evals, "evals", arguments.out)
    for note in notes:
        print(f"note: {note}")
    print(f"{len(evals):,} evaluations of {evals['run_id'].n_unique()} runs in {path}")


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


def _write(path: Path | None, document: Mapping[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    aside.replace(path)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "fit": _fit, "prescribe": _prescribe, "predict": _predict, "n-star": _n_star, "ingest": _ingest,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
