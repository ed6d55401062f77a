"""The stages of the pipeline: each reads files, does its part, writes files, and logs them to MLflow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import tracking
from isocompute.rollout import histogram, load_problems, split, tables, with_pass_rates

from . import base_model, cells, schedule
from .cluster import cluster, open_workers
from .config import ModelConfig, Preset
from .errors import ExperimentError
from .tracker import Tracker

OUT = Path("outputs")


def problems(preset: Preset) -> None:
    """Make the ``problems`` table of all sources; a problem of two sources counts once."""
    parts = [load_problems(source) for source in preset.problems]
    # Sources may overlap; a training problem must not be a validation problem elsewhere.
    same = pl.col("prompt").str.to_lowercase().str.split(" ").list.join("")
    table = pl.concat(parts).sort("split", "problem_id", descending=[True, False]).unique(same, keep="first")
    path = tables.write(table, "problems", OUT / "problems" / "problems.parquet")
    count = table.group_by("split").len().sort("split")
    print(f"problems: {', '.join(f'{n} {side}' for side, n in count.iter_rows())} in {path}")
    _log(preset, "problems", {"problems": path}, metrics={str(side): int(n) for side, n in count.iter_rows()})


def base(preset: Preset) -> None:
    """Train the embedded base model, or record the one that is named."""
    folder = OUT / "base"
    if isinstance(preset.base, ModelConfig):
        described = base_model.describe(preset.base.name)
        _write_json(folder / "model.json", {**asdict(preset.base), **described})
        print(f"base: {preset.base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")
        return
    import torch

    from . import tiny_model

    torch.set_num_threads(1)
    aside = OUT / ".base.writing"
    shutil.rmtree(aside, ignore_errors=True)
    steps = preset.base.steps
    tiny_model.train(
        preset.base, aside, progress=lambda step, loss: print(f"base: step {step}/{steps}, loss {loss:.3f}")
    )
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def model_of(preset: Preset) -> str:
    """Where the base model is."""
    if isinstance(preset.base, ModelConfig):
        return preset.base.name
    folder = OUT / "base"
    if not (folder / "config.json").exists():
        raise ExperimentError(f"{folder}: there is no base model; run the stage `base` first")
    return str(folder.resolve())


def difficulty(preset: Preset) -> None:
    """Measure every problem's pass rate under the base model, and cut the problem sets."""
    import ray

    from .figures import difficulty_histogram

    table = tables.read(OUT / "problems" / "problems.parquet", "problems")
    settings = preset.difficulty
    with cluster(preset.resources.processors()):
        workers = open_workers(preset, model_of(preset), cells.content_hash(OUT / "base"))
        parts = [table[i :: len(workers)] for i in range(len(workers))]
        answered = ray.get(
            [
                worker.sample.remote(part, samples=settings.samples, seed=settings.seed)
                for worker, part in zip(workers, parts, strict=True)
            ]
        )
    measured = with_pass_rates(table, pl.concat(answered))
    sets = {name: split(measured, wanted) for name, wanted in settings.sets.items()}
    folder = OUT / "difficulty"
    tables.write(measured, "problems", folder / "problems.parquet")
    for name, chosen in sets.items():
        tables.write(chosen, "problems", folder / f"{name}.parquet")
        mean = float(chosen["pass_rate"].to_numpy().mean())
        print(f"difficulty: {name}: {len(chosen)} problems, avg@{settings.samples} {mean:.3f}")
    difficulty_histogram(histogram(measured), settings, folder / "histogram")
    _log(
        preset,
        "difficulty",
        {"problems": folder / "problems.parquet"} | {name: folder / f"{name}.parquet" for name in sets},
        metrics={
            f"{name}_avg_at_{settings.samples}": float(t["pass_rate"].to_numpy().mean()) for name, t in sets.items()
        },
        inputs={"problems": OUT / "problems" / "problems.parquet"},
    )


def _origin(preset: Preset, problem_set: str) -> tuple[cells.Origin, pl.DataFrame]:
    path = OUT / "difficulty" / f"{problem_set}.parquet"
    if not path.exists():
        raise ExperimentError(f"{path}: there is no problem set {problem_set}; run the stage `difficulty` first")
    origin = cells.Origin(
        problem_set=problem_set,
        base=cells.content_hash(OUT / "base"),
        problems=cells.content_hash(path),
        sampling=asdict(preset.sampling),
        sampler=preset.resources.resolved_sampler(),
    )
    return origin, tables.read(path, "problems")


