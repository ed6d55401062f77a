"""Try learning rates with pilots, extend their grids where the best one lies at an edge, and choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import fsum, sqrt
from pathlib import Path

import polars as pl

from ..rates.record import Pilot
from ..rates.search import Search, extension, search
from ..rates.trials import Evaluation, Trial, Tried, tried
from ..running import starts, work
from ..running.cells import Cell
from ..running.design import Design
from .shared import OUT

Run = Callable[[Sequence[Cell]], Mapping[str, Path]]
"""Runs what is not finished of some cells, and returns the folder of each cell that is finished, by run id."""


def find(design: Design, run: Run, base: Evaluation | None) -> tuple[Pilot, list[Cell]]:
    """Find the learning rates of a problem set.

    Args:
        design: What its cells are made from.
        run: Runs pilots; one that stops at a budget leaves out the rest, and the grids are then not extended.
        base: The base model's score, of responses that selected nothing; None where that was not measured in this
            metric: then it is what the cells share as their first evaluation.

    Returns:
        What was found, and the pilots that ran.

    Raises:
        ExperimentError: Every rate of a search diverged, or a cell failed.
    """
    settings, metric = design.sweep.learning_rate, design.preset.evaluation.metric
    cells = design.trials(settings.learning_rates)
    for left in range(settings.extensions, -1, -1):
        folders = run(cells)
        ended = [cell for cell in cells if cell.run_id in folders]
        known = base or first_score(ended, metric)
        grids = _grids(ended, folders, metric, known)
        more = [] if not left or len(ended) < len(cells) else _further(design, grids)
        if not more:
            break
        cells += more
    pilot = Pilot(
        rule=settings.rule,
        metric=metric,
        base=known,
        rollouts=sum(work.training_counts(cell, folders[cell.run_id]).rollouts for cell in ended),
        searches=tuple(_chosen(pair, grid) for pair, grid in grids.items()),
    )
    return pilot, ended


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


def base_score(problem_set: str, metric: str) -> Evaluation | None:
    """The base model's score on the validation problems, of responses that selected nothing.

    Args:
        problem_set: The problem set.
        metric: The metric.

    Returns:
        The score, or None where the metric is no mean of responses, of which it was measured.
    """
    if not metric.startswith("avg_"):
        return None
    found = json.loads((OUT / "difficulty" / "base.json").read_text())[problem_set]["validation"]
    return Evaluation(score=float(found["fresh"]), standard_error=float(found["fresh_standard_error"]))


def first_score(cells: Sequence[Cell], metric: str) -> Evaluation:
    """The base model's score in the first evaluations that cells share, a mean over their seeds.

    Args:
        cells: The cells.
        metric: The metric.
    """
    first = [starts.read(folder) for folder in sorted({work.start_of(cell) for cell in cells})]
    each = [_evaluation(start.metrics[metric], start.questions, start.samples, metric) for start in first]
    error = sqrt(fsum(one.standard_error**2 for one in each)) / len(each)
    return Evaluation(score=fsum(one.score for one in each) / len(each), standard_error=error)


def _grids(
    cells: Sequence[Cell], folders: Mapping[str, Path], metric: str, base: Evaluation
) -> dict[tuple[int, int], tuple[Tried, ...]]:
    """The rates tried at every (n, B_p)."""
    trials: dict[tuple[int, int], list[Trial]] = {}
    for cell in cells:
        pair = (cell.rollouts_per_problem, cell.problems_per_batch)
        trials.setdefault(pair, []).append(_trial(cell, folders[cell.run_id], metric))
    return {pair: tried(trials[pair], base) for pair in sorted(trials)}


def _trial(cell: Cell, folder: Path, metric: str) -> Trial:
    found = work.outcome(cell, folder)
    later = found.evals.filter(pl.col("step") > 0).sort("rollouts").select(metric, "questions", "samples")
    return Trial(
        learning_rate=cell.learner.learning_rate,
        evaluations=[_evaluation(score, questions, samples, metric) for score, questions, samples in later.iter_rows()],
        diverged=found.diverged,
    )


def _evaluation(score: float, questions: int, samples: int, metric: str) -> Evaluation:
    """A score with its binomial standard error √(p(1 − p)/N); N counts responses, or questions for a best or worst."""
    count = questions * samples if metric.startswith("avg_") else questions
    return Evaluation(score=score, standard_error=sqrt(max(score * (1 - score), 0.0) / count))


def _further(design: Design, grids: Mapping[tuple[int, int], Sequence[Tried]]) -> list[Cell]:
    """The pilots of grids that go on."""
    steps = {pair: rate for pair, grid in grids.items() if (rate := extension(grid)) is not None}
    return [cell for pair, rate in steps.items() for cell in design.trials([rate], at=[pair])]


def _chosen(pair: tuple[int, int], grid: Sequence[Tried]) -> Search:
    return search(grid, rollouts_per_problem=pair[0], problems_per_batch=pair[1])
