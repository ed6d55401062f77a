"""``fit``: fit a sweep and say what to do with a budget."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from ..answers.answer import called, differing
from ..answers.fitted import conflicts, left_out, left_out_line
from ..answers.interference import train_validation_gap
from ..answers.paper import PaperConfig, fit_as_paper
from ..contract import tables
from ..data.curves import UNITS, of_setting
from ..data.reading import not_read, read_evals, short, with_gpu_hours, write_parquet
from ..errors import FrontierError
from ..fitting.point import FORMS
from ..notebook import Fit, Frontier
from ..posterior.density import Priors
from ..posterior.runs import POPULATION
from ..show.drawing import save
from ..show.panels import gap_panel
from ..show.paper import paper_figures
from .arguments import add_assignments, positive, write_json

FOREVER = 1e15
"""Compute at which every curve counts as levelled off."""
OF_PAPER = ("form", "points", "bin_width", "window")
"""Options for the paper's method only."""
FIGURES = ("b_p_star", "curves", "decision", "frontier", "gap", "n_star", "trade")
"""All figures that a fit may draw; no fit draws all of them."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fit",
        help="fit a sweep and say what to do with a budget",
        epilog="example: isocompute-frontier fit outputs/sweep/hard --out fitted\n"
        "example: isocompute-frontier fit runs.csv --column rollouts=C --set problems_per_batch=32 --out fitted",
    )
    parser.add_argument(
        "source", nargs="+", help="evals: file, folder, tracking URI, mlflow:EXPERIMENT or runs:/RUN_ID"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder for the fit, its figures and its report")
    parser.add_argument("--metric", default="avg_at_4", help="column of the reward (default: %(default)s)")
    parser.add_argument(
        "--unit", default="rollouts", choices=[*UNITS], help="what a budget is counted in (default: %(default)s)"
    )
    parser.add_argument("--problem-set", metavar="NAME", help="only its rows, where the source holds several")
    parser.add_argument("--split", default="validation", help="only rows of this split (default: %(default)s)")
    parser.add_argument("--group", metavar="COLUMN", help="runs that differ in this column are settings of their own")
    parser.add_argument(
        "--draws-of",
        nargs="+",
        default=[*POPULATION],
        metavar="COLUMN",
        help="columns whose values are draws, and the answer is for another one like them "
        "(default: base_model, where there is such a column)",
    )
    parser.add_argument(
        "--problems-per-batch",
        type=int,
        help="only runs of this B_p, the problems of a batch, so that n is traded against update steps",
    )
    parser.add_argument(
        "--batch-rollouts",
        type=int,
        help="only runs of this B = n B_p, the rollouts of a batch, so that n is traded against B_p",
    )
    parser.add_argument(
        "--seed-deviation",
        type=positive,
        metavar="SHARE",
        help="of seeds, before the data are seen, as a share of the gain (default: 0.06)",
    )
    parser.add_argument(
        "--pass-rates", metavar="SOURCE", help="their pass rates, for intervals that include the luck of the questions"
    )
    parser.add_argument("--timings", metavar="SOURCE", help="timings of the runs, for budgets in GPU-hours")
    parser.add_argument("--budget", type=positive, help="the answer's, in --unit (default: the most that was measured)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the answer here")
    parser.add_argument("--check", action="store_true", help="also leave out each n and predict it from the others")
    parser.add_argument(
        "--pooling",
        default="joint",
        choices=["joint", "none"],
        help="none: every setting is fitted alone, and nothing is decided",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the posterior's draws (default: 0)")
    said = "our name for a column of the source, such as rollouts=C"
    add_assignments(parser, "--column", "columns", like="NAME=COLUMN", words=said)
    said = "a value for all rows, such as problems_per_batch=32"
    add_assignments(parser, "--set", "constants", like="NAME=VALUE", words=said)
    paper = parser.add_argument_group("the paper's method")
    paper.add_argument(
        "--method",
        default="posterior",
        choices=["posterior", "paper"],
        help="paper: as the IsoCompute Playbook fits, without intervals",
    )
    paper.add_argument("--form", choices=[*FORMS], help="form of its curves (default: exp)")
    said = "evaluations that are fitted: all, or those that beat every earlier one (default: all)"
    paper.add_argument("--points", choices=["all", "records"], help=said)
    paper.add_argument("--bin-width", type=float, help="width of a record's bin of reward (default: 0.005)")
    paper.add_argument("--window", type=int, help="evaluations averaged before records are sought (default: 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Fit, write the results with figures and report, and print the answer."""
    given = {key: value for key in OF_PAPER if (value := getattr(arguments, key)) is not None}
    rows = {key: getattr(arguments, key) for key in ("metric", "unit", "split", "problem_set", "group")}
    if arguments.out.exists() and not arguments.out.is_dir():
        raise FrontierError(f"--out {arguments.out}: is a file, and no folder")
    if (where := arguments.json) is not None and where.parent != arguments.out and not where.parent.is_dir():
        raise FrontierError(f"--json {where}: there is no folder {where.parent}")
    if arguments.seed < 0:
        raise FrontierError(f"the seed is {arguments.seed}; it must be 0 or more")
    if arguments.method == "paper":
        yield from _as_paper(arguments, PaperConfig(**rows, **given))
    else:
        if given:
            option = "--" + next(iter(given)).replace("_", "-")
            raise FrontierError(f"{option} belongs to the paper's method: add --method paper, or leave it out")
        frontier = Frontier(_evals(arguments), population=tuple(arguments.draws_of), **rows)
        priors = Priors() if arguments.seed_deviation is None else Priors(seed_amplitude=arguments.seed_deviation)
        if arguments.pooling == "none":
            yield from _separately(frontier, priors, arguments.seed)
        else:
            yield from _together(frontier, priors, arguments)
    # What is missing from the tables because it was not read when they were made.
    yield from (f"note: {lost}" for lost in not_read(arguments.source))


