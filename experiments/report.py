"""The report: one self-contained HTML file that can be read without the paper."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.frontier import MEANING, Flag
from isocompute.rollout import tables
from isocompute.rollout.contract.files import write_text

from .errors import ExperimentError
from .settings import Preset

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
    return write_text(path, page)


def _document(path: Path) -> Any:
    """A document that an earlier stage wrote.

    Raises:
        ExperimentError: It is not there.
    """
    if not path.exists():
        raise ExperimentError(f"{path}: an earlier stage has not run: `dvc repro report` runs what is missing")
    return json.loads(path.read_text())


def _difficulty(preset: Preset, out: Path) -> str:
    settings = preset.difficulty
    scores = _document(out / "difficulty" / "base.json")
    spent = tables.read(out / "difficulty" / "ledger.parquet", "ledger")
    rows = [
        (f"{name}, {side}", found["problems"], f"{settings.sets[name].lowest:g} to {settings.sets[name].highest:g}",
         f"{found['selected']:.3f}", f"{found['fresh']:.3f} ± {found['fresh_standard_error']:.3f}")
        for name, sides in scores.items()
        for side, found in sides.items()
    ]  # fmt: skip
    head = (
        "problem set", "problems", "pass rates", f"avg@{settings.samples} as selected",
        f"avg@{settings.fresh_samples} measured again",
    )  # fmt: skip
    return (
        "<h2>The problems</h2><p>Every problem was answered "
        f"{settings.samples} times by the base model; problem sets are cut by the share that was right. Selection "
        "favours problems whose responses were lucky or unlucky, so each set was then answered "
        f"{settings.fresh_samples} times more: that is the base model's score, against which gains are measured (± one "
        "standard error of sampling).</p>"
        + _table(head, rows)
        + f"<p>Measuring took {spent['rollouts'].sum():,} responses, {spent['response_tokens'].sum():,} tokens.</p>"
        + _image(out / "difficulty" / "histogram.png", "Pass rates of the base model")
    )


def _problem_set(preset: Preset, name: str, out: Path) -> str:
    fits = _document(out / "frontier" / name / "fits.json")
    pilot = _document(out / "sweep" / name / "pilot.json")
    allocation = _document(out / "prescribe" / name / "allocation.json")
    comparison = _document(out / "prescribe" / name / "comparison.json")
    evals = tables.read(out / "sweep" / name / "evals.parquet", "evals")
    states = _document(out / "sweep" / name / "cells.json")["cells"]
    parts = [f"<h2>Problem set: {escape(name)}</h2>", _answer(allocation, comparison)]
    parts.append("<h3>What was spent</h3>" + _spent(name, out) + _pilot(pilot) + _diverged(states))
    parts.append(
        "<h3>The curves</h3><p>Reward on validation problems against rollouts spent: every evaluation of every "
        "seed, record-breaking ones ringed, the fitted curve and its 95&nbsp;% band.</p>"
        + _image(out / "frontier" / name / "curves.png", "Fitted curves")
        + _gains(gains(evals, preset.evaluation.metric, states, pilot["base"]), preset.evaluation.metric)
        + _curves(fits)
    )
    parts.append(
        "<h3>The frontier</h3><p>The best reward at each budget, over the budgets that were measured.</p>"
        + _image(out / "frontier" / name / "frontier.png", "Frontier")
        + _image(out / "frontier" / name / "n_star.png", "Best n at each budget")
        + _statements(fits)
    )
    parts.append("<h3>Caveats</h3>" + _caveats(fits, allocation, pilot))
    return "".join(parts)


def _answer(allocation: dict[str, Any], comparison: dict[str, Any]) -> str:
    chosen = allocation["candidates"][0]
    competing = [c for c in allocation["candidates"] if c["standing"] != "refused"]
    share = f"{chosen['probability']:.0%} of the refits" + (" (within-run)" if allocation["within_run"] else "")
    text = (
        f"For {allocation['budget']:,} {allocation['unit']}: <b>n = {allocation['rollouts_per_problem']}</b>, "
        f"B<sub>p</sub> = {allocation['problems_per_batch']}, M = {allocation['update_steps']:,}, learning rate "
        f"{allocation['learning_rate']:.3g}. Of {len(competing)} n it was best in {share}; expected "
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
            "—" if c["p_value"] is None else f"{c['p_value']:.2g}",
            c["verdict"],
        )
        for c in comparison["against"]
    ]
    return (
        f'<p class="answer">{text}</p><p>Trained at that budget with fresh seeds, next to fixed n; difference of '
        "the last evaluations, seed by seed:</p>"
        + _table(("comparison", "difference", "95 % t interval", "seeds", "p, all comparisons (Holm)", "verdict"), rows)
    )


def _spent(name: str, out: Path) -> str:
    ledgers = [("sweep and pilot", tables.read(out / "sweep" / name / "ledger.parquet", "ledger"))]
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
    rows = [
        (f"{s['learning_rate']:.3g}", "diverged" if s["diverged"] else f"{s['score']:.3f}", f"{pilot['base']:.3f}")
        for s in pilot["grid"]
    ]
    return (
        f"<p>A pilot at n = {pilot['rollouts_per_problem']}, B<sub>p</sub> = {pilot['problems_per_batch']} "
        f"({pilot['batch_rollouts']:,} rollouts per step) chose the learning rate {pilot['learning_rate']:.3g}; other "
        "batches are scaled from it by the root of their size.</p>"
        + _table(("learning rate", f"{metric_label(pilot['metric'])} at the end", "base model, measured again"), rows)
    )


def _diverged(states: list[dict[str, Any]]) -> str:
    """Cells whose gradient was not finite, twice; their evaluations before that count."""
    rows = [
        (s["purpose"], f"n = {s['rollouts_per_problem']}", s["problems_per_batch"], s["seed"],
         f"{s['learning_rate']:.3g}", f"{s['steps']:,}")
        for s in states
        if s["status"] == "diverged"
    ]  # fmt: skip
    if not rows:
        return ""
    head = ("cell", "", "B_p", "seed", "learning rate", "diverged at step")
    return "<p>These cells diverged; their evaluations up to then are used.</p>" + _table(head, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What training bought at one (n, B_p), over the base model's score of fresh responses."""

    rollouts_per_problem: int
    problems_per_batch: int
    base: float
    last: float | None
    seeds: int
    diverged: int

    def text(self) -> str:
        """Scores and gain, to be printed."""
        lost = f", {self.diverged} diverged" if self.diverged else ""
        if self.last is None:
            return f"no seed was trained to the end{lost}"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.base:.3f} -> {self.last:.3f} ({self.last - self.base:+.3f}, {seeds}{lost})"