def sweep(preset: Preset, problem_set: str) -> None:
    """Find the learning rate's anchor with a pilot, then run every cell."""
    settings = preset.sweep_of(problem_set)
    origin, chosen = _origin(preset, problem_set)
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")
    with cluster(preset.resources.processors()):
        workers = open_workers(preset, model_of(preset), origin.base)
        pilot = cells.pilot_cells(settings, origin)
        folders = schedule.run_cells(
            pilot, chosen, workers, pilots, title=f"pilot {problem_set}", reverse=preset.resources.reverse
        )
        anchor = _pick(pilot, folders)
        print(f"pilot {problem_set}: learning rate {anchor['learning_rate']:g} at B = {anchor['batch_rollouts']}")
        wanted = cells.sweep_cells(
            settings, origin, anchor=anchor["learning_rate"], anchor_batch=anchor["batch_rollouts"]
        )
        folders |= schedule.run_cells(
            wanted, chosen, workers, tracker, title=f"sweep {problem_set}", reverse=preset.resources.reverse
        )
    out = OUT / "sweep" / problem_set
    _collect(wanted, folders, out, pilot=pilot)
    _write_json(out / "pilot.json", anchor)


def _pick(pilot: list[cells.Cell], folders: Mapping[str, Path]) -> dict[str, Any]:
    """The learning rate with the best mean of the last two evaluations."""
    scores = []
    for cell in pilot:
        evals = tables.read(folders[cell.run_id] / "evals.parquet", "evals").sort("rollouts")
        base = float(evals["avg_at_4"][0])
        scores.append(
            {
                "learning_rate": cell.learner.learning_rate,
                "avg_at_4": float(evals["avg_at_4"][1:].tail(2).to_numpy().mean()),
                "base_avg_at_4": base,
            }
        )
    best = max(scores, key=lambda score: score["avg_at_4"])
    return {
        "learning_rate": best["learning_rate"],
        "batch_rollouts": pilot[0].batch_rollouts,
        "rollouts": sum(cell.rollouts for cell in pilot),
        "above_base": best["avg_at_4"] > best["base_avg_at_4"],
        "at_edge_of_grid": best["learning_rate"]
        in (min(s["learning_rate"] for s in scores), max(s["learning_rate"] for s in scores)),
        "grid": scores,
    }


def _collect(
    wanted: list[cells.Cell], folders: Mapping[str, Path], out: Path, *, pilot: list[cells.Cell] | None = None
) -> None:
    """Join the tables of finished cells into one folder, replaced as a whole."""

    def joined(name: str, of: list[cells.Cell]) -> pl.DataFrame:
        return tables.concat([tables.read(folders[c.run_id] / f"{name}.parquet", name) for c in of], name)

    ledger = joined("ledger", wanted)
    if pilot:
        # A pilot is paid for, but not out of the budget of the sweep.
        spent = joined("ledger", pilot).with_columns(
            cohort=pl.when(pl.col("cohort") == "eval").then(pl.lit("eval")).otherwise(pl.lit("pilot"))
        )
        ledger = pl.concat([ledger, spent])
    tables.write(joined("evals", wanted), "evals", out / "evals.parquet")
    tables.write(ledger, "ledger", out / "ledger.parquet")
    tables.write(joined("pass_rates", wanted), "pass_rates", out / "pass_rates.parquet")
    for cell in [*wanted, *(pilot or [])]:
        schedule.tidy(folders[cell.run_id])


def frontier(preset: Preset, problem_set: str) -> None:
    """Fit the frontier of a sweep."""
    from isocompute.frontier import FitConfig, figures, fit

    evals = tables.read(OUT / "sweep" / problem_set / "evals.parquet", "evals")
    settings = preset.frontier
    fits = fit(evals, FitConfig(form=settings.form, bootstrap=settings.bootstrap, seed=settings.seed))
    out = OUT / "frontier" / problem_set
    fits.save(out)
    figures.all_figures(fits, out)
    print(fits.summary())
    _log(
        preset,
        f"{problem_set}-frontier",
        {"fits": out / "fits.json", "frontier": out / "frontier.parquet"},
        params=asdict(settings),
        inputs={"evals": OUT / "sweep" / problem_set / "evals.parquet"},
    )


