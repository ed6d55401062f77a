"""Draw the curves of units from the committed tables alone: reward against rollouts, n by colour, rates by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from ..figures import pyplot, save
from . import study as panel
from .background import RESULTS
from .prepare import preset_of

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
        folder, preset = RESULTS / unit.name, preset_of(unit)
        states = {each["run_id"]: each for each in json.loads((folder / "cells.json").read_text())["cells"]}
        figure = _figure(tables.read(folder / "evals.parquet", "evals"), states, preset.evaluation.metric, unit.name)
        save(figure, out / unit.name / "curves")
        yield out / unit.name / "curves.png"


def _figure(evals: pl.DataFrame, states: dict[str, Any], metric: str, name: str) -> Any:
    plt = pyplot()
    first = min(int(each["seed"]) for each in states.values() if each["purpose"] != "pilot")
    shown = {
        run: own
        for run, own in states.items()
        if own["purpose"] != "pilot" and own["seed"] == first and run in set(evals["run_id"])
    }
    usual = min(own["problems_per_batch"] for own in shown.values())
    group_sizes = sorted({own["rollouts_per_problem"] for own in shown.values()})
    colours = plt.get_cmap("viridis")
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for n in group_sizes:
        own = {
            run: s for run, s in shown.items() if s["rollouts_per_problem"] == n and s["problems_per_batch"] == usual
        }
        colour = colours(0.9 * group_sizes.index(n) / max(1, len(group_sizes) - 1))
        rates = sorted({state["learning_rate"] for state in own.values()})
        for run, state in own.items():
            rows = evals.filter((pl.col("run_id") == run) & (pl.col("step") > 0)).sort("rollouts")
            if state["branch_of"] is None:
                style = STYLES[rates.index(state["learning_rate"]) % len(STYLES)]
                label = f"n = {n}" if style == "-" else None
                axes.plot(rows["rollouts"], rows[metric], style, color=colour, linewidth=1.2, label=label)
            else:
                axes.plot(rows["rollouts"][-1:], rows[metric][-1:], "*", color=colour, markersize=9)
    axes.set_xscale("log", base=2)
    measured = evals.filter(pl.col("step") > 0)["rollouts"].to_list()
    ticks = [2**k for k in range(int(log2(min(measured))), int(log2(max(measured))) + 1)]
    axes.set_xticks(ticks, [f"{tick / 1024:g}k" if tick >= 1024 else str(tick) for tick in ticks])
    title = f"{name}: dotted, solid and dashed: rate × ½, 1, 2 of the √B rule; stars: decay branches"
    axes.set(xlabel="rollouts generated for training", ylabel=metric.replace("_at_", "@"), title=title)
    axes.title.set_fontsize(9)
    axes.legend(frameon=False, fontsize=8)
    return figure
