"""Draw the curves of units from the committed tables alone: reward against rollouts, n by colour, rates by line."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import ExperimentError
from ..figures import pyplot, save
from . import study as panel
from .background import RESULTS
from .prepare import preset_of
from .whole import Whole, read

STYLES = (":", "-", "--")
"""Of the rate factors, lowest first."""


def draw(name: str | None = None, *, out: Path = RESULTS) -> Iterator[Path]:
    """Draw one unit, or every one that has tables; yields the pictures."""
    study = panel.load()
    units = study.units() if name is None else [study.unit(name)]
    there = [unit for unit in units if (RESULTS / unit.name / "evals.parquet").exists()]
    if not there:
        raise ExperimentError(f"{RESULTS.name}/ has no tables of {name or 'any unit'}: `collect` copies them there")
    for unit in there:
        styles = dict(zip(sorted(study.rate_factors), STYLES, strict=True))
        figure = _figure(read(study, unit), preset_of(unit).evaluation.metric, styles)
        save(figure, out / unit.name / "curves")
        yield out / unit.name / "curves.png"


def _figure(whole: Whole, metric: str, styles: dict[Any, str]) -> Any:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    shown = whole.evals.filter(pl.col("kind").is_in(["trunk", "branch"]) & (pl.col("step") > 0)).sort("rollouts")
    for place, n in enumerate(whole.group_sizes):
        colour = plt.get_cmap("viridis")(0.9 * place / max(1, len(whole.group_sizes) - 1))
        own = shown.filter(pl.col("rollouts_per_problem") == n)
        for (kind, factor, _), rows in own.group_by("kind", "factor", "run_id", maintain_order=True):
            if kind == "branch":
                axes.plot(rows["rollouts"][-1:], rows[metric][-1:], "*", color=colour, markersize=9)
            else:
                label = f"n = {n}" if styles[factor] == "-" else None
                axes.plot(rows["rollouts"], rows[metric], styles[factor], color=colour, linewidth=1.2, label=label)
    axes.set_xscale("log", base=2)
    measured = shown["rollouts"].to_list()
    ticks = [2**k for k in range(int(log2(min(measured))), int(log2(max(measured))) + 1)]
    axes.set_xticks(ticks, [f"{tick / 1024:g}k" if tick >= 1024 else str(tick) for tick in ticks])
    title = f"{whole.unit.name}: dotted, solid and dashed: rate × ½, 1, 2 of the √B rule; stars: decay branches"
    axes.set(xlabel="rollouts generated for training", ylabel=metric.replace("_at_", "@"), title=title)
    axes.title.set_fontsize(9)
    axes.legend(frameon=False, fontsize=8)
    return figure
