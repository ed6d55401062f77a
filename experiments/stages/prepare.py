"""Prepare the inputs of cells: problems, base models, and the problem sets that are cut by their pass rates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from isocompute.rollout import Loaded, load_checked
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.problems.loading import joined

from ..errors import ExperimentError
from ..running import cell_folder
from ..running.cell_folder import ONLY, PREPARED, write_json
from ..running.tracker import log
from ..settings import ModelConfig, PreparedConfig, PreparedModel, Preset
from . import difficulty


def record(base: ModelConfig) -> None:
    """Record the base model that is named, and what is in it."""
    described = cell_folder.describe(base.name)
    write_json(PREPARED / ONLY / ONLY / "model.json", {**base.model_dump(), **described})
    print(f"base: {base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")


SAME = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that all base models of a preset have alike: an engine is opened once, and its weights are replaced."""


def run(preset: Preset) -> None:
    """Load problems, record the base model and cut the problem sets, or take those that were prepared before."""
    if isinstance(preset.base, PreparedConfig):
        _take(preset.base.models, list(preset.sweep))
    elif preset.difficulty is not None:
        # Before what takes long, since it may not be there.
        record(preset.base)
        table = join_problems(preset, [load_checked(source) for source in preset.problems])
        difficulty.measure_sets(preset, preset.difficulty, table)


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
    """Write the problems, and beside them those that were dropped since their own answer is not scored right."""
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
