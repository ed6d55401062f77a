"""``n-star``: fit the log2-sigmoid of n*(C) to points, or take that of fits or of a paper, and evaluate it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path

from ..answers import saved
from ..answers.answer import percent
from ..answers.paper import n_star_of
from ..data.files import read_columns
from ..errors import FrontierError
from ..fitting.nstar import Sigmoid, fit_points
from .arguments import positive, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("n-star", help="fit the log2-sigmoid of n*(C) to points, or evaluate it")
    parser.add_argument("source", type=Path, nargs="?", help="what `fit` wrote, or points: CSV, Parquet, JSON lines")
    parser.add_argument("--compute", metavar="COLUMN", help="of the points")
    parser.add_argument("--n", metavar="COLUMN", help="of the points")
    parser.add_argument("--sigmoid", type=float, nargs=4, metavar=("L", "K", "X0", "B"), help="as a paper prints it")
    parser.add_argument("--at", type=positive, nargs="+", default=[], metavar="C", help="also n*(C) at this compute")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the parameters with their intervals, and n* where it is asked for.

    Raises:
        FrontierError: No sigmoid is named, or it cannot be read, fitted or evaluated.
    """
    if arguments.source and (arguments.source / saved.DOCUMENT).is_file():
        yield from _of_fit(arguments)
        return
    found, last = _sigmoid(arguments)
    yield from found.summary().splitlines()
    values = {compute: float(found.at(compute)) for compute in arguments.at}
    for compute, n in values.items():
        note = f" (beyond what was measured, up to {last:,.0f})" if compute > last * (1 + 1e-9) else ""
        yield f"n*({compute:,.0f}) = {n:,.0f}; the nearest power of 2 is {2 ** round(math.log2(n)):,}{note}"
    write_json({**found.as_dict(), "at": {f"{compute:g}": n for compute, n in values.items()}}, arguments.json)


def _of_fit(arguments: argparse.Namespace) -> Iterable[str]:
    """n* of a posterior: the n of least expected regret."""
    fitted = saved.load(arguments.source)
    chosen = {compute: fitted.best(compute) for compute in arguments.at or [fitted.largest]}
    for compute, option in chosen.items():
        yield f"n*({compute:,.0f}) = {option.cell.rollouts_per_problem}, P(best) {percent(option.probability_best)}"
    write_json({"at": {f"{c:g}": o.cell.rollouts_per_problem for c, o in chosen.items()}}, arguments.json)


def _sigmoid(arguments: argparse.Namespace) -> tuple[Sigmoid, float]:
    """The sigmoid, and the most compute that is behind it."""
    if arguments.sigmoid:
        params = dict(zip(("L", "k", "x0", "b"), arguments.sigmoid, strict=True))
        return Sigmoid(params=params, intervals={}, flags=()), math.inf
    source: Path | None = arguments.source
    if source is None:
        raise FrontierError("n* of what? name points, fits or --sigmoid L K X0 B")
    if arguments.compute and arguments.n:
        compute, n = read_columns(source, [arguments.compute, arguments.n])
        return fit_points(compute, n, refits=arguments.bootstrap, seed=arguments.seed), float(compute.max())
    if source.suffix and source.name != "fits.json":
        raise FrontierError(f"{source}: name the columns of the points with --compute and --n")
    return n_star_of(source.parent if source.name == "fits.json" else source)
