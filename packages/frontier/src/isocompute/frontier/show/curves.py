"""Runs and their fitted curves: a panel for each setting, and all of them with the setting chosen at each budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..answers.answer import name
from ..answers.fitted import Fitted
from ..data.curves import Array
from ..posterior.decision import at_best_rates
from ..posterior.runs import Setting
from .drawing import compute_axis, line_styles, styled, subplots

POINTS = 80
MOST_PANELS = 24


@styled
def curve_panels(fitted: Fitted) -> Any:
    """A panel per setting: its runs, one marker a run, and its mean curve with the 95 % interval (Figures 5, 15)."""
    cells = fitted.cells[:MOST_PANELS]
    columns = min(3, len(cells))
    rows = -(-len(cells) // columns)
    figure, axes = subplots(
        rows, columns, figsize=(3.2 * columns, 2.4 * rows + 0.4), sharex=True, sharey=True, squeeze=False
    )
    styles, runs = styles_of(fitted), fitted.prepared.runs
    several, rated = fitted.differing
    for k, (cell, axis) in enumerate(zip(cells, axes.flat, strict=False)):
        look = styles[key(cell)]
        grid = _grid(fitted, k)
        drawn = fitted.posterior.reward(grid)[:, k]
        axis.fill_between(grid, *np.quantile(drawn, [0.025, 0.975], axis=0), color=look["color"], alpha=0.25, lw=0)
        axis.plot(grid, drawn.mean(axis=0), color="black", linewidth=1.2)
        for i, run in enumerate(np.flatnonzero(runs.cell == k)):
            after = runs.seen[run] & (runs.compute[run] > 0)
            axis.plot(
                runs.compute[run, after], runs.reward[run, after], "osDv^"[i % 5], color=look["color"], ms=3, alpha=0.7
            )
        axis.set_title(f"n = {name(cell, several, rated)}", fontsize=9)
        compute_axis(axis, "")
    for axis in axes.flat[len(cells) :]:
        axis.set_visible(False)
    figure.supxlabel(f"compute in {fitted.unit.replace('_', ' ')}")
    figure.supylabel(fitted.metric)
    return figure


@styled
def frontier_figure(fitted: Fitted) -> Any:
    """``draw_frontier`` on a figure of its own."""
    figure, axes = subplots(figsize=(6.2, 3.9))
    draw_frontier(fitted, axes)
    return figure


def draw_frontier(fitted: Fitted, axes: Any) -> Any:
    """Mean curves of the settings, of several rates the best one's, and the chosen setting at each budget (Figure 6).

    The band is the 95 % interval of the chosen setting alone.
    """
    styles, path, runs = styles_of(fitted), fitted.path(), fitted.prepared.runs
    drawn = fitted.healthy(path.compute)
    chosen = np.stack([drawn[:, k, p] for p, k in enumerate(path.chosen)])
    axes.fill_between(path.compute, *np.quantile(chosen, [0.025, 0.975], axis=1), color="0.88", lw=0)
    axes.plot(path.compute, chosen.mean(axis=1), color="0.65", lw=5, solid_capstyle="round", label="chosen at a budget")
    options = at_best_rates(fitted.decide(fitted.largest).options)
    for k in sorted(fitted.cells.index(o.cell) for o in options if o.cell in fitted.cells):
        cell, grid, own = fitted.cells[k], _grid(fitted, k), runs.cell == k
        look = styles[key(cell)]
        mean = fitted.posterior.reward(grid)[:, k].mean(axis=0)
        axes.plot(
            grid, mean, color=look["color"], linestyle=look["linestyle"], label=f"n = {name(cell, fitted.differing[0])}"
        )
        after = runs.seen[own] & (runs.compute[own] > 0)
        axes.plot(
            runs.compute[own][after], runs.reward[own][after], look["marker"], color=look["color"], ms=2.5, alpha=0.6
        )
    compute_axis(axes, f"compute in {fitted.unit}")
    axes.set(ylabel=fitted.metric, title="Reward by compute, and what is chosen")
    axes.legend(frameon=False, fontsize=8)
    return axes


def styles_of(fitted: Fitted) -> dict[object, dict[str, Any]]:
    """Colour, marker and line of each setting: by n, or by the grouping column where there is one."""
    return line_styles(sorted({key(c) for c in fitted.cells}, key=lambda k: (isinstance(k, str), k)))


def key(cell: Setting) -> Any:
    """The value that a setting's colour stands for."""
    return cell.group or cell.rollouts_per_problem


def _grid(fitted: Fitted, k: int) -> Array:
    """Compute from the first evaluation of a setting to its last."""
    runs = fitted.prepared.runs
    own = runs.seen & (runs.cell == k)[:, None] & (runs.compute > 0)
    return np.geomspace(runs.compute[own].min(), runs.compute[own].max(), POINTS)
