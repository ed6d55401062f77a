"""Find the learning rates with pilots, where they are not declared, then run every cell of a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from ..figures import COLOURS, pyplot, save
from ..running import cell_folder
from ..running.cell_folder import ONLY, OUT, PREPARED, model_of
from ..running.cells import Cell, CommandCell, Generation, Origin, problems_hash, surroundings_of
from ..running.design import Design, Pilot, Score, Search, Trial, extension, mean, sampled, tried
from ..running.schedule import Pool, Schedule, workers
from ..running.tracker import Tracker, health_of, log
from ..settings import Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Inputs of the cells of a problem set.

    Attributes:
        problems: Their ``problems`` tables, by hash.
        models: Folder or name of each base model, by the hash of its content.
    """

    designs: tuple[Design, ...]
    problems: Mapping[str, pl.DataFrame]
    models: Mapping[str, str]


def setup_of(preset: Preset, problem_set: str) -> Setup:
    """The base models and problems of a problem set."""
    sweep, surroundings = preset.sweep_of(problem_set), surroundings_of(preset)
    designs, problems, models = [], {}, {}
    for name in preset.base_models:
        path = PREPARED / name / f"{problem_set}.parquet"
        if not path.exists():
            raise ExperimentError(f"{path}: there is no problem set {problem_set}; run the stage `prepare` first")
        table = tables.read(path, "problems")
        place, base = model_of(preset, name)
        origin = Origin(
            problem_set=problem_set,
            base_model=name,
            base=base,
            problems=problems_hash(table),
            generation=Generation.of(preset),
            surroundings=surroundings,
        )
        designs.append(Design(preset=preset, sweep=sweep, origin=origin))
        problems[origin.problems], models[base] = table, place
    return Setup(designs=tuple(designs), problems=problems, models=models)


def collect(wanted: Sequence[Cell], out: Path, *, pilot: Sequence[Cell] = (), keep_policies: str = "none") -> None:
    """Join the tables of finished cells, each cut off at its budget, into one folder.

    What shared first evaluations and the pilot cost is in the ledger, too; a pilot is paid for, but not out of the
    budget of the sweep. Of cells that a command trains there are no ``pass_rates``.

    Args:
        pilot: Cells whose ledgers and final states are joined, but not their evaluations.
    """
    outcomes = {cell.run_id: cell_folder.outcome(cell) for cell in [*wanted, *pilot]}
    own = [outcomes[cell.run_id] for cell in wanted]
    for name in ("evals",) if any(isinstance(cell, CommandCell) for cell in wanted) else ("evals", "pass_rates"):
        # One after the other: those of thousands of cells are large.
        tables.write(cell_folder.joined(own, name), name, out / f"{name}.parquet")
    ledgers = [cell_folder.joined(own, "ledger")]
    if pilot:
        # Training cohorts are summed up as ``pilot``, one row per step.
        cohort = pl.when(pl.col("cohort") == "eval").then(pl.lit("eval")).otherwise(pl.lit("pilot")).alias("cohort")
        counts = [pl.col(name).sum() for name in ("rollouts", "prompt_tokens", "response_tokens")]
        of_pilots = cell_folder.joined([outcomes[cell.run_id] for cell in pilot], "ledger")
        ledgers.append(of_pilots.group_by("run_id", "step", cohort).agg(counts))
    starts = {cell_folder.baseline_of(cell) for cell in [*wanted, *pilot] if cell.baseline_id}
    ledgers += [tables.read(folder / "ledger.parquet", "ledger") for folder in sorted(starts)]
    tables.write(tables.concat(ledgers, "ledger"), "ledger", out / "ledger.parquet")
    states = [_state(cell, outcomes[cell.run_id], keep_policies) for cell in [*wanted, *pilot]]
    cell_folder.write_json(out / "cells.json", {"cells": states})


def _state(cell: Cell, found: cell_folder.Outcome, keep_policies: str) -> dict[str, Any]:
    folder = cell_folder.folder_of(cell)
    ended = cell_folder.done(folder)
    # A run that went on beyond this budget has the policy of its own end.
    own, (flags, judged) = ended is not None and ended.step == found.step, health_of(cell)
    kept = own and cell_folder.keeps_policy(cell, keep_policies) and cell_folder.has_policy(folder)
    return {
        "run_id": cell.run_id,
        "purpose": cell.purpose,
        "base_model": cell.origin.base_model,
        "rollouts_per_problem": cell.run.rollouts_per_problem,
        "problems_per_batch": cell.run.problems_per_batch,
        "seed": cell.run.seed,
        "learning_rate": cell.learner.learning_rate,
        "rollouts": cell.rollouts,
        "steps": found.step,
        "status": "diverged" if found.diverged else "finished",
        "health": [{"name": f.name, "step": f.step, "reason": f.reason} for f in flags],
        "judged": judged,
        "trainer": cell.command.trainer["trainer"] if isinstance(cell, CommandCell) else None,
        "policy": str(cell_folder.policy_of(folder)) if kept else None,
    }


