"""The report: one self-contained HTML file that can be read without the paper."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.frontier import MEANING, Flag
from isocompute.rollout import tables

from .config import Preset

STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1a202c}
h1{font-size:1.7rem}h2{margin-top:2.2rem;border-bottom:1px solid #e2e8f0}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #edf2f7}
td:first-child,th:first-child{text-align:left}
img{max-width:100%}.answer{background:#f0f7ff;border-left:4px solid #2b6cb0;padding:.8rem 1rem}
.caveat{background:#fffaf0;border-left:4px solid #c05621;padding:.5rem 1rem;margin:.5rem 0}
"""


def write(preset: Preset, out: Path) -> Path:
    """Write ``report/report.html`` from what the other stages wrote."""
    sets = list(preset.sweep)
    parts = [
        "<h1>How should the sampling budget be split?</h1>",
        "<p>Training a language model with reinforcement learning spends a budget of sampled answers, "
        "<i>C = B<sub>p</sub> · n · M</i>: problems per batch, rollouts (answers) per problem, and update "
        "steps. This report measures which <i>n</i> buys the most reward at each budget, prescribes a split for "
        f"a larger budget, and tests it. Preset: <b>{escape(preset.name)}</b>.</p>",
        _difficulty(preset, out),
    ]
    for name in sets:
        parts.append(_problem_set(preset, name, out))
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>IsoCompute report</title>'
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    path = out / "report" / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".writing")
    aside.write_text(page)
    aside.rename(path)
    return path


def _difficulty(preset: Preset, out: Path) -> str:
    rows = []
    for name, wanted in preset.difficulty.sets.items():
        table = tables.read(out / "difficulty" / f"{name}.parquet", "problems")
        for split in ("train", "validation"):
            part = table.filter(pl.col("split") == split)
            rows.append((f"{name}, {split}", len(part), f"{part['pass_rate'].to_numpy().mean():.3f}",
                         f"{wanted.lowest:g} to {wanted.highest:g}"))  # fmt: skip
    return (
        "<h2>The problems</h2><p>Every problem was answered "
        f"{preset.difficulty.samples} times by the base model; problem sets are cut by the share answered "
        "rightly.</p>"
        + _table(("problem set", "problems", f"avg@{preset.difficulty.samples}", "pass rates"), rows)
        + _image(out / "difficulty" / "histogram.png", "Pass rates of the base model")
    )


def _problem_set(preset: Preset, name: str, out: Path) -> str:
    fits = json.loads((out / "frontier" / name / "fits.json").read_text())
    pilot = json.loads((out / "sweep" / name / "pilot.json").read_text())
    allocation = json.loads((out / "prescribe" / name / "allocation.json").read_text())
    comparison = json.loads((out / "prescribe" / name / "comparison.json").read_text())
    evals = tables.read(out / "sweep" / name / "evals.parquet", "evals")
    parts = [f"<h2>Problem set: {escape(name)}</h2>", _answer(allocation, comparison)]
    parts.append("<h3>What was spent</h3>" + _spent(name, out) + _pilot(pilot))
    parts.append(
        "<h3>The curves</h3><p>Reward on validation problems against rollouts spent: every evaluation of every "
        "seed, record-breaking ones ringed, the fitted curve and its 95&nbsp;% band.</p>"
        + _image(out / "frontier" / name / "curves.png", "Fitted curves")
        + _gains(evals)
        + _curves(fits)
    )
    parts.append(
        "<h3>The frontier</h3><p>The best reward at each budget, over the budgets that were measured.</p>"
        + _image(out / "frontier" / name / "frontier.png", "Frontier")
        + _image(out / "frontier" / name / "n_star.png", "Best n at each budget")
        + _transitions(fits)
    )
    parts.append("<h3>Caveats</h3>" + _caveats(fits, allocation, pilot))
    return "".join(parts)


