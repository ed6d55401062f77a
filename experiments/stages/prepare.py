"""What cells start from: base models, and the problem sets that are cut by their pass rates."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from ..settings import ModelConfig, PreparedConfig, Preset
from ..settings.bases import PreparedModel
from . import base, difficulty, problems
from .base import FOLDER

SAME = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that all base models of a preset have alike: an engine is opened once, and its weights are replaced."""


def run(preset: Preset) -> None:
    """Make problems and base model and cut the problem sets, or take those that were prepared before."""
    if isinstance(preset.base, PreparedConfig):
        _take(preset.base.models, list(preset.sweep))
    elif preset.difficulty is not None:
        named = isinstance(preset.base, ModelConfig)
        if named:
            # Before what takes long, since it may not be there.
            base.make(preset)
        table = problems.make(preset)
        if not named:
            base.make(preset)
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
        source, target = Path(model.folder), FOLDER / model.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source / "base", target / "base")
        shutil.copy(source / "base.json", target / "base.json")
        for name in sets:
            tables.write(tables.read(source / f"{name}.parquet", "problems"), "problems", target / f"{name}.parquet")
    print(f"prepare: {len(models)} base models and their problem sets: {', '.join(model.name for model in models)}")


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
