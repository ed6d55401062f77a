"""Prepare the inputs of cells: problems, base models, and problem sets selected by their pass rates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from isocompute.rollout import Loaded, histogram, load_checked, split
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.problems.loading import joined
from isocompute.rollout.scoring.evaluation import best_at_k, proportion_error, worst_at_k

from ..errors import ExperimentError
from ..figures import difficulty_histogram
from ..running import cell_folder
from ..running.cell_folder import OF, ONLY, PREPARED, model_of, settings_of, write_json
from ..running.measure import check_agreement, measure, with_rates
from ..running.schedule import workers
from ..running.tracker import log
from ..settings import DifficultyConfig, ModelConfig, PreparedConfig, PreparedModel, Preset

FOLDER = PREPARED / ONLY
"""Folder of the base model that is measured, with its problem sets."""


def record(base: ModelConfig) -> None:
    """Record the named base model, and its content."""
    described = cell_folder.describe(base.name)
    write_json(FOLDER / ONLY / "model.json", {**base.model_dump(), **described})
    print(f"base: {base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")


SAME = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that must be identical in all base models of a preset: an engine is opened once, and its weights are
replaced."""


def run(preset: Preset) -> None:
    """Load problems, record the base model and select the problem sets, or use sets that were prepared before."""
    if OF.exists():
        # Until everything is complete, files left by another preset belong to nobody.
        write_json(OF, {"of": {"preset": preset.name, "settings": ""}})
    _prepare(preset)
    write_json(OF, {"of": settings_of(preset)})


def _prepare(preset: Preset) -> None:
    if isinstance(preset.base, PreparedConfig):
        _take(preset.base.models, list(preset.sweep))
    elif preset.difficulty is not None:
        # Done before the slow steps, since the model may be missing.
        record(preset.base)
        table = join_problems(preset, [load_checked(source) for source in preset.problems])
        measure_sets(preset, preset.difficulty, table)


def _take(models: Sequence[PreparedModel], sets: Sequence[str]) -> None:
    """Copy prepared models and their problem sets."""
    first = Path(models[0].folder)
    for model in models:
        source = Path(model.folder)
        for name in ("base/config.json", "base.json", *(f"{each}.parquet" for each in sets)):
            if not (source / name).is_file():
                raise ExperimentError(f"{source / name}: there is no such file of the base model {model.name}")
        for name in SAME:
            if _content(source / "base" / name) != _content(first / "base" / name):
                raise ExperimentError(
                    f"{source / 'base' / name} differs from that of {first}: the base models of a preset differ in "
                    "their weights alone"
                )
    for model in models:
        source, target = Path(model.folder), PREPARED / model.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source / "base", target / "base")
        shutil.copy(source / "base.json", target / "base.json")
        for name in sets:
            tables.write(tables.read(source / f"{name}.parquet", "problems"), "problems", target / f"{name}.parquet")
    print(f"prepare: {len(models)} base models and their problem sets: {', '.join(model.name for model in models)}")


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def join_problems(preset: Preset, parts: Sequence[Loaded]) -> pl.DataFrame:
    """Write the problems, and separately those that were dropped because their reference answer is not scored right."""
    loaded = joined(parts)
    table, dropped = loaded.problems, loaded.dropped.to_dicts()
    path = tables.write(table, "problems", PREPARED / "problems.parquet")
    listed = write_text(PREPARED / "dropped.json", json.dumps(dropped, indent=1, sort_keys=True) + "\n")
    count = table.group_by("split").len().sort("split")
    print(f"problems: {', '.join(f'{n} {side}' for side, n in count.iter_rows())} in {path}")
    if dropped:
        print(f"problems: {len(dropped)} dropped, whose own answer is not scored right; they are listed in {listed}")
    metrics = {str(side): int(n) for side, n in count.iter_rows()} | {"dropped": len(dropped)}
    log(preset, "problems", {"problems": path, "dropped": listed}, metrics=metrics)
    return tables.read(path, "problems")


def measure_sets(preset: Preset, settings: DifficultyConfig, table: pl.DataFrame) -> None:
    """Measure every problem, select the sets, and measure each set again with responses that selected nothing."""
    model, base = model_of(preset)
    with workers(preset, {base: model}) as pool:
        check_agreement(pool, preset, table)

        ask = partial(measure, pool, seed=settings.seed)
        rates, ledger = ask(table, samples=settings.samples, phase="difficulty", title="difficulty")
        measured = with_rates(table, rates)
        chosen = {name: split(measured, wanted) for name, wanted in settings.sets.items()}
        spent, sets = [ledger], {}
        for name, part in chosen.items():
            title = f"{name}, measured again"
            again, ledger = ask(part, samples=settings.fresh_samples, phase="baseline", title=title)
            sets[name] = with_rates(part, again, fresh=True)
            spent.append(ledger)
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
        for line in signal(sets[name], preset.sweep[name].rollouts_per_problem if name in preset.sweep else ()):
            print(f"difficulty: {name}: {line}")
    difficulty_histogram(histogram(measured), settings, FOLDER / "histogram")
    _log(preset, scores)


def signal(part: pl.DataFrame, group_sizes: Sequence[int]) -> Iterator[str]:
    """The share of training groups of n responses that are neither all right nor all wrong, in the second measurement.

    It is counted up to the number of responses that measured a problem; for a larger n the share is at least that.
    """
    own = part.filter(pl.col("split") == "train")
    samples = own["fresh_pass_rate_samples"].to_numpy()
    right = np.rint(own["fresh_pass_rate"].to_numpy() * samples)
    shares = {
        n: float((best_at_k(right, samples, n) - worst_at_k(right, samples, n)).mean())
        for n in sorted({min(n, int(samples.min())) for n in group_sizes} - {1})
    }
    if shares:
        yield f"groups with signal: {', '.join(f'{share:.0%} at n = {n}' for n, share in shares.items())}"
    if not right.any():
        yield (
            f"warning: none of {samples.sum():,} responses to its training problems is right, so that hardly a group "
            "will teach anything: take easier problems, a stronger base model, or check what the verifier expects"
        )


def score(part: pl.DataFrame, side: str) -> dict[str, Any]:
    """The base model's score on one side of a set, in the selecting and in the second measurement.

    Returns:
        ``problems``; mean pass rates ``selected`` and ``fresh``; ``selected_samples``, ``fresh_samples``;
        ``fresh_standard_error``, from sampling responses to the given problems.
    """
    own = part.filter(pl.col("split") == side)
    rate, samples = own["fresh_pass_rate"].to_numpy(), own["fresh_pass_rate_samples"].to_numpy()
    # The unbiased estimate of p(1 − p) divides by m − 1.
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
