"""Find the learning rates with pilots, where they are not declared, then run every cell of a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import ExperimentError
from ..figures import COLOURS, pyplot, save
from ..rates import Evaluation, Pilot, Search, Trial, Tried, extension, mean, sampled, tried
from ..running import starts, work
from ..running.cells import Cell
from ..running.design import Design
from ..running.opening import workers
from ..running.pool import Pool
from ..running.schedule import Run
from ..running.tracker import Tracker
from ..settings import Preset
from .base import FOLDER, ONLY
from .shared import OUT, log
from .training import Setup, collect, setup_of


def run(preset: Preset, problem_set: str) -> None:
    """Run the pilots and the cells that are not finished, and join their tables."""
    setup = setup_of(preset, problem_set)
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    pilot: Pilot | None = None
    tried: list[Cell] = []
    with workers(preset, setup.models, training=True) as pool:
        rates = setup.designs[0].declared_rates()
        if rates is None:
            pilot, tried = _search(preset, problem_set, setup, pool)
            rates = pilot.rates()
        cells = [cell for design in setup.designs for cell in design.cells(rates)]
        Run(cells, setup.problems, pool, tracker, title=f"sweep {problem_set}").finish()
    out = OUT / "sweep" / problem_set
    collect(cells, out, pilot=tried, keep_policies=preset.resources.keep_policies)
    if pilot:
        work.write_json(out / "pilot.json", pilot.document())
        rates_figure(pilot, out / "rates")
        figures = [out / "rates.svg", out / "rates.png"]
        log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)


def _search(preset: Preset, problem_set: str, setup: Setup, pool: Pool) -> tuple[Pilot, list[Cell]]:
    """Run the pilots, and print the rates that they chose."""
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")

    def train(cells: Sequence[Cell]) -> None:
        # Others may follow.
        Run(cells, setup.problems, pool, pilots, title=f"pilot {problem_set}").finish(supersede=False)

    (design,) = setup.designs
    pilot, tried = find(design, train, base_score(problem_set, preset.evaluation.metric))
    pilots.mean(tried)
    for line in chosen_lines(pilot):
        print(f"pilot {problem_set}: {line}")
    return pilot, tried


def find(design: Design, run: Callable[[Sequence[Cell]], None], base: Evaluation | None) -> tuple[Pilot, list[Cell]]:
    """Find the learning rates of a problem set; returns the pilots that they were found with, too.

    Args:
        run: Runs what is not finished of some cells.
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
        steps = {pair: rate for pair, grid in grids.items() if (rate := extension(grid)) is not None} if left else {}
        more = [cell for pair, rate in steps.items() for cell in design.trials([rate], at=[pair])]
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


def chosen_lines(pilot: Pilot) -> Iterator[str]:
    """The learning rate found at each (n, B_p), with its score, a line each."""
    for found in pilot.searches:
        chosen = found.chosen
        edge = f", the {found.edge} rate tried" if found.edge in ("lowest", "highest") else ""
        yield (
            f"n = {found.rollouts_per_problem}, B_p = {found.problems_per_batch}: learning rate "
            f"{chosen.learning_rate:g}{edge} ({chosen.score or 0.0:.3f} ± {chosen.standard_error or 0.0:.3f})"
        )


def base_score(problem_set: str, metric: str) -> Evaluation | None:
    """The base model's validation score, of responses that selected nothing; None for a metric that is no mean."""
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
    later = found.read("evals").filter(pl.col("step") > 0).select("rollouts", metric, "questions", "samples")
    return Trial(
        learning_rate=cell.learner.learning_rate,
        budget=cell.rollouts,
        evaluations={
            at: sampled(score, questions=questions, samples=samples, metric=metric)
            for at, score, questions, samples in later.iter_rows()
        },
        diverged=found.diverged,
    )


def rates_figure(pilot: Pilot, path: Path) -> None:
    """Draw the scores of pilots against their learning rates, a line for each n (IsoCompute Playbook, Figure 4).

    Bars are one standard error, a filled dot is the rate chosen, a cross at the bottom a rate that diverged.
    """
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    base, several = pilot.base, len({each.problems_per_batch for each in pilot.searches}) > 1
    axes.axhline(base.score, color="#4a5568", linestyle=":", linewidth=1, label="base model")
    for index, found in enumerate(pilot.searches):
        size = f", B_p = {found.problems_per_batch}" if several else ""
        label = f"n = {found.rollouts_per_problem}{size}"
        _draw_search(axes, found, label, COLOURS[index % len(COLOURS)])
    axes.set(xlabel="learning rate", ylabel=pilot.metric.replace("_at_", "@"), xscale="log")
    rates = sorted({each.learning_rate for found in pilot.searches for each in found.grid})
    axes.set_xticks(rates, labels=[f"{rate:.3g}" for rate in rates])
    axes.minorticks_off()
    axes.legend(frameon=False)
    save(figure, path)


def _draw_search(axes: Any, found: Search, label: str, colour: str) -> None:
    scored = [each for each in found.grid if each.score is not None and not each.diverged]
    rates = [each.learning_rate for each in scored]
    errors = [each.standard_error for each in scored]
    axes.errorbar(
        rates, [each.score for each in scored], yerr=errors, color=colour, marker="o", markerfacecolor="white",
        capsize=2, linewidth=1.2, label=label,
    )  # fmt: skip
    axes.plot([found.chosen.learning_rate], [found.chosen.score], marker="o", color=colour, zorder=3)
    lost = [each.learning_rate for each in found.grid if each.diverged]
    axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())
