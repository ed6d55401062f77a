"""Drawing: one style per n, legible in greyscale, and reproducible files.

Figures of a fit: its runs and curves, the setting chosen at each budget, regret, and n* (or B_p*) over compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from ..answers.answer import called
from ..answers.fitted import Fitted
from ..contract.files import atomic_write
from ..data.curves import Array
from ..data.reading import short
from ..errors import FrontierError
from ..posterior.decision import at_best_rates
from ..posterior.runs import Setting

MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
ACCENT = "#c05621"


STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

Drawn = TypeVar("Drawn", bound=Callable[..., Any])


def styled(draw: Drawn) -> Drawn:
    """Make a function draw in our style without changing the process's style or backend."""

    @wraps(draw)
    def inside(*arguments: Any, **named: Any) -> Any:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            return draw(*arguments, **named)

    return cast("Drawn", inside)


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **settings: Any) -> tuple[Any, Any]:
    """A figure without a window manager, and its axes, as from ``pyplot.subplots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **settings)


def panels(count: int, *, height: float, more: float = 0.0) -> tuple[Any, list[Any]]:
    """A figure of this many panels with one scale and height (inches), three in a row, and their axes."""
    columns = min(3, count)
    rows = -(-count // columns)
    size = (3.2 * columns, height * rows + more)
    figure, axes = subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def styles_of(settings: Iterable[Setting]) -> dict[object, dict[str, Any]]:
    """``line_styles`` by n, or by the grouping column if there is one: numbers first, then names."""
    return line_styles(sorted(set(map(key, settings)), key=lambda each: (isinstance(each, str), each)))


def key(setting: Setting) -> Any:
    """The value that determines a setting's colour."""
    return setting.group or setting.rollouts_per_problem