def gains(evals: pl.DataFrame, metric: str, states: list[dict[str, Any]], base: float) -> list[Gain]:
    """Last evaluation of each (n, B_p), a mean over the seeds that did not diverge, against the base model."""
    kind = ["rollouts_per_problem", "problems_per_batch"]
    diverged = [s["run_id"] for s in states if s["status"] == "diverged"]
    found = []
    for (n, size), part in sorted(evals.group_by(kind)):
        own = part.sort("rollouts").group_by("run_id", maintain_order=True).last()
        ended = own.filter(~pl.col("run_id").is_in(diverged))
        last = float(ended[metric].to_numpy().mean()) if len(ended) else None
        found.append(Gain(
            rollouts_per_problem=n, problems_per_batch=size, base=base, last=last, seeds=len(ended),
            diverged=len(own) - len(ended),
        ))  # fmt: skip
    return found


def metric_label(metric: str) -> str:
    """Display label of a metric: ``avg@4`` for ``avg_at_4``, since MLflow and column names cannot contain ``@``."""
    return metric.replace("_at_", "@")


def _gains(found: list[Gain], metric: str) -> str:
    rows = [
        (f"n = {g.rollouts_per_problem}", g.problems_per_batch, f"{g.base:.3f}",
         "—" if g.last is None else f"{g.last:.3f}", "—" if g.last is None else f"{g.last - g.base:+.3f}",
         g.seeds, g.diverged)
        for g in found
    ]  # fmt: skip
    head = ("", "B_p", "base model, measured again", f"{metric_label(metric)} at the end", "gain", "seeds", "diverged")
    return _table(head, rows)


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


def _statements(fits: dict[str, Any]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in fits["statements"]) + "</ul>"


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
