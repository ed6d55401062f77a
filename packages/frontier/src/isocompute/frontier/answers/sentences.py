"""Sentences of the sixty-second answer about the runs: what they are, how they failed, and what they leave out."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..data.curves import Array
from ..data.units import short
from ..posterior.health import FAILED
from ..posterior.posterior import AGREED, Posterior
from ..posterior.preparation import Prepared
from ..posterior.runs import Cell
from .answer import name, percent

MOST = 3
"""Failures named in a sentence; the report names all."""
CONSTANT = 0.1
"""Difference of two exponents of the learning rate in n that nobody tells apart."""


def differing(prepared: Prepared) -> tuple[bool, bool]:
    """Whether settings differ in B_p, and whether some n and B_p was run at several rates."""
    every = prepared.failures
    pairs = {(c.rollouts_per_problem, c.problems_per_batch, c.group) for c in every}
    return len({c.problems_per_batch for c in every}) > 1, len(pairs) < len(every)


def of_data(prepared: Prepared, unit: str) -> str:
    """What was run."""
    health, runs = prepared.health, prepared.runs
    several, rated = differing(prepared)
    seeds = Counter(np.bincount(runs.cell, minlength=len(runs.cells)).tolist())
    points = Counter((runs.seen & (runs.compute > 0)).sum(axis=1).tolist())
    failed = [h for h in health if h.failed]
    settings = f"{len(runs.cells)} settings" if several or rated else f"{len(runs.cells)} values of n"
    what = "run" if len(runs.bases) > 1 else "seed"
    text = f"{len(runs.bases)} base models; " if len(runs.bases) > 1 else ""
    text += (
        f"{settings} × {_span(seeds)} {what}{'s' if max(seeds) > 1 else ''} × {_span(points)} evaluations to "
        f"{short(float(runs.last.max()))} {unit}; {len(health)} run{'s' if len(health) > 1 else ''}"
    )
    if failed:
        named = [f"{h.name}: {' and '.join(sorted(k for k in h.kinds if k in FAILED))}" for h in failed]
        text += f", of which {len(failed)} failed ({'; '.join(named[:MOST])}{'; …' if len(named) > MOST else ''})"
    return text


def of_risk(prepared: Prepared, failing: Array) -> str:
    """How often runs fail.

    Args:
        failing: Probability that the next run of each cell fails, shape ``(cells,)``.
    """
    every, cells = prepared.failures, prepared.runs.cells
    count, total = sum(f.failed for f in every.values()), sum(f.runs for f in every.values())
    if not count:
        return f"none of {total} runs failed; the next one does with about {percent(float(failing.mean()))}"
    several, rated = differing(prepared)
    own = [every[c] for c in cells]
    worst = [k for k in np.argsort(-failing).tolist() if own[k].failed][:MOST]
    said = [
        f"n = {name(cells[k], several, rated)} with {percent(float(failing[k]))} ({own[k].failed} of {own[k].runs} did)"
        for k in worst
    ]
    calm = [failing[k] for k, f in enumerate(own) if not f.failed]
    if calm:
        said.append(f"one of the {'others' if worst else 'settings above'} with {percent(float(np.mean(calm)))}")
    never = [c for c, f in every.items() if c not in cells and f.failed]
    lost = f"; no run came through of n = {', '.join(name(c, several, rated) for c in never)}" if never else ""
    return f"{count} of {total} runs failed; the next run fails: {', '.join(said)}{lost}"


def left_out_of(
    prepared: Prepared, posterior: Posterior, *, caveats: tuple[str, ...]
) -> tuple[str, ...]:  # fmt: skip
    """What the answer does not hold for, and what makes it doubtful."""
    runs = prepared.runs
    missing = [] if len(runs.bases) > 1 else ["one base model", "one problem set"]
    if posterior.luck is None:
        missing.append("the luck of which validation questions are asked")
    if not differing(prepared)[1]:
        missing.append(_of_rates(runs.cells))
    if np.bincount(runs.cell).max() == 1:
        assumed = 100 * posterior.model.priors.seed_amplitude
        missing.append(f"one seed: that seeds differ by {assumed:.0f} % of the gain is assumed")
    if posterior.spread > AGREED:
        missing.append(f"certainty about the fit itself: its chains do not agree (split R̂ {posterior.spread:.2f})")
    return (*missing, *caveats)


def _of_rates(cells: tuple[Cell, ...]) -> str:
    """What is known of the learning rate where each n and B_p has one: it cannot be told from them."""
    known = [(c.batch_rollouts, c.learning_rate) for c in cells if c.learning_rate]
    if len(known) < len(cells):
        return "the learning rate, which the runs do not say"
    batch, rate = np.log(np.array(known)).T
    slope = float(np.polyfit(batch, rate, 1)[0]) if np.ptp(batch) > 0 else 0.0
    scattered = len(known) > 1 and np.ptp(rate - slope * batch) > CONSTANT
    if not scattered and abs(slope) < CONSTANT:
        return "other learning rates than the one of all runs"
    if not scattered and abs(slope - 0.5) < CONSTANT:
        return "other learning rates: each n at one, scaled by √B"
    low, high = min(cells, key=lambda c: c.learning_rate or 0.0), max(cells, key=lambda c: c.learning_rate or 0.0)
    return (
        f"whether n or the learning rate makes the difference: they change together, from {low.learning_rate:.2g} at "
        f"n = {low.rollouts_per_problem} to {high.learning_rate:.2g} at n = {high.rollouts_per_problem}"
    )


def _span(counted: Counter[int]) -> str:
    return f"{min(counted)}" if len(counted) == 1 else f"{min(counted)}–{max(counted)}"