def line_styles(values: Sequence[object]) -> dict[object, dict[str, Any]]:
    """Colour, marker and line style of each value in order, light to dark, so that they differ in greyscale too."""
    import matplotlib as mpl

    shades = mpl.colormaps["viridis_r"](np.linspace(0.15, 0.95, len(values)))
    return {
        value: {"color": shades[i], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
        for i, value in enumerate(values)
    }


def save(figure: Any, path: Path) -> list[Path]:
    """Write SVG and PNG without dates or program versions; return both paths.

    Args:
        path: Target path; the suffix is replaced.

    Raises:
        FrontierError: The files cannot be written.
    """
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    with atomic_write(svg, error=FrontierError) as stream:
        write_svg(figure, stream)
    with atomic_write(png, error=FrontierError) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return [svg, png]


def write_svg(figure: Any, stream: IO[bytes]) -> None:
    """Write a figure as SVG with fixed ids, so that equal figures give equal bytes."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "isocompute"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})


def compute_axis(axes: Any, unit: str) -> None:
    """A logarithmic compute axis with ticks such as 2k and 1M."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = [t for t in 10.0 ** np.arange(0, 16) if low <= t <= high]
    if len(decades) < 3:
        decades = [t for d in 10.0 ** np.arange(0, 16) for t in (d, 2 * d, 5 * d) if low <= t <= high]
    axes.set_xticks(decades, [short(t) for t in decades])
    axes.minorticks_off()
    axes.set_xlabel(unit.replace("_", " "))


POINTS = 80
MOST_PANELS = 24


@styled
def curve_panels(fitted: Fitted) -> Any:
    """One panel per setting: its runs with a marker each, and its mean curve with 95 % interval (Figures 5, 15)."""
    cells = fitted.cells[:MOST_PANELS]
    figure, axes = panels(len(cells), height=2.4, more=0.4)
    styles, runs = styles_of(fitted.cells), fitted.prepared.runs
    several, rated = fitted.differing
    for k, (cell, axis) in enumerate(zip(cells, axes, strict=True)):
        look = styles[key(cell)]
        grid = _grid(fitted, k)
        drawn = fitted.posterior.reward(grid)[:, k]
        axis.fill_between(grid, *np.quantile(drawn, [0.025, 0.975], axis=0), color=look["color"], alpha=0.25, lw=0)
        axis.plot(grid, drawn.mean(axis=0), color="black", linewidth=1.2)
        for i, run in enumerate(np.flatnonzero(runs.cell == k)):
            after = runs.seen[run] & (runs.compute[run] > 0)
            at, reward = runs.compute[run, after], runs.reward[run, after]
            axis.plot(at, reward, "osDv^"[i % 5], color=look["color"], ms=3, alpha=0.7)
        axis.set_title(called(cell, several=several, rated=rated), fontsize=9)
        compute_axis(axis, "")
    figure.supxlabel(f"compute in {fitted.unit.replace('_', ' ')}")
    figure.supylabel(fitted.metric)
    return figure


def draw_frontier(fitted: Fitted, axes: Any) -> Any:
    """Mean curves of the settings (of several rates, the best one's), and the setting chosen at each budget (Figure 6).

    The band is the 95 % interval of the chosen setting only.
    """
    styles, path, runs = styles_of(fitted.cells), fitted.path(), fitted.prepared.runs
    drawn = fitted.healthy(path.compute)
    chosen = np.stack([drawn[:, k, p] for p, k in enumerate(path.chosen)])
    axes.fill_between(path.compute, *np.quantile(chosen, [0.025, 0.975], axis=1), color="0.88", lw=0)
    axes.plot(path.compute, chosen.mean(axis=1), color="0.65", lw=5, solid_capstyle="round", label="chosen at a budget")
    options, several = at_best_rates(fitted.decide(fitted.largest).options), fitted.differing[0]
    for k in sorted(fitted.cells.index(o.cell) for o in options if o.cell in fitted.cells):
        grid, look = _grid(fitted, k), styles[key(fitted.cells[k])]
        mean, label = fitted.posterior.reward(grid)[:, k].mean(axis=0), called(fitted.cells[k], several=several)
        axes.plot(grid, mean, color=look["color"], linestyle=look["linestyle"], label=label)
        own = runs.seen & (runs.compute > 0) & (runs.cell == k)[:, None]
        axes.plot(runs.compute[own], runs.reward[own], look["marker"], color=look["color"], ms=2.5, alpha=0.6)
    compute_axis(axes, f"compute in {fitted.unit}")
    axes.set(ylabel=fitted.metric, title="Reward by compute, and what is chosen")
    axes.legend(frameon=False, fontsize=8)
    return axes


def _grid(fitted: Fitted, k: int) -> Array:
    """Compute values from a setting's first evaluation to its last."""
    runs = fitted.prepared.runs
    own = runs.seen & (runs.cell == k)[:, None] & (runs.compute > 0)
    return np.geomspace(runs.compute[own].min(), runs.compute[own].max(), POINTS)


BUDGETS = (1.0, 0.5, 0.25, 0.125)
"""Budgets as multiples of the decision's: the budget itself and smaller ones."""
PALER = ("#2b6cb0", "#63b3ed", "#bee3f8")
ROLLOUTS, PROBLEMS = "rollouts_per_problem", "problems_per_batch"
NAMES = {ROLLOUTS: "n", PROBLEMS: "B_p"}
WORDS = {ROLLOUTS: "rollouts per problem n", PROBLEMS: "problems per batch B_p"}


@styled
def decision_figure(fitted: Fitted, setting: str = ROLLOUTS, *, budget: float | None = None) -> Any:
    """Both panels side by side.

    Args:
        setting: The setting to decide about; the other one is at its best for each value.
        budget: The decision's budget; by default the largest measured compute.
    """
    figure, (left, right) = subplots(1, 2, figsize=(9.5, 3.8))
    draw_regret(fitted, left, setting, budget=budget)
    draw_best(fitted, right, setting, budget=budget)
    return figure


@styled
def alone(draw: Callable[..., Any], fitted: Fitted, *, size: tuple[float, float] = (4.8, 3.6), **given: Any) -> Any:
    """One panel on its own figure, small enough for a phone."""
    figure, axes = subplots(figsize=size)
    draw(fitted, axes, **given)
    return figure


def draw_regret(fitted: Fitted, axes: Any, setting: str = ROLLOUTS, *, budget: float | None = None) -> Any:
    """Expected regret at several budgets (IsoCompute Playbook, Figure 10); arguments as in ``decision_figure``."""
    asked = budget or fitted.largest
    values = sorted({getattr(c, setting) for c in fitted.settings})
    for share, colour, marker in zip(BUDGETS, (ACCENT, *PALER), MARKERS[:4], strict=True):
        compute = asked * share
        if share < 1 and compute < fitted.path_start:
            continue
        options = fitted.decide(compute).options
        regret = [min((o.regret for o in options if getattr(o.cell, setting) == v), default=np.nan) for v in values]
        axes.plot(values, regret, marker=marker, ms=4, color=colour, lw=2 if share == 1 else 1, label=short(compute))
        if share == 1:
            chosen = getattr(options[0].cell, setting)
            # The title names it: beside the ring, a label would lie on an axis or a line.
            axes.plot(chosen, regret[values.index(chosen)], "o", ms=11, mfc="none", mec=ACCENT, mew=1.6, clip_on=False)
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{v:,}" for v in values])
    axes.set_ylim(bottom=0)
    axes.set(
        title=f"At {short(asked)} {NAMES[setting]} = {chosen} is expected to lose least",
        xlabel=WORDS[setting],
        ylabel=f"expected regret in {fitted.metric}",
    )
    axes.legend(title=f"budget in {fitted.unit}", frameon=False, fontsize=8)
    return axes


def draw_best(
    fitted: Fitted,
    axes: Any,
    setting: str = ROLLOUTS,
    *,
    budget: float | None = None,
    batch_rollouts: int | None = None,
) -> Any:
    """The value of least expected regret against compute, over P(best) of every value (Figures 7, 21, 22, 24).

    Args:
        setting: As in ``decision_figure``.
        budget: Marked, if runs reached it.
        batch_rollouts: B, to plot against update steps M = C/B (Figure 9).
    """
    path = fitted.path()
    each = np.array([getattr(c, setting) for c in fitted.settings])
    values = np.unique(each)
    share = np.stack([path.probability_best[:, each == v].sum(axis=1) for v in values])
    at = path.compute / (batch_rollouts or 1)
    mesh = axes.pcolormesh(
        at, np.arange(len(values)), share, cmap="Blues", vmin=0, vmax=1, shading="nearest", rasterized=True
    )
    chosen = np.searchsorted(values, each[path.chosen])
    axes.step(at, chosen, where="mid", color=ACCENT, linewidth=2, label=f"{NAMES[setting]}*")
    if budget is not None and at[0] < budget < at[-1]:
        axes.axvline(budget, color=ACCENT, lw=1, ls=":", label="the budget")
    axes.set_yticks(np.arange(len(values)), [f"{v:,}" for v in values])
    unit = f"compute in {fitted.unit}" if batch_rollouts is None else f"update steps at B = {batch_rollouts:,}"
    compute_axis(axes, unit)
    axes.set(title=f"{NAMES[setting]}* over compute", ylabel=WORDS[setting])
    axes.figure.colorbar(mesh, ax=axes, label="P(best)")
    axes.legend(framealpha=0.9, edgecolor="none", fontsize=8, loc="upper left")
    return axes


@styled
def trade_figure(fitted: Fitted, batch_rollouts: int) -> Any:
    """n*(M) and B_p*(M) at one B = B_p·n (Figure 9)."""
    figure, axes = subplots(1, 2, figsize=(9.5, 3.4))
    for axis, setting in zip(axes, NAMES, strict=True):
        draw_best(fitted, axis, setting, batch_rollouts=batch_rollouts)
    return figure