def _answer(allocation: dict[str, Any], comparison: dict[str, Any]) -> str:
    chosen = allocation["candidates"][0]
    text = (
        f"For {allocation['budget']:,} {allocation['unit']}: <b>n = {allocation['rollouts_per_problem']}</b>, "
        f"B<sub>p</sub> = {allocation['problems_per_batch']}, M = {allocation['update_steps']:,}, learning rate "
        f"{allocation['learning_rate']:.3g}. It was best in {chosen['probability']:.0%} of the refits; expected "
        f"reward {chosen['reward']:.3f} (95&nbsp;%: {chosen['reward_low']:.3f} to {chosen['reward_high']:.3f})."
    )
    if not comparison["tested"]:
        return f'<p class="answer">{text} Not tested: {escape(comparison["reason"])}.</p>'
    rows = [
        (
            f"n = {c['prescribed']} against n = {c['baseline']}",
            "—" if c["mean"] is None else f"{c['mean']:+.3f}",
            "—" if not c["interval"] else f"{c['interval'][0]:+.3f} to {c['interval'][1]:+.3f}",
            len(c["differences"]),
            c["verdict"],
        )
        for c in comparison["against"]
    ]
    return (
        f'<p class="answer">{text}</p><p>Trained at that budget with fresh seeds, next to fixed n; difference of '
        "the last evaluations, seed by seed:</p>"
        + _table(("comparison", "difference", "95 % t interval", "seeds", "verdict"), rows)
    )


def _spent(name: str, out: Path) -> str:
    ledgers = [("sweep", tables.read(out / "sweep" / name / "ledger.parquet", "ledger"))]
    tested = out / "prescribe" / name / "ledger.parquet"
    if tested.exists():
        ledgers.append(("test of the prescription", tables.read(tested, "ledger")))
    rows = []
    for label, ledger in ledgers:
        sums = ledger.group_by("cohort").agg(pl.col("rollouts", "response_tokens").sum()).sort("cohort")
        for cohort, rollouts, tokens in sums.iter_rows():
            rows.append((f"{label}: {cohort}", f"{rollouts:,}", f"{tokens:,}"))
    return _table(("what for", "rollouts", "response tokens"), rows)


def _pilot(pilot: dict[str, Any]) -> str:
    rows = [(f"{s['learning_rate']:.3g}", f"{s['base_avg_at_4']:.3f}", f"{s['avg_at_4']:.3f}") for s in pilot["grid"]]
    return (
        f"<p>A pilot at the largest batch ({pilot['batch_rollouts']:,} rollouts) chose the learning rate "
        f"{pilot['learning_rate']:.3g}; other batches are scaled from it by the root of their size.</p>"
        + _table(("learning rate", "avg@4 before", "avg@4 at the end"), rows)
    )


def gains(evals: pl.DataFrame) -> pl.DataFrame:
    """First and last avg@4 of each n, means over seeds: ``n``, ``base``, ``last``, ``seeds``."""
    ordered = evals.sort("rollouts")
    per_run = ordered.group_by("rollouts_per_problem", "seed", maintain_order=True).agg(
        pl.col("avg_at_4").first().alias("base"), pl.col("avg_at_4").last().alias("last")
    )
    return (
        per_run.group_by("rollouts_per_problem")
        .agg(pl.col("base").mean(), pl.col("last").mean(), pl.len().alias("seeds"))
        .sort("rollouts_per_problem")
        .rename({"rollouts_per_problem": "n"})
    )


def _gains(evals: pl.DataFrame) -> str:
    rows = [
        (f"n = {n}", f"{base:.3f}", f"{last:.3f}", f"{last - base:+.3f}", seeds)
        for n, base, last, seeds in gains(evals).iter_rows()
    ]
    return _table(("", "avg@4 of the base model", "avg@4 at the end", "gain", "seeds"), rows)


def _curves(fits: dict[str, Any]) -> str:
    rows = []
    for c in fits["curves"]:
        if c["params"] is None:
            rows.append((f"n = {c['rollouts_per_problem']}", c["problems_per_batch"], "none", "—", c["reason"]))
            continue
        low, high = c["intervals"]["A"]
        rows.append(
            (f"n = {c['rollouts_per_problem']}", c["problems_per_batch"], c["form"], f"{c['params']['A']:.3f}",
             f"{low:.3f} to {high:.3f}")
        )  # fmt: skip
    return _table(("curve", "B_p", "form", "levels off at", "95 %"), rows)


