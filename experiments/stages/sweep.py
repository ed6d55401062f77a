"""Find the learning rate's anchor with a pilot, then run every cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import ExperimentError
from ..running import work
from ..running.cells import Cell
from ..running.design import Anchor
from ..running.pool import workers
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..settings import Preset
from .shared import OUT
from .training import base_score, collect, design_of


def run(preset: Preset, problem_set: str) -> None:
    """Run the pilot and the cells that are not finished, and join their tables.

    Args:
        preset: The preset.
        problem_set: The problem set.
    """
    design, problems, model = design_of(preset, problem_set)
    resources = preset.resources
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")
    pilot = design.pilot()
    with workers(preset, model, design.origin.base) as pool:
        folders = run_cells(pilot, problems, pool, pilots, title=f"pilot {problem_set}", reverse=resources.reverse)
        found = choose_learning_rate(pilot, folders, preset.evaluation.metric, base_score(problem_set))
        anchor = Anchor(learning_rate=found["learning_rate"], batch_rollouts=found["batch_rollouts"])
        print(f"pilot {problem_set}: learning rate {anchor.learning_rate:g} at B = {anchor.batch_rollouts}")
        cells = design.cells(anchor)
        folders |= run_cells(cells, problems, pool, tracker, title=f"sweep {problem_set}", reverse=resources.reverse)
    out = OUT / "sweep" / problem_set
    collect(cells, folders, out, pilot=pilot)
    work.write_json(out / "pilot.json", found)
    kept = {cell.run_id for cell in [*pilot, *cells]}
    for run_id in work.prune(resources.checkpoint_gigabytes, keep=kept):
        print(f"sweep {problem_set}: the checkpoint of {run_id} was pruned; extended, it is trained again")


def choose_learning_rate(pilot: list[Cell], folders: Mapping[str, Path], metric: str, base: float) -> dict[str, Any]:
    """The learning rate with the best mean of the last two evaluations, among those that did not diverge.

    Args:
        pilot: Its cells.
        folders: Where they are.
        metric: The metric.
        base: The base model's score, of responses that selected nothing.

    Raises:
        ExperimentError: Every cell diverged.
    """
    scores = [_score(cell, work.outcome(cell, folders[cell.run_id]), metric) for cell in pilot]
    stable = [s for s in scores if not s["diverged"] and s["score"] is not None]
    if not stable:
        tried = ", ".join(f"{s['learning_rate']:g}" for s in scores)
        raise ExperimentError(f"every learning rate of the pilot diverged ({tried}): give lower ones")
    best = max(stable, key=lambda s: float(s["score"]))
    rates = [s["learning_rate"] for s in scores]
    return {
        "learning_rate": best["learning_rate"],
        "batch_rollouts": pilot[0].batch_rollouts,
        "rollouts_per_problem": pilot[0].rollouts_per_problem,
        "problems_per_batch": pilot[0].problems_per_batch,
        "rollouts": sum(cell.rollouts for cell in pilot),
        "metric": metric,
        "base": base,
        "above_base": best["score"] > base,
        "at_edge_of_grid": best["learning_rate"] in (min(rates), max(rates)),
        "grid": scores,
    }


def _score(cell: Cell, found: work.Outcome, metric: str) -> dict[str, Any]:
    """Mean of a cell's last two evaluations after the first one, or None where there is none."""
    later = found.evals.filter(pl.col("step") > 0).sort("rollouts")[metric].tail(2)
    return {
        "learning_rate": cell.learner.learning_rate,
        "score": float(later.to_numpy().mean()) if len(later) else None,
        "diverged": found.diverged,
    }
