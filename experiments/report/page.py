"""The page: its sections in order, from what the other stages wrote."""

from __future__ import annotations

from html import escape
from pathlib import Path

from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text

from ..rates.record import Pilot
from ..settings import Preset
from . import answer as answers
from . import health, html, rates
from .documents import document
from .gains import gains, gains_table
from .spent import diverged, spent
from .verdict import verdict_of


def write(preset: Preset, out: Path) -> Path:
    """Write ``report/report.html`` from what the other stages wrote.

    Returns:
        Where it is.

    Raises:
        ExperimentError: An earlier stage has not run.
    """
    sets = list(preset.sweep)
    difficulty = _difficulty(preset, out)
    parts = [
        "<h1>How should the sampling budget be split?</h1>",
        "<p>Training a language model with reinforcement learning spends a budget of sampled answers, "
        "<i>C = B<sub>p</sub> · n · M</i>: problems per batch, rollouts (answers) per problem, and update "
        "steps. This report measures which <i>n</i> buys the most reward at each budget, prescribes a split for "
        f"a larger budget, and tests it. Preset: <b>{escape(preset.name)}</b>.</p>",
        "".join(f'<p class="answer">{escape(verdict_of(preset, name, out))}</p>' for name in sets),
        difficulty,
    ]
    for name in sets:
        parts.append(_problem_set(preset, name, out))
    page = html.page("IsoCompute report", parts)
    path = out / "report" / "report.html"
    return write_text(path, page)


def _difficulty(preset: Preset, out: Path) -> str:
    settings = preset.difficulty
    scores = document(out / "difficulty" / "base.json")
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
        + html.table(head, rows)
        + f"<p>Measuring took {spent['rollouts'].sum():,} responses, {spent['response_tokens'].sum():,} tokens.</p>"
        + html.image(out / "difficulty" / "histogram.png", "Pass rates of the base model")
    )


def _problem_set(preset: Preset, name: str, out: Path) -> str:
    sweep, metric = out / "sweep" / name, preset.evaluation.metric
    fits = document(out / "frontier" / name / "fits.json")
    pilot = Pilot.read(document(sweep / "pilot.json"))
    allocation = document(out / "prescribe" / name / "allocation.json")
    comparison = document(out / "prescribe" / name / "comparison.json")
    evals = tables.read(sweep / "evals.parquet", "evals")
    states = document(sweep / "cells.json")["cells"]
    tested = out / "prescribe" / name / "cells.json"
    trained = states + (document(tested)["cells"] if tested.exists() else [])
    found = gains(evals, metric, states, pilot.base.score, pilot.base.standard_error)
    longest = max(preset.sweep[name].rollouts, preset.prescribe[name].rollouts)
    warnings = [
        *answers.caveats(fits, allocation),
        *rates.caveats(pilot, preset.sweep[name].rollouts_per_problem, longest=longest),
        *health.caveats(trained),
    ]
    parts = [
        f"<h2>Problem set: {escape(name)}</h2>",
        answers.answer(allocation, comparison),
        "<h3>What was spent</h3>" + spent(name, out) + diverged(trained),
        rates.section(pilot, sweep / "rates.png", cells=preset.sweep[name].grid()),
        "<h3>The curves</h3><p>Reward on validation problems against rollouts spent: every evaluation of every "
        "seed, record-breaking ones ringed, the fitted curve and its 95&nbsp;% band.</p>",
        html.image(out / "frontier" / name / "curves.png", "Fitted curves"),
        gains_table(found, pilot) + answers.curves(fits),
        "<h3>The frontier</h3><p>The best reward at each budget, over the budgets that were measured.</p>",
        html.image(out / "frontier" / name / "frontier.png", "Frontier"),
        html.image(out / "frontier" / name / "n_star.png", "Best n at each budget"),
        answers.statements(fits),
        health.section(trained),
        "<h3>Caveats</h3>" + html.caveats(warnings),
    ]
    return "".join(parts)
