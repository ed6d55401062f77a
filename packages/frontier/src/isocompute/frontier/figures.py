"""Figures in the manner of the IsoCompute Playbook's 5, 6 and 7; the same fits give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .results import Fits

MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))


def all_figures(fits: Fits, folder: str | Path) -> list[Path]:
    """Draw ``curves``, ``frontier`` and ``n_star`` as SVG and PNG; nothing when no curve was fitted."""
    if not fits.fitted:
        return []
    folder = Path(folder)
    return [
        path
        for name, draw in (("curves", curve_panels), ("frontier", frontier), ("n_star", n_star))
        for path in _save(draw(fits), folder / name)
    ]


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "isocompute", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    from matplotlib import pyplot

    return pyplot


def style(fits: Fits) -> dict[int, dict[str, Any]]:
    """Colour, marker and line of each n, legible in greyscale: light to dark as n grows."""
    import matplotlib as mpl

    ns = sorted({c.curve.rollouts_per_problem for c in fits.curves})
    shades = mpl.colormaps["viridis_r"](np.linspace(0.15, 0.95, len(ns)))
    return {
        n: {"color": shades[i], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
        for i, n in enumerate(ns)
    }


def _save(figure: Any, path: Path) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    figure.savefig(png, dpi=150, metadata={"Software": None})
    _pyplot().close(figure)
    return [svg, png]


def curve_panels(fits: Fits) -> Any:
    """One panel per n: every evaluation, the record-breaking ones ringed, the fit and its band (Figure 5)."""
    fitted, styles = fits.fitted, style(fits)
    columns = min(3, len(fitted))
    rows = -(-len(fitted) // columns)
    figure, axes = _pyplot().subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, c in zip(axes.flat, fitted, strict=False):
        look = styles[c.curve.rollouts_per_problem]
        grid = np.linspace(0, c.curve.support[1], 200)
        assert c.parameters is not None
        assert c.draws is not None
        low, high = np.quantile(c.draws.at(grid), [0.025, 0.975], axis=0)
        axis.fill_between(grid, low, high, color=look["color"], alpha=0.2, linewidth=0)
        axis.plot(grid, c.parameters(grid), color=look["color"], linestyle=look["linestyle"])
        axis.plot(c.curve.compute, c.curve.reward, look["marker"], color=look["color"], markersize=3)
        for s in range(c.curve.seeds):
            own = c.curve.seed == s
            x, y = c.curve.compute[own], c.curve.reward[own]
            record = y > np.concatenate([[-np.inf], np.maximum.accumulate(y)[:-1]])
            axis.plot(x[record], y[record], "o", markersize=6, fillstyle="none", color="black", markeredgewidth=0.6)
        axis.set_title(f"n = {c.curve.rollouts_per_problem}, B_p = {c.curve.problems_per_batch}", fontsize=9)
    for axis in axes.flat[len(fitted) :]:
        axis.set_visible(False)
    figure.supxlabel(fits.unit)
    figure.supylabel(fits.metric)
    return figure


def frontier(fits: Fits) -> Any:
    """All curves over their support, with the envelope and its band (Figure 6)."""
    figure, axis = _pyplot().subplots(figsize=(6, 3.8), layout="constrained")
    styles = style(fits)
    axis.fill_between(fits.compute, fits.envelope[1], fits.envelope[2], color="0.85", linewidth=0)
    axis.plot(fits.compute, fits.envelope[0], color="0.6", linewidth=5, label="envelope", solid_capstyle="round")
    for c in fits.fitted:
        look = styles[c.curve.rollouts_per_problem]
        grid = np.geomspace(*c.curve.support, 200)
        assert c.parameters is not None
        label = f"n = {c.curve.rollouts_per_problem}"
        axis.plot(grid, c.parameters(grid), color=look["color"], linestyle=look["linestyle"], label=label)
        axis.plot(c.curve.compute, c.curve.reward, look["marker"], color=look["color"], markersize=2.5, alpha=0.6)
    axis.set(xscale="log", xlabel=fits.unit, ylabel=fits.metric)
    axis.legend(frameon=False)
    return figure


def n_star(fits: Fits) -> Any:
    """How often each n is best, and n*(C) as the most frequent (Figure 7)."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    ns = sorted({c.curve.rollouts_per_problem for c in fits.fitted})
    share = np.zeros((len(ns), len(fits.compute)))
    for c, row in zip(fits.fitted, fits.probability, strict=True):
        share[ns.index(c.curve.rollouts_per_problem)] += row
    edges = np.sqrt(fits.compute[1:] * fits.compute[:-1])
    edges = np.concatenate([fits.compute[:1], edges, fits.compute[-1:]])
    mesh = axis.pcolormesh(edges, np.arange(len(ns) + 1) - 0.5, share, cmap="Greys", vmin=0, vmax=1)
    figure.colorbar(mesh, ax=axis, label="how often it is best")
    axis.step(fits.compute, share.argmax(axis=0), where="mid", color="#c05621", linewidth=2, label="n*")
    axis.set(xscale="log", xlabel=fits.unit, ylabel="n", yticks=range(len(ns)), yticklabels=[str(n) for n in ns])
    axis.legend(frameon=False, loc="upper left")
    return figure