def run(preset: Preset, problem_set: str) -> None:
    """Schedule the pilots and the cells that are not finished, and join their tables."""
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
        Schedule(cells, setup.problems, pool, tracker, title=f"sweep {problem_set}").finish()
    out = OUT / "sweep" / problem_set
    collect(cells, out, pilot=tried, keep_policies=preset.resources.keep_policies)
    if pilot:
        cell_folder.write_json(out / "pilot.json", pilot.document())
        rates_figure(pilot, out / "rates")
        figures = [out / "rates.svg", out / "rates.png"]
        log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)


def _search(preset: Preset, problem_set: str, setup: Setup, pool: Pool) -> tuple[Pilot, list[Cell]]:
    """Schedule the pilots, and print the rates that they chose."""
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")

    def train(cells: Sequence[Cell]) -> None:
        # Others may follow.
        Schedule(cells, setup.problems, pool, pilots, title=f"pilot {problem_set}").finish(supersede=False)

    (design,) = setup.designs
    pilot, tried = find(design, train, base_score(problem_set, preset.evaluation.metric))
    pilots.mean(tried)
    for line in chosen_lines(pilot):
        print(f"pilot {problem_set}: {line}")
    return pilot, tried


def find(design: Design, run: Callable[[Sequence[Cell]], None], base: Score | None) -> tuple[Pilot, list[Cell]]:
    """Find the learning rates of a problem set; returns the pilots that they were found with, too.

    Args:
        run: Runs what is not finished of some cells.
        base: The base model's score, of responses that selected nothing; None where that was not measured in this
            metric: then it is what the cells share as their first evaluation.
    """
    settings, metric = design.sweep.search, design.preset.evaluation.metric
    if settings is None:
        where = f"sweep.{design.origin.problem_set}.learning_rate"
        raise ExperimentError(f"{where} declares a rate: there is nothing to search")
    cells = design.trials()
    for left in range(settings.extensions, -1, -1):
        run(cells)
        known = base or first_score(cells, metric)
        trials: dict[tuple[int, int], list[Trial]] = {}
        for cell in cells:
            pair = (cell.run.rollouts_per_problem, cell.run.problems_per_batch)
            trials.setdefault(pair, []).append(_trial(cell, metric))
        grids = {pair: tried(trials[pair], known) for pair in sorted(trials)}
        steps = {pair: rate for pair, grid in grids.items() if (rate := extension(grid)) is not None} if left else {}
        more = [cell for pair, rate in steps.items() for cell in design.trials([rate], at=[pair])]
        if not more:
            break
        cells += more
    pilot = Pilot(
        rule=settings.rule,
        metric=metric,
        base=known,
        budget=settings.rollouts,
        searches=tuple(
            Search(rollouts_per_problem=n, problems_per_batch=size, grid=grid) for (n, size), grid in grids.items()
        ),
    )
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


def base_score(problem_set: str, metric: str) -> Score | None:
    """The base model's validation score, of responses that selected nothing; None for a metric that is no mean."""
    if not metric.startswith("avg_"):
        return None
    found = json.loads((PREPARED / ONLY / "base.json").read_text())[problem_set]["validation"]
    return Score(score=float(found["fresh"]), standard_error=float(found["fresh_standard_error"]))


def first_score(cells: Sequence[Cell], metric: str) -> Score:
    """The base model's score in the first evaluations that cells share, a mean over their seeds."""
    first = [cell_folder.read_baseline(folder) for folder in sorted({cell_folder.baseline_of(cell) for cell in cells})]
    return mean(
        [
            sampled(start.metrics[metric], questions=start.questions, samples=start.samples, metric=metric)
            for start in first
        ]
    )


def _trial(cell: Cell, metric: str) -> Trial:
    found = cell_folder.outcome(cell)
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
        rates,
        [each.score for each in scored],
        yerr=errors,
        color=colour,
        marker="o",
        markerfacecolor="white",
        capsize=2,
        linewidth=1.2,
        label=label,
    )
    axes.plot([found.chosen.learning_rate], [found.chosen.score], marker="o", color=colour, zorder=3)
    lost = [each.learning_rate for each in found.grid if each.diverged]
    axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())
