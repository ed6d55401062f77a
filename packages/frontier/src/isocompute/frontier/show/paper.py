"""Figures for the paper's own method: records and curves (5, 15), the envelope (6), n*(C) with its sigmoid (7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..answers.answer import called, differing
from ..answers.paper import PaperFits
from ..data.curves import isotonic
from ..fitting.nstar import sigmoid
from .drawing import (
    ACCENT,
    NAMES,
    PROBLEMS,
    ROLLOUTS,
    WORDS,
    compute_axis,
    key,
    panels,
    save,
    styled,
    styles_of,
    subplots,
)


def paper_figures(fits: PaperFits, folder: str | Path) -> list[Path]:
    """Draw every figure that the fits have curves for, as SVG and PNG; none if no curve was fitted.

    Raises:
        FrontierError: A file cannot be written.
    """
    if not fits.fitted:
        return []
    wanted = {"curves": curve_panels(fits), "frontier": frontier(fits), "n_star": best_setting(fits, ROLLOUTS)}
    if differing([c.cell for c in fits.fitted])[0]:
        wanted["b_p_star"] = best_setting(fits, PROBLEMS)
    return [path for name, figure in wanted.items() for path in save(figure, Path(folder) / name)]


@styled
def curve_panels(fits: PaperFits) -> Any:
    """One panel per curve: evaluations, ringed records by bins of reward, an isotonic fit (grey steps), and the fit."""
    fitted, styles = fits.fitted, styles_of(c.cell for c in fits.curves)
    figure, axes = panels(len(fitted), height=2.6)
    for axis, c in zip(axes, fitted, strict=True):
        look = styles[key(c.cell)]
        assert c.parameters is not None
        grid = np.linspace(float(c.compute.min()), c.support[1], 200)
        axis.plot(c.compute, c.reward, look["marker"], color=look["color"], markersize=3, alpha=0.7)
        order = np.argsort(c.compute, kind="stable")
        axis.step(c.compute[order], isotonic(c.compute, c.reward)[order], where="post", color="0.45", lw=0.7)
        axis.plot(grid, c.parameters(grid), color="black", linestyle="-", linewidth=1.2)
        compute, reward = c.records(bin_width=fits.config.bin_width)
        record = compute > 0
        axis.plot(compute[record], reward[record], "o", ms=6, fillstyle="none", color="black", mew=0.6)
        axis.set_title(called(c.cell, several=True), fontsize=9)
    figure.supxlabel(f"compute in {fits.config.unit.replace('_', ' ')}")
    figure.supylabel(fits.config.metric)
    return figure


@styled
def frontier(fits: PaperFits) -> Any:
    """All curves over their support, with the envelope (Figure 6)."""
    figure, axis = subplots(figsize=(6, 3.8))
    styles, (several, _) = styles_of(c.cell for c in fits.curves), differing([c.cell for c in fits.fitted])
    axis.plot(fits.compute, fits.reached.max(axis=0), color="0.75", lw=5, label="envelope", solid_capstyle="round")
    for c in fits.fitted:
        look = styles[key(c.cell)]
        assert c.parameters is not None
        grid = np.geomspace(*c.support, 200)
        axis.plot(
            grid,
            c.parameters(grid),
            color=look["color"],
            linestyle=look["linestyle"],
            label=called(c.cell, several=several),
        )
        after = c.compute > 0
        axis.plot(c.compute[after], c.reward[after], look["marker"], color=look["color"], ms=2.5, alpha=0.6)
    compute_axis(axis, f"compute in {fits.config.unit}")
    axis.set(ylabel=fits.config.metric, title="The paper's method: curves and their envelope")
    axis.legend(frameon=False, fontsize=8)
    return figure


@styled
def best_setting(fits: PaperFits, setting: str) -> Any:
    """n* or B_p* of the envelope against compute; for n* also the log2-sigmoid (Figures 7, 21, 22, 24)."""
    figure, axis = subplots(figsize=(6, 3.4))
    values = np.array([getattr(c.cell, setting) for c in fits.fitted])
    levels = np.unique(values)
    best, label = np.searchsorted(levels, values[fits.best]), f"{NAMES[setting]} of the envelope"
    axis.step(fits.compute, best, where="mid", color="black", lw=2, label=label)
    if setting == ROLLOUTS and fits.n_star.params is not None:
        # The axis has the levels at 0, 1, 2, …, interpolated by logarithm.
        line = np.interp(sigmoid(np.log10(fits.compute), fits.n_star.params), np.log2(levels), np.arange(len(levels)))
        axis.plot(fits.compute, line, color=ACCENT, linestyle="--", linewidth=1.5, label="log2-sigmoid")
    axis.set(yticks=range(len(levels)), yticklabels=[f"{v:,}" for v in levels], ylim=(-0.6, len(levels) - 0.4))
    axis.set(ylabel=WORDS[setting], title=f"{NAMES[setting]}*(C)")
    compute_axis(axis, f"compute in {fits.config.unit}")
    axis.legend(framealpha=0.9, edgecolor="none", loc="upper left", fontsize=8)
    return figure
