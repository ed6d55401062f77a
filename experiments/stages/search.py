"""Try learning rates with pilots, extend their grids where the best one lies at an edge, and choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from ..errors import ExperimentError
from ..rates.figure import rates_figure
from ..rates.search import Pilot, Search, extension
from ..rates.trials import Evaluation, Trial, Tried, mean, sampled, tried
from ..running import starts, work
from ..running.cells import Cell
from ..running.design import Design
from .base import FOLDER, ONLY

Run = Callable[[Sequence[Cell]], None]
"""Runs what is not finished of some cells."""


def find(design: Design, run: Run, base: Evaluation | None) -> tuple[Pilot, list[Cell]]:
    """Find the learning rates of a problem set; returns the pilots that they were found with, too.

    Args:
        base: The base model's score, of responses that selected nothing; None where that was not measured in this
            metric: then it is what the cells share as their first evaluation.

    Raises:
        ExperimentError: Every rate of a search diverged, a cell failed, or the rate is declared.
    """
    settings, metric = design.sweep.search, design.preset.evaluation.metric
    if settings is None:
        where = f"sweep.{design.origin.problem_set}.learning_rate"
        raise ExperimentError(f"{where} declares a rate: there is nothing to search")
    cells = design.trials()
    for left in range(settings.extensions, -1, -1):
        run(cells)
        known = base or first_score(cells, metric)
        grids = _grids(cells, metric, known)
        more = _further(design, grids) if left else []
        if not more:
            break
        cells += more
    pilot = Pilot(
        rule=settings.rule, metric=metric, base=known, budget=settings.rollouts,
        searches=tuple(
            Search(rollouts_per_problem=n, problems_per_batch=size, grid=grid) for (n, size), grid in grids.items()
        ),
    )  # fmt: skip
    return pilot, cells


def chosen_lines(pilot: Pilot) -> list[str]:
    """The learning rate found at each (n, B_p), with its score, a line each."""
    lines = []
    for found in pilot.searches:
        chosen = found.chosen
        edge = f", the {found.edge} rate tried" if found.edge in ("lowest", "highest") else ""
        lines.append(
            f"n = {found.rollouts_per_problem}, B_p = {found.problems_per_batch}: learning rate "
            f"{chosen.learning_rate:g}{edge} ({chosen.score or 0.0:.3f} ± {chosen.standard_error or 0.0:.3f})"
        )
    return lines


def write_pilot(pilot: Pilot, out: Path) -> list[Path]:
    """Write ``pilot.json``, and the figure of what was searched; returns the figure's files."""
    work.write_json(out / "pilot.json", pilot.document())
    rates_figure(pilot, out / "rates")
    return [out / "rates.svg", out / "rates.png"]


def base_score(problem_set: str, metric: str) -> Evaluation | None:
    """The score of the one base model on the validation problems, of responses that selected nothing.

    Returns:
        The score, or None where the metric is no mean of responses, of which it was measured.
    """
    if not metric.startswith("avg_"):
        return None
    found = json.loads((FOLDER / ONLY / "base.json").read_text())[problem_set]["validation"]
    return Evaluation(score=float(found["fresh"]), standard_error=float(found["fresh_standard_error"]))


def first_score(cells: Sequence[Cell], metric: str) -> Evaluation:
    """The base model's score in the first evaluations that cells share, a mean over their seeds."""
    first = [starts.read(folder) for folder in sorted({work.start_of(cell) for cell in cells})]
    return mean([
        sampled(start.metrics[metric], questions=start.questions, samples=start.samples, metric=metric)
        for start in first
    ])  # fmt: skip


def _grids(cells: Sequence[Cell], metric: str, base: Evaluation) -> dict[tuple[int, int], tuple[Tried, ...]]:
    """The rates tried at every (n, B_p)."""
    trials: dict[tuple[int, int], list[Trial]] = {}
    for cell in cells:
        pair = (cell.rollouts_per_problem, cell.problems_per_batch)
        trials.setdefault(pair, []).append(_trial(cell, metric))
    return {pair: tried(trials[pair], base) for pair in sorted(trials)}


def _trial(cell: Cell, metric: str) -> Trial:
    found = work.outcome(cell)
    later = found.evals.filter(pl.col("step") > 0).select("rollouts", metric, "questions", "samples")
    return Trial(
        learning_rate=cell.learner.learning_rate,
        budget=cell.rollouts,
        evaluations={
            at: sampled(score, questions=questions, samples=samples, metric=metric)
            for at, score, questions, samples in later.iter_rows()
        },
        diverged=found.diverged,
    )


def _further(design: Design, grids: Mapping[tuple[int, int], Sequence[Tried]]) -> list[Cell]:
    """The pilots of grids that go on."""
    steps = {pair: rate for pair, grid in grids.items() if (rate := extension(grid)) is not None}
    return [cell for pair, rate in steps.items() for cell in design.trials([rate], at=[pair])]