def _transitions(fits: dict[str, Any]) -> str:
    if fits["n_star"]["constant"]:
        return f"<p>n = {fits['n_star']['constant']} leads at every budget measured: no transition was seen.</p>"
    lines = []
    for x in fits["crossovers"]:
        span = f" (95&nbsp;%: {x['interval'][0]:,.0f} to {x['interval'][1]:,.0f})" if x["interval"] else ""
        lines.append(f"<li>from n = {x['from']} to n = {x['to']} at {x['compute']:,.0f} rollouts{span}</li>")
    return f"<p>The best n changes:</p><ul>{''.join(lines)}</ul>"


def _caveats(fits: dict[str, Any], allocation: dict[str, Any], pilot: dict[str, Any]) -> str:
    found = [(f"n = {c['rollouts_per_problem']}", MEANING[Flag(flag)]) for c in fits["curves"] for flag in c["flags"]]
    found += [("n*(C)", MEANING[Flag(flag)]) for flag in fits["n_star"]["flags"]]
    found += [("the prescription", MEANING[Flag(flag)]) for flag in allocation["flags"]]
    if not pilot["above_base"]:
        found.append(("the pilot", "no learning rate of the grid beat the base model: the sweep says little"))
    if pilot["at_edge_of_grid"]:
        found.append(("the pilot", "the learning rate chosen lies at the edge of its grid: widen the grid"))
    return "".join(f'<div class="caveat"><b>{escape(w)}</b>: {escape(m)}.</div>' for w, m in found) or "<p>None.</p>"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    top = "".join(f"<th>{escape(str(h))}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _image(path: Path, text: str) -> str:
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{data}"></p>'


def closing_words(out: Path) -> str:
    """What ``repro`` prints at its end."""
    lines = [""]
    for folder in sorted((out / "sweep").iterdir()):
        name = folder.name
        chosen = tables.read(out / "difficulty" / f"{name}.parquet", "problems")
        lines.append(f"{name}: base model {_rates(chosen)}")
        frontier = out / "frontier" / name / "frontier.parquet"
        if frontier.exists():
            lines += _n_star_lines(pl.read_parquet(frontier))
        for n, base, last, seeds in gains(tables.read(folder / "evals.parquet", "evals")).iter_rows():
            lines.append(f"  n = {n}: avg@4 {base:.3f} -> {last:.3f} ({last - base:+.3f}, {seeds} seeds)")
        allocation = json.loads((out / "prescribe" / name / "allocation.json").read_text())
        lines.append(
            f"  prescribed for {allocation['budget']:,} rollouts: n = {allocation['rollouts_per_problem']}, "
            f"B_p = {allocation['problems_per_batch']}, M = {allocation['update_steps']:,}, "
            f"learning rate {allocation['learning_rate']:.3g}"
        )
        comparison = json.loads((out / "prescribe" / name / "comparison.json").read_text())
        for c in comparison.get("against", []):
            difference = "" if c["mean"] is None else f" by {c['mean']:+.3f}"
            span = f" ({c['interval'][0]:+.3f} to {c['interval'][1]:+.3f})" if c["interval"] else ""
            verdict = "the prescription itself" if c["verdict"] == "same" else c["verdict"]
            lines.append(f"  against fixed n = {c['baseline']}: {verdict}{difference}{span}")
        if not comparison["tested"]:
            lines.append(f"  not tested: {comparison['reason']}")
        lines.append("")
    lines.append(f"Report: {out / 'report' / 'report.html'}")
    lines.append("MLflow: python3 -m nox -s ui, then open localhost:5000")
    return "\n".join(lines)


def _rates(chosen: pl.DataFrame) -> str:
    samples = chosen["pass_rate_samples"][0]
    parts = chosen.group_by("split").agg(pl.col("pass_rate").mean()).sort("split")
    return ", ".join(f"avg@{samples} {rate:.3f} on {split}" for split, rate in parts.iter_rows())


def _n_star_lines(frontier: pl.DataFrame) -> list[str]:
    lines = ["      rollouts   n*   best in   95 % set   reward (95 %)"]
    picks = sorted({round(i * (len(frontier) - 1) / 4) for i in range(5)})
    for row in frontier[picks].iter_rows(named=True):
        lines.append(
            f"  {row['compute']:12,.0f} {row['n']:4d}   {row['probability']:6.0%}   "
            f"{row['lowest_n']} to {row['highest_n']:<6} {row['reward']:.3f} "
            f"({row['reward_low']:.3f} to {row['reward_high']:.3f})"
        )
    return lines
