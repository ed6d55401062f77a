"""``fit``: fit the frontier of a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ..answers import saved
from ..answers.fits import FitConfig, fit
from ..answers.fitted import Fitted
from ..answers.interference import train_validation_gap
from ..answers.notebook import Frontier
from ..answers.paper import fit_as_paper
from ..contract import tables
from ..contract.files import atomic_write
from ..data.curves import UNITS
from ..data.reading import read_evals
from ..data.units import with_gpu_hours
from ..errors import FrontierError
from ..fitting.forms import FORMS
from ..fitting.selection import CRITERIA
from ..posterior.priors import Priors
from ..show.decision import decision_figure
from ..show.drawing import save
from ..show.figures import all_figures
from ..show.panels import gap_panel
from ..show.report import write_report
from .arguments import assignment, positive


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("fit", help="fit the frontier of a sweep")
    parser.add_argument(
        "source", nargs="+", help="evals: file, folder, tracking URI, mlflow:EXPERIMENT or runs:/RUN_ID"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder for fits.json, tables, figures and report")
    parser.add_argument("--method", default="posterior", choices=["posterior", "paper"],
                        help="paper: as the IsoCompute Playbook fits, without intervals")  # fmt: skip
    parser.add_argument("--pooling", default="joint", choices=["joint", "none"],
                        help="none: every curve is fitted alone, and nothing is decided")  # fmt: skip
    parser.add_argument("--seed-deviation", type=positive, metavar="SHARE",
                        help="of seeds, before the data are seen, as a share of the gain (default: 0.06)")  # fmt: skip
    parser.add_argument("--form", default="auto", choices=["auto", *FORMS])
    parser.add_argument("--selection", default="aicc", choices=CRITERIA,
                        help="how --form auto chooses: AICc, or the error on the held-out tail")  # fmt: skip
    parser.add_argument("--points", default="all", choices=["all", "records"])
    parser.add_argument("--bin-width", type=float, default=0.005, help="of a record's bin of reward")
    parser.add_argument("--window", type=int, default=1, help="evaluations averaged before records are sought")
    parser.add_argument("--group", metavar="COLUMN", help="runs that differ in this column are curves of their own")
    parser.add_argument("--timings", metavar="SOURCE", help="timings of the runs, for --unit gpu_hours")
    parser.add_argument(
        "--pass-rates",
        metavar="SOURCE",
        help="pass rates of these evaluations, for errors that include the questions' luck",
    )
    parser.add_argument("--metric", default="avg_at_4")
    parser.add_argument("--unit", default="rollouts", choices=[*UNITS])
    parser.add_argument("--problem-set")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--problems-per-batch", type=int, help="only this B_p: n against update steps")
    parser.add_argument("--batch-rollouts", type=int, help="only this B = B_p n: B_p against n")
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--column", dest="columns", action="append", default=[], type=assignment, metavar="NAME=COLUMN",
                        help="our name for a column of the source, such as rollouts=C")  # fmt: skip
    parser.add_argument("--set", dest="constants", action="append", default=[], type=assignment, metavar="NAME=VALUE",
                        help="a value for all rows, such as problems_per_batch=32")  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Fit, write what was found with its figures and its report, and print the summary.

    Raises:
        FrontierError: The evaluations cannot be read or fitted, or a file cannot be written.
    """
    config = FitConfig(
        form=arguments.form, metric=arguments.metric, unit=arguments.unit, split=arguments.split,
        problem_set=arguments.problem_set, bootstrap=arguments.bootstrap, seed=arguments.seed,
        points=arguments.points, bin_width=arguments.bin_width, window=arguments.window,
        selection=arguments.selection, group=arguments.group,
        problems_per_batch=arguments.problems_per_batch, batch_rollouts=arguments.batch_rollouts,
    )  # fmt: skip
    evals = _evals(arguments)
    if arguments.method == "paper":
        if arguments.pass_rates is not None:
            raise FrontierError("the paper's method has no intervals: leave out --pass-rates")
        paper = fit_as_paper(evals, config)
        paper.save(arguments.out)
        all_figures(paper, arguments.out)
        yield paper.summary()
        return
    fitted = None
    if arguments.pooling == "joint":
        try:
            fitted = _joint(evals, arguments)
        except FrontierError as error:
            yield f"no decision: {error}\n"
        else:
            yield from [*fitted.answer().lines(), *(f"note: {note}" for note in fitted.prepared.notes), ""]
    pass_rates = None if arguments.pass_rates is None else tables.read(arguments.pass_rates, "pass_rates")
    fits = fit(evals, config, pass_rates=pass_rates)
    fits.save(arguments.out)
    all_figures(fits, arguments.out)
    _draw_gap(evals, config, arguments.out)
    report = write_report(fits, arguments.out, fitted=fitted)
    yield fits.summary()
    yield f"report: {report}"


def _joint(evals: pl.DataFrame, arguments: argparse.Namespace) -> Fitted:
    """The posterior of all runs, saved with the figure of its decision."""
    batch = pl.col("problems_per_batch") * pl.col("rollouts_per_problem")
    chosen = evals.filter(
        pl.col("problems_per_batch") == (arguments.problems_per_batch or pl.col("problems_per_batch")),
        batch == (arguments.batch_rollouts or batch),
    )
    priors = Priors() if arguments.seed_deviation is None else Priors(seed_amplitude=arguments.seed_deviation)
    frontier = Frontier(
        chosen, metric=arguments.metric, unit=arguments.unit, split=arguments.split, group=arguments.group,
        problem_set=arguments.problem_set,
    )  # fmt: skip
    fitted = frontier.fit(priors=priors, seed=arguments.seed)
    saved.save(fitted, arguments.out)
    save(decision_figure(fitted), arguments.out / "decision")
    return fitted


def _evals(arguments: argparse.Namespace) -> pl.DataFrame:
    """The evaluations, with GPU-hours where timings are given for them."""
    timed = arguments.unit == "gpu_hours" and arguments.timings is not None
    evals = read_evals(
        arguments.source, metric=arguments.metric, unit="rollouts" if timed else arguments.unit,
        columns=dict(arguments.columns), constants=dict(arguments.constants), group=arguments.group,
    )  # fmt: skip
    return with_gpu_hours(evals, tables.read(arguments.timings, "timings")) if timed else evals


def _draw_gap(evals: pl.DataFrame, config: FitConfig, folder: Path) -> None:
    """Train minus validation, where the runs were evaluated on both."""
    if not {"train", "validation"} <= set(evals["split"].unique()) or "run_id" not in evals.columns:
        return
    gap = train_validation_gap(evals, config.metric)
    unit = UNITS[config.unit]
    if unit not in gap.columns:
        gap = gap.join(evals.select("run_id", "step", unit).unique(["run_id", "step"]), on=["run_id", "step"])
    with atomic_write(folder / "gap.parquet", error=FrontierError) as stream:
        gap.write_parquet(stream)
    save(gap_panel(gap, unit, config.metric), folder / "gap")
