"""``predict``: fit a curve up to a cut, extend it and compare; or compare the recipes in one file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ..answers.forecast import METHODS, ForecastConfig, forecast
from ..answers.recipes import leave_one_out
from ..contract.command_line import new_file
from ..data.reading import read_curve, read_series
from ..errors import FrontierError
from ..show.drawing import save
from ..show.panels import efficiency_panel, forecast_panel
from .arguments import add_assignments, positive, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "predict",
        help="fit a curve up to a cut, extend it, and compare",
        epilog="example: isocompute-frontier predict run.csv --x rollouts --y avg_at_4 --fit-max 64k",
    )
    parser.add_argument("curve", type=Path, help="CSV, Parquet or JSON lines")
    parser.add_argument("--x", required=True, metavar="COLUMN", help="column of compute")
    parser.add_argument("--y", required=True, metavar="COLUMN", help="column of reward, within 0 to 1")
    said = "only these rows, where the file holds several curves"
    add_assignments(parser, "--where", "where", like="COLUMN=VALUE", words=said)
    parser.add_argument("--r0", type=float, help="reward before training, held fixed")
    parser.add_argument("--fit-min", type=positive, default=0.0, metavar="X", help="least compute fitted")
    parser.add_argument("--fit-max", type=positive, default=math.inf, metavar="X", help="most; beyond is the extension")
    parser.add_argument(
        "--method", default=METHODS[0], choices=METHODS, help="paper: ScaleRL's sigmoid by its own grid, from --r0"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="FIT",
        help="a published fit that the prior leaves out, where the run is that one",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the posterior's draws (default: 0)")
    parser.add_argument("--figure", type=new_file, metavar="FILE", help="draw fit and extension here, as SVG and PNG")
    parser.add_argument(
        "--series", metavar="COLUMN", help="compare the recipes that this column names, at one asymptote"
    )
    parser.add_argument("--asymptote", type=float, help="with --series: the asymptote held for all")
    parser.add_argument(
        "--reward",
        type=float,
        help="with --series: compare the compute for this reward; by default one that half of the recipes reach",
    )
    parser.add_argument(
        "--efficiency",
        type=new_file,
        metavar="FILE",
        help="with --series: draw F(R) against compute here (ScaleRL's leave-one-out plot)",
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the numbers here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the fit and its extension, or the recipes by the compute that they need."""
    if arguments.series:
        yield from _compare_recipes(arguments)
        return
    if arguments.efficiency or arguments.asymptote is not None or arguments.reward is not None:
        raise FrontierError("--efficiency, --asymptote and --reward compare recipes: name their column with --series")
    config = ForecastConfig(**{each.name: getattr(arguments, each.name) for each in fields(ForecastConfig)})
    x, y = read_curve(arguments.curve, arguments.x, arguments.y, where=dict(arguments.where))
    found = forecast(x, y, config, unit=arguments.x)
    yield from found.summary().splitlines()
    if arguments.figure:
        save(forecast_panel(found, x, y, arguments.x, arguments.y), arguments.figure)
    if arguments.json:
        write_json(found.as_dict(), arguments.json)


def _compare_recipes(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the recipes by the compute that each needs to reach one reward, the least first."""
    if arguments.r0 is None:
        raise FrontierError("--series compares recipes from one reward before training: give --r0")
    path, x, y, by, where = arguments.curve, arguments.x, arguments.y, arguments.series, dict(arguments.where)
    series = read_series(path, x, y, by=by, where=where, least=arguments.fit_min, most=arguments.fit_max)
    found = leave_one_out(series, r0=arguments.r0, asymptote=arguments.asymptote, target=arguments.reward)
    held = found[0].parameters
    yield f"A = {held.asymptote:.4f} and R0 = {held.start:g} held for all; {x} needed for {found[0].target:.3f}"
    for e in found:
        low, high = e.needed_interval
        if high is None:
            needed = f"more than {e.needed:,.5g}, four times its data"
        else:
            note = ", extrapolated" if e.standing == "extrapolated" else ""
            times = f"{e.needed / found[0].needed:.2f} times the least"
            needed = f"{e.needed:,.5g} (95 %: {low:,.5g} to {high:,.5g}{note}), {times}"
        yield f"  {e.name:24} {needed}  B {e.parameters.shape:.3f}  C_mid {e.parameters.scale:,.5g}"
    yield "one run each: the intervals leave out how seeds differ"
    if arguments.efficiency:
        save(efficiency_panel(found, x), arguments.efficiency)
    document = {"asymptote": held.asymptote, "r0": held.start, "series": [e.as_dict() for e in found]}
    if arguments.json:
        write_json(document, arguments.json)
