"""Figures beyond a fit: interference (Playbook, Figures 11 and 27), train against validation, ScaleRL's forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from ..answers.forecast import Forecast, State
from ..answers.interference import at_equal_rollouts, histogram, interference
from ..answers.recipes import Efficiency, efficiency
from ..data.curves import Array
from .drawing import ACCENT, line_styles, styled, subplots

BINS = 10


@styled
def interference_panels(pass_rates: pl.DataFrame, evals: pl.DataFrame, *, of: str = "problems") -> Any:
    """Draw interference by n: the measures against rollouts, and histograms at equal rollouts.

    Args:
        evals: An ``evals`` table of the runs; runs with the same n are averaged, and their range is shown.

    Raises:
        FrontierError: As for ``interference`` and ``at_equal_rollouts``.
    """
    # With more bins than possible pass rates, some would always be empty.
    bins = min([BINS, *(k + 1 for k in pass_rates["samples"].unique())]) if len(pass_rates) else BINS
    measures = interference(pass_rates, evals, bins=bins)
    styles = line_styles(measures["rollouts_per_problem"].unique().sort().to_list())
    figure, axes = subplots(2, 2, figsize=(8, 5.6))
    shown = {"zero_fraction": "never solved", "dispersion": "dispersion", "distance_to_start": "distance to start"}
    for axis, (column, label) in zip(axes.flat, shown.items(), strict=False):
        for n, look in styles.items():
            own = measures.filter((pl.col("rollouts_per_problem") == n) & (pl.col("rollouts") > 0))
            _draw_range(axis, own, "rollouts", column, label=f"n = {n}", look=look)
        axis.set(xscale="log", xlabel="rollouts", ylabel=label)
    axes[0][0].legend(frameon=False, fontsize=8)
    last = axes[1][1]
    centres = (np.arange(bins) + 0.5) / bins
    matched = at_equal_rollouts(measures)
    rates = pass_rates.with_columns(rate=pl.col("successes") / pl.col("samples"))
    # Not the first row of every run: a branch begins where another run has been.
    begun = measures.filter(pl.col("rollouts") == pl.col("rollouts").min())
    before = histogram(rates.join(begun, on=["run_id", "step"])["rate"].to_numpy(), bins)
    last.bar(centres, before, width=0.9 / bins, color="0.85", label="at the first evaluation")
    rates = rates.join(matched.select("run_id", "step", "rollouts_per_problem"), on=["run_id", "step"])
    for n, look in styles.items():
        after = histogram(rates.filter(pl.col("rollouts_per_problem") == n)["rate"].to_numpy(), bins)
        last.plot(centres, after, **look, markersize=3)
    last.set(xlabel=f"pass rate at {max(matched['rollouts'].to_list()):,} rollouts", ylabel=f"share of {of}")
    last.legend(frameon=False, fontsize=8)
    return figure


@styled
def gap_panel(gap: pl.DataFrame, unit: str, metric: str) -> Any:
    """The gap from ``train_validation_gap`` against a compute column, by n; seeds averaged, with their range."""
    styles = line_styles(sorted(gap["rollouts_per_problem"].unique().to_list()))
    figure, axis = subplots(figsize=(6, 3.4))
    for n, look in styles.items():
        own = gap.filter(pl.col("rollouts_per_problem") == n)
        _draw_range(axis, own, unit, "gap", label=f"n = {n}", look=look)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.set(xlabel=unit, ylabel=f"{metric}, train minus validation")
    axis.legend(frameon=False, fontsize=8)
    return figure


def _draw_range(axis: Any, rows: pl.DataFrame, x: str, y: str, *, label: str, look: Mapping[str, Any]) -> None:
    """Draw the mean of a column over runs, with its range."""
    value = pl.col(y)
    own = rows.group_by(x).agg(mean=value.mean(), low=value.min(), high=value.max()).sort(x)
    axis.fill_between(own[x], own["low"], own["high"], color=look["color"], alpha=0.15, linewidth=0)
    axis.plot(own[x], own["mean"], **look, markersize=3, label=label)


@styled
def forecast_panel(found: Forecast, compute: Array, reward: Array, x: str, y: str) -> Any:
    """A curve fitted up to a cut and its extension, with the data points of both."""
    figure, axis = subplots(figsize=(6, 3.6))
    cut = found.support[1]
    used = (compute >= found.support[0]) & (compute <= cut)
    shown = found.compute <= max(float(compute.max()), cut)
    at, line, before = found.compute[shown], found.reward[shown], found.compute[shown] <= cut
    if found.intervals or found.state is State.COLLAPSED:
        axis.fill_between(at, found.low[shown], found.high[shown], color="0.85", linewidth=0, label="95 % interval")
    axis.plot(at[before], line[before], color="black", label="fitted")
    axis.plot(at[~before], line[~before], color=ACCENT, linestyle="--", label="extended")
    axis.plot(compute[used], reward[used], "o", color="black", markersize=4)
    axis.plot(compute[compute > cut], reward[compute > cut], "D", color=ACCENT, markersize=4, label="came later")
    if (early := compute < found.support[0]).any():
        axis.plot(compute[early], reward[early], "o", color="0.6", markersize=3, fillstyle="none", label="not fitted")
    axis.set(xlabel=x, ylabel=y)
    axis.legend(frameon=False, fontsize=8)
    return figure


@styled
def efficiency_panel(found: Sequence[Efficiency], x: str) -> Any:
    """F(R) = (R − R0)/(A − R) against compute, with a line of slope B for each recipe of ``leave_one_out``."""
    figure, axis = subplots(figsize=(6, 4))
    for e, look in zip(found, line_styles([e.name for e in found]).values(), strict=True):
        compute, value = efficiency(e.parameters, e.compute, e.reward)
        grid = np.geomspace(e.compute.min(), e.compute.max(), 100)
        line = (grid / e.parameters.scale) ** e.parameters.shape
        low, high = e.needed_interval
        span = "or more" if high is None else f"({low:,.3g} to {high:,.3g})"
        label = f"{e.name}: {e.needed:,.3g} {span} for {e.target:.3f}"
        axis.plot(grid, line, color=look["color"], linestyle=look["linestyle"], label=label)
        axis.plot(compute, value, look["marker"], color=look["color"], markersize=4)
    held = found[0].parameters
    axis.set(
        xscale="log",
        yscale="log",
        xlabel=x,
        ylabel="F(R) = (R − R0) / (A − R)",
        title=f"A = {held.asymptote:.3f} and R0 = {held.start:.3f} held for all",
    )
    axis.legend(frameon=False, fontsize=8)
    return figure
