"""The base model, recorded where it is named."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import ExperimentError
from ..running import models
from ..running.work import write_json
from ..settings import ModelConfig, Preset
from .shared import OUT

FOLDER = OUT / "prepared"
"""Below which every base model has a folder with its problem sets."""
ONLY = "base"
"""Name of a base model that is given alone, and of the folder that a model is in."""


def record(base: ModelConfig) -> None:
    """Record the base model that is named, and what is in it."""
    described = models.describe(base.name)
    write_json(FOLDER / ONLY / ONLY / "model.json", {**base.model_dump(), **described})
    print(f"base: {base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")


def model_of(preset: Preset, name: str = ONLY) -> tuple[str, str]:
    """Where a base model is, and the hash of its content.

    Raises:
        ExperimentError: The stage ``prepare`` has not run, or the model is another one since it has.
    """
    folder = FOLDER / name / ONLY
    if not isinstance(preset.base, ModelConfig):
        if not (folder / "config.json").exists():
            raise ExperimentError(f"{folder}: there is no base model; run the stage `prepare` first")
        return str(folder.resolve()), models.content_hash(folder)
    path = folder / "model.json"
    if not path.exists():
        raise ExperimentError(f"{path}: there is no base model; run the stage `prepare` first")
    recorded = json.loads(path.read_text())
    if recorded["model"] != preset.base.model or recorded["revision"] != preset.base.revision:
        raise ExperimentError(
            f"{path} records the model {recorded['model']}, and the preset names {preset.base.name}: run `prepare` "
            "again"
        )
    # A name on the hub with its commit cannot change; a folder can.
    if Path(preset.base.model).is_dir() and models.content(preset.base.name) != recorded["content"]:
        raise ExperimentError(
            f"the base model {preset.base.model} has changed since the stage `prepare` recorded it: "
            "`dvc repro` records what it is now"
        )
    return preset.base.name, str(recorded["content"])
