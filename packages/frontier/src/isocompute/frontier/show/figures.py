"""Figures of a fitted sweep in the manner of the IsoCompute Playbook; the same fits give the same bytes.

``curves`` is like its Figures 5 and 15, ``frontier`` like 6, ``n_star`` like 7 (fixed B_p), 21 (joint over B_p and n)
and 24 (in tokens), ``b_p_star`` like 22, ``trade`` like 9 (B_p against n at fixed B), ``sensitivity`` like 10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..answers.results import Fits
from ..answers.sensitivity import sensitivity
from ..data.curves import Array
from ..data.records import isotonic, of_records
from ..fitting.curve_fit import CurveFit
from ..fitting.intervals import band
from ..fitting.nstar import sigmoid
from ..fitting.saturation import isotonic_n
from .drawing import ACCENT, line_styles, log_edges, save, styled, subplots


def all_figures(fits: Fits, folder: str | Path) -> list[Path]:
    """Draw every figure that the fits have the curves for, as SVG and PNG; nothing when no curve was fitted.

    Args:
        folder: Where the figures go.

    Returns:
        The files written.

    Raises:
        FrontierError: A file cannot be written.
    """
    if not fits.fitted:
        return []
    folder = Path(folder)
    wanted = {"curves": curve_panels, "frontier": frontier, "n_star": n_star}
    if len(fits.fitted) > 1 and all(c.draws for c in fits.fitted):
        wanted["sensitivity"] = sensitivity_panels
    if len({c.curve.problems_per_batch for c in fits.fitted}) > 1:
        wanted["b_p_star"] = b_p_star
    if fixed_batch(fits) is not None:
        wanted["trade"] = trade
    return [path for name, draw in wanted.items() for path in save(draw(fits), folder / name)]


def style(fits: Fits) -> dict[object, dict[str, Any]]:
    """Colour, marker and line of each curve: by n, or by the grouping column where there is one."""
    return line_styles(sorted({_key(c) for c in fits.curves}, key=lambda k: (isinstance(k, str), k)))


def _key(c: CurveFit) -> Any:
    return c.curve.group or c.curve.rollouts_per_problem


@styled
def curve_panels(fits: Fits) -> Any:
    """One panel per curve: evaluations, ringed records by bins of reward, the fit and its band (Figures 5, 15)."""
    fitted, styles = fits.fitted, style(fits)
    columns = min(3, len(fitted))
    rows = -(-len(fitted) // columns)
    figure, axes = subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for axis, c in zip(axes.flat, fitted, strict=False):
        look = styles[_key(c)]
        # From where there are data: the fit claims nothing before the first evaluation.
        grid = np.linspace(float(c.curve.compute.min()), c.curve.support[1], 200)
        assert c.parameters is not None
        if c.draws is not None:
            axis.fill_between(grid, *band(c.draws.at(grid)), color=look["color"], alpha=0.25, linewidth=0)
        axis.plot(c.curve.compute, c.curve.reward, look["marker"], color=look["color"], markersize=3, alpha=0.7)
        order = np.argsort(c.curve.compute, kind="stable")
        companion = isotonic(c.curve.compute, c.curve.reward, c.curve.standard_error**-2)
        axis.step(c.curve.compute[order], companion[order], where="post", color="0.45", linewidth=0.7)
        axis.plot(grid, c.parameters(grid), color="black", linestyle="-", linewidth=1.2)
        kept = of_records(c.curve, bin_width=fits.bin_width)
        record = kept.compute > 0
        axis.plot(kept.compute[record], kept.reward[record], "o", markersize=6, fillstyle="none", color="black",
                  markeredgewidth=0.6)  # fmt: skip
        axis.set_title(f"{c.curve.label}, B_p = {c.curve.problems_per_batch}", fontsize=9)
    for axis in axes.flat[len(fitted) :]:
        axis.set_visible(False)
    figure.supxlabel(fits.unit)
    figure.supylabel(fits.metric)
    return figure


@styled
def frontier(fits: Fits) -> Any:
    """All curves over their support, with the envelope and its band (Figure 6)."""
    figure, axis = subplots(figsize=(6, 3.8))
    styles = style(fits)
    axis.fill_between(fits.compute, fits.envelope[1], fits.envelope[2], color="0.85", linewidth=0)
    axis.plot(fits.compute, fits.envelope[0], color="0.6", linewidth=5, label="envelope", solid_capstyle="round")
    for i, c in enumerate(fits.fitted):
        look = styles[_key(c)]
        grid = np.geomspace(*c.curve.support, 200)
        assert c.parameters is not None
        axis.plot(grid, c.parameters(grid), color=look["color"], linestyle=look["linestyle"], label=fits.named(i))
        axis.plot(c.curve.compute, c.curve.reward, look["marker"], color=look["color"], markersize=2.5, alpha=0.6)
    axis.set(xscale="log", xlabel=fits.unit, ylabel=fits.metric)
    axis.legend(frameon=False, fontsize=8)
    return figure


@styled
def n_star(fits: Fits) -> Any:
    """How often each n is best, n*(C), its companion, and the log2-sigmoid with its band (Figures 7, 21, 24)."""
    figure, axis = subplots(figsize=(6, 3.4))
    values = np.array([c.curve.rollouts_per_problem for c in fits.fitted])
    _shares(figure, axis, fits, fits.compute, values, "n")
    ns = np.unique(values)
    companion = isotonic_n(fits.compute, values[fits.probability.argmax(axis=0)].astype(np.float64))
    axis.plot(fits.compute, _rank(companion, ns), color="black", linestyle=":", linewidth=1.2, label="isotonic")
    if fits.n_star.params is not None:
        x = np.log10(fits.compute)
        drawn = _rank(2.0 ** sigmoid(x, fits.n_star.params), ns)
        axis.plot(fits.compute, drawn, color=ACCENT, linestyle="--", linewidth=1.5, label="log2-sigmoid")
        if fits.n_star.draws:
            every = sigmoid(x[None, :], {k: v[:, None] for k, v in fits.n_star.draws.items()})
            low, high = band(every)
            axis.fill_between(fits.compute, _rank(2.0**low, ns), _rank(2.0**high, ns), color=ACCENT, alpha=0.2,
                              linewidth=0)  # fmt: skip
    if fits.saturation is not None and fits.saturation.compute is not None:
        axis.axvline(fits.saturation.compute, color="0.4", linewidth=0.8, label="within half a doubling of its last")
    axis.set(xscale="log", xlabel=fits.unit, ylim=(-0.6, len(ns) - 0.4))
    axis.legend(framealpha=0.9, edgecolor="none", loc="upper left", fontsize=8)
    return figure


@styled
def b_p_star(fits: Fits) -> Any:
    """How often each B_p is best, whatever its n (Figure 22)."""
    figure, axis = subplots(figsize=(6, 3.4))
    sizes = np.array([c.curve.problems_per_batch for c in fits.fitted])
    _shares(figure, axis, fits, fits.compute, sizes, "B_p")
    axis.set(xscale="log", xlabel=fits.unit)
    axis.legend(framealpha=0.9, edgecolor="none", loc="upper left", fontsize=8)
    return figure


def fixed_batch(fits: Fits) -> int | None:
    """B = B_p·n where all curves, of several n, share it; else None."""
    batches = {c.curve.problems_per_batch * c.curve.rollouts_per_problem for c in fits.fitted}
    return batches.pop() if len(batches) == 1 and len(fits.fitted) > 1 and fits.unit == "rollouts" else None


@styled
def trade(fits: Fits) -> Any:
    """n*(M) and B_p*(M) where the batch B = B_p·n is fixed (Figure 9)."""
    batch = fixed_batch(fits)
    assert batch is not None
    figure, axes = subplots(1, 2, figsize=(9, 3.2))
    for axis, (name, values) in zip(
        axes,
        (("n", np.array([c.curve.rollouts_per_problem for c in fits.fitted])),
         ("B_p", np.array([c.curve.problems_per_batch for c in fits.fitted]))),
        strict=True,
    ):  # fmt: skip
        _shares(figure, axis, fits, fits.compute / batch, values, name)
        axis.set(xscale="log", xlabel=f"update steps M, at B = {batch:,}")
        axis.legend(framealpha=0.9, edgecolor="none", fontsize=8)
    return figure


@styled
def sensitivity_panels(fits: Fits) -> Any:
    """What another n or B_p would cost at three budgets, with intervals (Figure 10)."""
    several = len({c.curve.problems_per_batch for c in fits.fitted}) > 1
    figure, axes = subplots(1, 2 if several else 1, figsize=(9 if several else 5, 3.2), squeeze=False, sharey=True)
    budgets = np.geomspace(*fits.support, 5)[1:4] if fits.support[0] < fits.support[1] else np.array(fits.support[:1])
    tables = [sensitivity(fits, compute=float(c)) for c in budgets]
    styles = line_styles([float(c) for c in budgets])
    names = [("rollouts_per_problem", "n")] + ([("problems_per_batch", "B_p")] if several else [])
    for axis, (column, name) in zip(axes[0], names, strict=True):
        for k, (budget, table) in enumerate(zip(budgets, tables, strict=True)):
            look = styles[float(budget)]
            # The other setting is at its best for each value of this one.
            best = (
                table.filter(pl.col("standing") != "refused")
                .sort("regret")
                .unique(column, keep="first", maintain_order=True)
                .sort(column)
            )
            x = np.log2(best[column].to_numpy()) + 0.06 * (k - 1)
            y = best["regret"].to_numpy()
            error = np.abs(np.stack([y - best["regret_low"].to_numpy(), best["regret_high"].to_numpy() - y]))
            axis.errorbar(
                x,
                y,
                yerror(error),
                color=look["color"],
                marker=look["marker"],
                markersize=4,
                linestyle=look["linestyle"],
                linewidth=1,
                capsize=2,
                label=f"{budget:,.3g} {fits.unit}",
            )
            beyond = best["standing"].to_numpy() != "measured"
            axis.plot(x[beyond], y[beyond], "o", markersize=9, fillstyle="none", color="0.5", markeredgewidth=0.7)
        ticks = np.unique([v for t in tables for v in t[column].to_list()])
        axis.set(xlabel=name, xticks=np.log2(ticks), xticklabels=[str(v) for v in ticks])
    axes[0][0].set_ylabel(f"{fits.metric} lost against the best")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure  # fmt: skip


def yerror(error: Array) -> Array:
    """Error bars without rounding's negative lengths."""
    return np.maximum(error, 0.0)


def _shares(figure: Any, axis: Any, fits: Fits, x: Array, values: np.ndarray, name: str) -> None:
    """How often a cell of each value is the best, as shades; that of the cell best most often, as a line."""
    levels = np.unique(values)
    probability, within_run = fits.probability, fits.within_run
    share = np.stack([probability[values == v].sum(axis=0) for v in levels])
    if fits.fitted[0].draws is not None:
        mesh = axis.pcolormesh(log_edges(x), np.arange(len(levels) + 1) - 0.5, share, cmap="Greys", vmin=0, vmax=1)
        figure.colorbar(mesh, ax=axis, label="how often it is best" + (", within-run" if within_run else ""))
    best = np.searchsorted(levels, values[probability.argmax(axis=0)])
    axis.step(x, best, where="mid", color=ACCENT, linewidth=2, label=f"{name}* (of the best cell)")
    axis.set(ylabel=name, yticks=range(len(levels)), yticklabels=[str(v) for v in levels])


def _rank(values: Array, levels: np.ndarray) -> Array:
    """Where values lie on an axis on which the levels are 0, 1, 2, … by logarithm."""
    return np.asarray(np.interp(np.log2(values), np.log2(levels), np.arange(len(levels))))