def _together(frontier: Frontier, priors: Priors, arguments: argparse.Namespace) -> Iterable[str]:
    """Fit all settings as one posterior, and give its answer."""
    pass_rates = None if arguments.pass_rates is None else tables.read(arguments.pass_rates, "pass_rates")
    timings = None if arguments.timings is None else tables.read(arguments.timings, "timings")
    fitted = frontier.fit(priors=priors, seed=arguments.seed, pass_rates=pass_rates, timings=timings)
    answer = fitted.answer(arguments.budget)
    yield from answer.lines()
    yield from (f"note: {note}" for note in (*fitted.prepared.notes, *conflicts(fitted)))
    rates = fitted.best_rates(fitted.largest)
    if rates is not None:
        yield rates.line()
    if arguments.check:
        found = left_out(fitted)
        yield left_out_line(found) if found else "note: fewer than four n, so that none can be left out"
    with _at_once(arguments.out) as folder:
        _write(fitted, frontier, arguments, folder)
    yield f"report: {arguments.out / 'report.html'}"
    if arguments.json:
        write_json(answer.as_dict(), arguments.json)


@contextmanager
def _at_once(folder: Path) -> Iterator[Path]:
    """A folder whose files move into another one at the end, so that a fit never stands beside figures of another."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    where = folder if folder.exists() else folder.parent
    with TemporaryDirectory(prefix=f".{folder.name}.", suffix=".writing", dir=where) as aside:
        yield Path(aside)
        folder.mkdir(exist_ok=True)
        made = sorted(Path(aside).iterdir())
        for file in made:
            file.replace(folder / file.name)
        drawn = {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}
        for old in drawn - {file.name for file in made}:
            (folder / old).unlink(missing_ok=True)


def _write(fitted: Fit, frontier: Frontier, arguments: argparse.Namespace, folder: Path) -> None:
    """Save the fit, its report and, for runs evaluated on both, train minus validation."""
    fitted.save(folder)
    evals = frontier.evals
    if {"train", "validation"} <= set(evals["split"].unique()) and "run_id" in evals.columns:
        gap, unit = train_validation_gap(evals, fitted.metric), UNITS[fitted.unit]
        if unit not in gap.columns:
            gap = gap.join(evals.select("run_id", "step", unit).unique(["run_id", "step"]), on=["run_id", "step"])
        write_parquet(gap, folder / "gap.parquet")
        save(gap_panel(gap, unit, fitted.metric), folder / "gap")
    facts = [("runs from", ", ".join(map(str, arguments.source))), ("made", f"{date.today():%-d %B %Y}")]
    fitted.report(folder, budget=arguments.budget, facts=facts)


def _separately(frontier: Frontier, priors: Priors, seed: int) -> Iterable[str]:
    """Fit every setting alone, and list the fits as a table."""
    fits = frontier.fit_separately(priors=priors, seed=seed)
    several, rated = differing(fits)
    yield f"every setting fitted alone: {frontier.metric} at its last evaluation, and where it levels off"
    for cell, own in fits.items():
        last = float(own.model.runs.last.max())
        end, top = own.reward(np.array([last, FOREVER]))[:, 0].T
        parts = [f"{x.mean():.3f} ({np.quantile(x, 0.025):.3f}–{np.quantile(x, 0.975):.3f})" for x in (end, top)]
        yield f"  {called(cell, several=several, rated=rated):16} {parts[0]} at {short(last)}   A {parts[1]}"


def _as_paper(arguments: argparse.Namespace, config: PaperConfig) -> Iterable[str]:
    """Fit by the paper's method."""
    if arguments.pass_rates is not None:
        raise FrontierError("the paper's method has no intervals: leave out --pass-rates")
    fits = fit_as_paper(_evals(arguments), config)
    with _at_once(arguments.out) as folder:
        fits.save(folder)
        paper_figures(fits, folder)
    yield from fits.summary().splitlines()
    if arguments.budget is not None:
        last = max(float(curve.compute.max()) for curve in fits.fitted or fits.curves)
        beyond = f" (beyond what was measured, up to {last:,.0f})" if arguments.budget > last else ""
        yield f"n*({arguments.budget:,.0f}) = {float(fits.n_star.at(np.array(arguments.budget))):,.0f}{beyond}"


def _evals(arguments: argparse.Namespace) -> pl.DataFrame:
    """The evaluations of the setting to fit, with GPU-hours if timings are given."""
    timed = arguments.unit == "gpu_hours" and arguments.timings is not None
    evals = read_evals(
        arguments.source,
        metric=arguments.metric,
        unit="rollouts" if timed else arguments.unit,
        columns=dict(arguments.columns),
        constants=dict(arguments.constants),
        group=arguments.group,
    )
    evals = with_gpu_hours(evals, tables.read(arguments.timings, "timings")) if timed else evals
    return of_setting(evals, problems_per_batch=arguments.problems_per_batch, batch_rollouts=arguments.batch_rollouts)