def prescribe(preset: Preset, problem_set: str) -> None:
    """Prescribe an allocation for a larger budget, and test it against fixed n when seeds are given."""
    from isocompute.frontier import compare
    from isocompute.frontier import prescribe as prescription

    settings = preset.prescribe[problem_set]
    sweep_settings = preset.sweep_of(problem_set)
    pilot = json.loads((OUT / "sweep" / problem_set / "pilot.json").read_text())
    anchor = {"anchor": pilot["learning_rate"], "anchor_batch": pilot["batch_rollouts"]}
    allocation = prescription(OUT / "frontier" / problem_set, budget=settings.rollouts, **anchor)
    out = OUT / "prescribe" / problem_set
    _write_json(out / "allocation.json", allocation.as_dict())
    print(f"prescribe {problem_set}: {allocation.summary()}")
    if not settings.seeds:
        _write_json(out / "comparison.json", {"tested": False, "reason": "no seeds are set for a test"})
        _log_prescription(preset, problem_set)
        return
    origin, chosen = _origin(preset, problem_set)
    ns = sorted({allocation.rollouts_per_problem, *settings.baselines})
    planned = [
        cells.cell(
            sweep_settings, origin, "prescribe", n=n, size=allocation.problems_per_batch, seed=seed,
            rollouts=settings.rollouts, evaluate_every=settings.evaluate_every, **anchor,
        )
        for n in ns
        for seed in settings.seeds
    ]  # fmt: skip
    with cluster(preset.resources.processors()):
        workers = open_workers(preset, model_of(preset), origin.base)
        tracker = Tracker(f"{preset.name}-{problem_set}-prescribe")
        folders = schedule.run_cells(
            planned, chosen, workers, tracker, title=f"prescribe {problem_set}", reverse=preset.resources.reverse
        )
    _collect(planned, folders, out)
    evals = tables.read(out / "evals.parquet", "evals")
    result = compare(evals, prescribed=allocation.rollouts_per_problem, baselines=settings.baselines)
    _write_json(out / "comparison.json", {"tested": True, "against": [c.as_dict() for c in result]})
    for comparison in result:
        print(f"prescribe {problem_set}: {comparison.summary()}")
    _log_prescription(preset, problem_set)


def report(preset: Preset) -> None:
    """Write the report."""
    from .report import write

    path = write(preset, OUT)
    print(f"report: {path}")
    _log(preset, "report", {"report": path})


def plan(preset: Preset) -> None:
    """Print what a preset would run, without running it."""
    length = preset.sampling.max_new_tokens
    for name, settings in preset.sweep.items():
        origin = cells.Origin(problem_set=name, base="", problems="", sampling=asdict(preset.sampling), sampler="")
        wanted = cells.sweep_cells(settings, origin, anchor=settings.pilot.learning_rates[0], anchor_batch=1)
        pilot = cells.pilot_cells(settings, origin)
        test = preset.prescribe[name]
        rollouts = {
            "sweep": (len(wanted), sum(c.rollouts for c in wanted)),
            "pilot": (len(pilot), sum(c.rollouts for c in pilot)),
            "prescribe": (
                (len(test.baselines) + 1) * len(test.seeds),
                (len(test.baselines) + 1) * len(test.seeds) * test.rollouts,
            ),
        }
        for purpose, (runs, total) in rollouts.items():
            print(f"{name:8} {purpose:10} {runs:4} cells {total:14,} rollouts, at most {total * length:16,} tokens")
        for cell in wanted:
            steps = cell.rollouts // cell.batch_rollouts
            print(f"    {cell.name}: B = {cell.batch_rollouts:,}, {steps:,} update steps")
    device = "GPUs" if preset.resources.device == "cuda" else "CPU cores"
    print(
        f"{preset.resources.processors()} {device} asked for, for {preset.resources.workers} cells at a time; "
        f"sampler: {preset.resources.resolved_sampler()}"
    )


def _log_prescription(preset: Preset, problem_set: str) -> None:
    out = OUT / "prescribe" / problem_set
    _log(
        preset,
        f"{problem_set}-prescription",
        {"allocation": out / "allocation.json", "comparison": out / "comparison.json"},
        params=asdict(preset.prescribe[problem_set]),
        inputs={"fits": OUT / "frontier" / problem_set / "fits.json"},
    )


def _log(preset: Preset, what: str, artifacts: Mapping[str, Path], **further: Any) -> None:
    """Log what a stage wrote as a run of its own; the newest is what ``mlflow:EXPERIMENT`` means."""
    tracking.log_artifacts(f"{preset.name}-{what}", artifacts, run_name=what, supersede=True, **further)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".writing")
    aside.write_text(json.dumps(value, sort_keys=True, indent=1) + "\n")
    aside.rename(path)


STAGES: dict[str, Callable[[Preset], None]] = {
    "problems": problems,
    "base": base,
    "difficulty": difficulty,
    "report": report,
    "plan": plan,
}
SET_STAGES: dict[str, Callable[[Preset, str], None]] = {
    "sweep": sweep,
    "frontier": frontier,
    "prescribe": prescribe,
}
