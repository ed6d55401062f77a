"""Measure the difficulty of every problem for the base model, cut problem sets by it, and measure each set again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from isocompute.rollout import histogram, split
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.evaluation import proportion_error

from ..figures import difficulty_histogram
from ..running.cell_folder import ONLY, PREPARED, model_of, write_json
from ..running.cells import Generation, Origin, Surroundings, problems_hash
from ..running.measure import Measured, check_agreement, measure, with_rates
from ..running.schedule import workers
from ..running.tracker import log
from ..settings import DifficultyConfig, Preset

FOLDER = PREPARED / ONLY


def measure_sets(preset: Preset, settings: DifficultyConfig, table: pl.DataFrame) -> None:
    """Measure every problem, cut the sets, and measure each set again with responses that selected nothing."""
    model, base = model_of(preset)
    surroundings = Surroundings.of(preset.resolved_resources())
    with workers(preset, {base: model}) as pool:
        check_agreement(pool, preset, table)

        def ask(table: pl.DataFrame, samples: int, phase: str, title: str) -> Measured:
            origin = Origin(
                problem_set="",
                base_model="",
                base=base,
                problems=problems_hash(table),
                generation=Generation.of(preset),
                surroundings=surroundings,
            )
            return measure(pool, table, origin, samples=samples, seed=settings.seed, phase=phase, title=title)

        selecting = ask(table, settings.samples, "difficulty", "difficulty")
        measured = with_rates(table, selecting)
        chosen = {name: split(measured, wanted) for name, wanted in settings.sets.items()}
        spent, sets = [selecting.ledger], {}
        for name, part in chosen.items():
            again = ask(part, settings.fresh_samples, "baseline", f"{name}, measured again")
            sets[name] = with_rates(part, again, fresh=True)
            spent.append(again.ledger)
    scores = {name: {side: score(part, side) for side in ("train", "validation")} for name, part in sets.items()}
    tables.write(measured, "problems", FOLDER / "problems.parquet")
    tables.write(tables.concat(spent, "ledger"), "ledger", FOLDER / "ledger.parquet")
    for name, part in sets.items():
        tables.write(part, "problems", FOLDER / f"{name}.parquet")
    write_json(FOLDER / "base.json", scores)
    for name, sides in scores.items():
        for side, found in sides.items():
            print(
                f"difficulty: {name}, {found['problems']} {side} problems: avg@{found['selected_samples']} "
                f"{found['selected']:.3f} as selected, avg@{found['fresh_samples']} {found['fresh']:.3f} measured again"
            )
    difficulty_histogram(histogram(measured), settings, FOLDER / "histogram")
    _log(preset, scores)


def score(part: pl.DataFrame, side: str) -> dict[str, Any]:
    """The base model's score on one side of a set, as selected and measured again.

    Args:
        part: The ``problems`` table of the set, with both pass rates.
        side: ``train`` or ``validation``.

    Returns:
        ``problems``; ``selected`` and ``fresh``, mean pass rates; ``selected_samples``, ``fresh_samples``;
        ``fresh_standard_error``, of the sampling of responses with the problems given.
    """
    own = part.filter(pl.col("split") == side)
    rate, samples = own["fresh_pass_rate"].to_numpy(), own["fresh_pass_rate_samples"].to_numpy()
    # The unbiased estimate of p(1 − p) has m − 1 below it.
    variance = rate * (1 - rate) / np.maximum(samples - 1, 1)
    fresh = float(rate.mean())
    error = float(np.sqrt(variance.sum()) / len(own)) if 0 < fresh < 1 else proportion_error(fresh, int(samples.sum()))
    return {
        "problems": len(own),
        "selected": float(own["pass_rate"].to_numpy().mean()),
        "selected_samples": int(own["pass_rate_samples"].to_numpy().min()),
        "fresh": fresh,
        "fresh_samples": int(samples.min()),
        "fresh_standard_error": error,
    }


def _log(preset: Preset, scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    artifacts = {"problems": FOLDER / "problems.parquet", "ledger": FOLDER / "ledger.parquet"}
    artifacts |= {name: FOLDER / f"{name}.parquet" for name in scores}
    metrics = {
        f"{name}_{side}_{how}_avg_at_{found[f'{how}_samples']}": found[how]
        for name, sides in scores.items()
        for side, found in sides.items()
        for how in ("selected", "fresh")
    }
    log(
        preset,
        "difficulty",
        artifacts | {"base": FOLDER / "base.json"},
        figures=sorted(FOLDER.glob("histogram.*")),
        metrics=metrics,
        inputs={"problems": PREPARED / "problems.parquet"},
    )
