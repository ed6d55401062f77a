"""What each command of the console script does; arguments are checked, results printed and written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from .errors import FrontierError

if TYPE_CHECKING:
    from .fits import FitConfig


def _fit(arguments: argparse.Namespace) -> None:
    from .figures import all_figures
    from .fits import FitConfig, fit
    from .reading import read_evals
    from .report import write_report

    config = FitConfig(
        form=arguments.form, metric=arguments.metric, unit=arguments.unit, split=arguments.split,
        problem_set=arguments.problem_set, bootstrap=arguments.bootstrap, seed=arguments.seed,
        points=arguments.points, bin_width=arguments.bin_width, window=arguments.window,
        selection=arguments.selection, group=arguments.group,
        problems_per_batch=arguments.problems_per_batch, batch_rollouts=arguments.batch_rollouts,
    )  # fmt: skip
    from .contract import tables

    timed = arguments.unit == "gpu_hours" and arguments.timings is not None
    evals = read_evals(
        arguments.source, metric=arguments.metric, unit="rollouts" if timed else arguments.unit,
        columns=dict(arguments.columns), constants=dict(arguments.constants), group=arguments.group,
    )  # fmt: skip
    if timed:
        from .units import with_gpu_hours

        evals = with_gpu_hours(evals, tables.read(arguments.timings, "timings"))
    pass_rates = None if arguments.pass_rates is None else tables.read(arguments.pass_rates, "pass_rates")
    fits = fit(evals, config, pass_rates=pass_rates)
    fits.save(arguments.out)
    all_figures(fits, arguments.out)
    _gap(evals, config, arguments.out)
    write_report(fits, arguments.out)
    print(fits.summary())
    print(f"report: {arguments.out / 'report.html'}")


def _gap(evals: pl.DataFrame, config: FitConfig, out: Path) -> None:
    """Train minus validation, where the runs were evaluated on both."""
    from .curves import UNITS
    from .drawing import save
    from .interference import train_validation_gap
    from .panels import gap_panel

    if not {"train", "validation"} <= set(evals["split"].unique()) or "run_id" not in evals.columns:
        return
    gap = train_validation_gap(evals, config.metric)
    unit = UNITS[config.unit]
    if unit not in gap.columns:
        gap = gap.join(evals.select("run_id", "step", unit).unique(["run_id", "step"]), on=["run_id", "step"])
    gap.write_parquet(out / "gap.parquet")
    save(gap_panel(gap, unit, config.metric), out / "gap")


def _prescribe(arguments: argparse.Namespace) -> None:
    from .prescription import prescribe

    budget = arguments.budget
    if arguments.unit == "tokens":
        if arguments.tokens_per_rollout is None:
            raise FrontierError("a budget in tokens needs --tokens-per-rollout, the mean response length")
        budget /= arguments.tokens_per_rollout
    allocation = prescribe(arguments.folder, budget=int(budget))
    print(allocation.summary())
    print(allocation.table())
    _write(arguments.json, allocation.as_dict())


def _predict(arguments: argparse.Namespace) -> None:
    from .forecast import ForecastConfig, forecast, forecasts_over_cuts
    from .one_run import one_run
    from .reading import read_columns

    if arguments.series:
        _compare_recipes(arguments)
        return
    if arguments.efficiency or arguments.asymptote is not None or arguments.reward is not None:
        raise FrontierError("--efficiency, --asymptote and --reward compare recipes: name their column with --series")
    config = ForecastConfig(
        form=arguments.form, r0=arguments.r0, fit_min=arguments.fit_min, fit_max=arguments.fit_max,
        method=arguments.method, bootstrap=arguments.bootstrap, seed=arguments.seed,
    )  # fmt: skip
    where = dict(arguments.where)
    x, y = read_columns(arguments.curve, [arguments.x, arguments.y], where=where)
    one_run(arguments.curve, arguments.x, arguments.y, where)
    if ((y < 0) | (y > 1)).any():
        raise FrontierError(f"{arguments.curve}: the column {arguments.y} has rewards outside 0 to 1")
    found = forecast(x, y, config)
    print(found.summary())
    if arguments.figure:
        from .drawing import save
        from .panels import forecast_panel

        save(forecast_panel(found, x, y, arguments.x, arguments.y), arguments.figure)
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


def _compare_recipes(arguments: argparse.Namespace) -> None:
    """The recipes of one file at one asymptote."""
    from .drawing import save
    from .efficiency import leave_one_out
    from .one_run import one_run
    from .panels import efficiency_panel
    from .reading import read_series

    if arguments.r0 is None:
        raise FrontierError("--series compares recipes from one reward before training: give --r0")
    series = read_series(
        arguments.curve, arguments.x, arguments.y, by=arguments.series, where=dict(arguments.where),
        least=arguments.fit_min, most=arguments.fit_max,
    )  # fmt: skip
    for name in series:
        one_run(arguments.curve, arguments.x, arguments.y, {**dict(arguments.where), arguments.series: name})
    found = leave_one_out(series, r0=arguments.r0, asymptote=arguments.asymptote, target=arguments.reward)
    held = found[0].parameters
    print(
        f"A = {held.asymptote:.4f} and R0 = {held.start:g} held for all; {arguments.x} needed for {found[0].target:.3f}"
    )
    for e in found:
        low, high = e.needed_interval
        note = "" if e.reached else ", extrapolated"
        print(
            f"  {e.name:24} {e.needed:,.5g} (95 %: {low:,.5g} to {high:,.5g}{note}), {e.needed / found[0].needed:.2f} "
            f"times the least  B {e.parameters.shape:.3f}  C_mid {e.parameters.scale:,.5g}"
        )
    print("one run each: the intervals leave out how seeds differ")
    if arguments.efficiency:
        save(efficiency_panel(found, arguments.x), arguments.efficiency)
    _write(arguments.json, {"asymptote": held.asymptote, "r0": held.start, "series": [e.as_dict() for e in found]})


def _n_star(arguments: argparse.Namespace) -> None:
    from .nstar import fit_points
    from .reading import read_columns

    compute, n = read_columns(arguments.points, [arguments.compute, arguments.n])
    found = fit_points(compute, n, refits=arguments.bootstrap, seed=arguments.seed)
    print(found.summary())
    _write(arguments.json, found.as_dict())


def _ingest(arguments: argparse.Namespace) -> None:
    from .contract import tables
    from .ingest import ingest

    evals, notes = ingest(
        arguments.framework, arguments.source, config=arguments.config, constants=dict(arguments.constants)
    )
    path = tables.write(evals, "evals", arguments.out)
    for note in notes:
        print(f"note: {note}")
    print(f"{len(evals):,} evaluations of {evals['run_id'].n_unique()} runs in {path}")


def _interference(arguments: argparse.Namespace) -> None:
    from .contract import tables
    from .drawing import save
    from .interference import interference
    from .panels import interference_panels

    pass_rates = tables.read(arguments.source, "pass_rates")
    settings = None
    if arguments.evals:
        evals = tables.read(arguments.evals, "evals").unique("run_id")
        settings = {r: f"n = {n}" for r, n in evals.select("run_id", "rollouts_per_problem").iter_rows()}
        pass_rates = pass_rates.filter(pl.col("run_id").is_in(list(settings)))
        if pass_rates.is_empty():
            raise FrontierError(f"{arguments.source} and {arguments.evals} have no run in common")
    measures = interference(pass_rates)
    arguments.out.mkdir(parents=True, exist_ok=True)
    measures.write_parquet(arguments.out / "interference.parquet")
    save(interference_panels(pass_rates, settings), arguments.out / "interference")
    last = measures.sort("run_id", "step").group_by("run_id", maintain_order=True).last()
    names = settings or {}
    for row in last.iter_rows(named=True):
        print(
            f"{names.get(row['run_id'], row['run_id']):16} step {row['step']:6d}: mean {row['mean']:.3f}, never solved "
            f"{row['zero_fraction']:.1%}, dispersion {row['dispersion']:.3f}, moved {row['distance_to_start']:.3f}"
        )
    print(f"figure: {arguments.out / 'interference.png'}")


def _convert(arguments: argparse.Namespace) -> None:
    from .reading import read_evals
    from .units import convert

    found = convert(
        read_evals(arguments.source), arguments.amount, to=arguments.to, rollouts_per_problem=arguments.n,
        problems_per_batch=arguments.problems_per_batch,
    )  # fmt: skip
    other = "rollouts" if arguments.to == "tokens" else "tokens"
    print(
        f"{arguments.amount:,.6g} {other} are {found.value:,.6g} {arguments.to} at n = {arguments.n}, where a response "
        f"has {found.tokens_per_rollout:,.4g} tokens"
    )
    if not found.measured:
        print("note: beyond what was measured, responses are taken to stay as long as they last were")


def _write(path: Path | None, document: Mapping[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    aside.replace(path)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "fit": _fit, "prescribe": _prescribe, "predict": _predict, "n-star": _n_star, "ingest": _ingest,
    "interference": _interference, "convert": _convert,
}  # fmt: skip
