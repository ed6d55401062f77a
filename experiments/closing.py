"""What ``repro`` prints at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from .rates.record import Pilot
from .rates.rule import TUNED
from .report.gains import gains, metric_label
from .report.health import caveats
from .report.verdict import verdict_of
from .settings import Preset


def closing_summary(preset: Preset, out: Path, took: Sequence[Mapping[str, Any]]) -> str:
    """Both scores of the base model, what was found, a sentence on each problem set, and how long each stage took.

    Args:
        took: ``stage`` and ``seconds`` of what was run, in order.
    """
    lines = [""]
    for name in preset.sweep:
        lines += [*_problem_set(preset, name, out), ""]
    lines += [*(verdict_of(preset, name, out) for name in preset.sweep), ""]
    if took:
        lines.append("Seconds: " + ", ".join(f"{t['stage']} {t['seconds']:.0f}" for t in took))
    lines.append(f"Report: {out / 'report' / 'report.html'}")
    lines.append("MLflow: python3 -m nox -s ui, then open localhost:5000")
    return "\n".join(lines)


def _problem_set(preset: Preset, name: str, out: Path) -> list[str]:
    metric, sweep = preset.evaluation.metric, out / "sweep" / name
    scores = json.loads((out / "difficulty" / "base.json").read_text())[name]
    lines = [f"{name}: base model {side}: {_base_scores(found)}" for side, found in scores.items()]
    frontier = out / "frontier" / name / "frontier.parquet"
    if frontier.exists():
        fits = json.loads((frontier.parent / "fits.json").read_text())
        lines += _n_star_lines(pl.read_parquet(frontier), within_run=fits["within_run"])
        lines += [f"  {statement}" for statement in fits["statements"]]
    states = json.loads((sweep / "cells.json").read_text())["cells"]
    pilot = Pilot.read(json.loads((sweep / "pilot.json").read_text()))
    evals = tables.read(sweep / "evals.parquet", "evals")
    for gain in gains(evals, metric, states, pilot.base.score, pilot.base.standard_error):
        size = f", B_p = {gain.problems_per_batch}" if len(preset.sweep[name].problems_per_batch) > 1 else ""
        lines.append(f"  n = {gain.rollouts_per_problem}{size}: {metric_label(metric)} {gain.text()}")
    lines.append(_rates(pilot, preset.sweep[name].grid()))
    lines += [f"  {what}: {said}" for what, said in caveats(states)]
    return lines + _prescribed(out / "prescribe" / name)


def _rates(pilot: Pilot, cells: Sequence[tuple[int, int]]) -> str:
    """The learning rate of every (n, B_p) of the sweep, and where a rate that was not searched is from."""
    several = len({size for _, size in cells}) > 1
    edges = {(each.rollouts_per_problem, each.problems_per_batch): each.edge for each in pilot.searches}
    used = {(n, size): pilot.rates().at(n, size) for n, size in cells}
    sources = {rate.source for rate in used.values()}
    shown = []
    for (n, size), rate in used.items():
        note = " (edge of the grid)" if edges.get((n, size)) else ""
        if pilot.rule == TUNED and (n, size) not in edges:
            note = f" ({rate.source})"
        shown.append(f"{rate.learning_rate:.3g} at n = {n}{f', B_p = {size}' if several else ''}{note}")
    origin = "" if pilot.rule == TUNED else f"; {', '.join(sorted(sources))}"
    return f"  learning rates ({pilot.rule}): {'; '.join(shown) if several else ', '.join(shown)}{origin}"


def _base_scores(found: Mapping[str, Any]) -> str:
    return (
        f"avg@{found['fresh_samples']} {found['fresh']:.3f} measured again "
        f"(avg@{found['selected_samples']} {found['selected']:.3f} as selected)"
    )


def _prescribed(folder: Path) -> list[str]:
    allocation = json.loads((folder / "allocation.json").read_text())
    lines = [
        f"  prescribed for {allocation['budget']:,} rollouts: n = {allocation['rollouts_per_problem']}, "
        f"B_p = {allocation['problems_per_batch']}, M = {allocation['update_steps']:,}, "
        f"learning rate {allocation['learning_rate']:.3g}"
    ]
    comparison = json.loads((folder / "comparison.json").read_text())
    for c in comparison.get("against", []):
        difference = "" if c["mean"] is None else f" by {c['mean']:+.3f}"
        span = f" ({c['interval'][0]:+.3f} to {c['interval'][1]:+.3f})" if c["interval"] else ""
        verdict = "the prescription itself" if c["verdict"] == "same" else c["verdict"]
        lines.append(f"  against fixed n = {c['baseline']}: {verdict}{difference}{span}")
    for c in comparison.get("diverged", []):
        lines.append(f"  diverged at step {c['steps']:,}: n = {c['rollouts_per_problem']}, seed {c['seed']}")
    if not comparison["tested"]:
        lines.append(f"  not tested: {comparison['reason']}")
    return lines


def _set(values: Sequence[int]) -> str:
    return "{" + ", ".join(str(v) for v in values) + "}"


def _n_star_lines(frontier: pl.DataFrame, *, within_run: bool) -> list[str]:
    best_in = "within-run" if within_run else "best in"
    lines = [f"      rollouts   n*   {best_in:10}   95 % set      reward (95 %)"]
    picks = sorted({round(i * (len(frontier) - 1) / 4) for i in range(5)})
    for row in frontier[picks].iter_rows(named=True):
        best = f"{row['probability']:.0%} of {row['competing']} n"
        lines.append(
            f"  {row['compute']:12,.0f} {row['n']:4d}   {best:10}   {_set(row['n_set']):12}  {row['reward']:.3f} "
            f"({row['reward_low']:.3f} to {row['reward_high']:.3f})"
        )
    return lines
