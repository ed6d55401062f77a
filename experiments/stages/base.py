"""The base model: trained from scratch for the embedded default, or recorded where it is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..errors import ExperimentError
from ..running import identity, models
from ..running.work import WORK, write_json
from ..settings import ModelConfig, PreparedConfig, Preset
from .shared import OUT

FOLDER = OUT / "prepared"
"""Below which every base model has a folder with its problem sets."""
ONLY = "base"
"""Name of a base model that is made here, and of the folder that a model is in."""


def make(preset: Preset) -> None:
    """Train the embedded base model, or record the one that is named and what is in it."""
    folder = FOLDER / ONLY / ONLY
    if isinstance(preset.base, ModelConfig):
        described = models.describe(preset.base.name)
        write_json(folder / "model.json", {**preset.base.model_dump(), **described})
        print(f"base: {preset.base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")
        return
    if isinstance(preset.base, PreparedConfig):
        raise TypeError("a base model that is prepared is not made")
    import torch

    from ..tiny import model as tiny_model

    code = identity.code_of("experiments.tiny.model")
    made = WORK / "base" / identity.digest([preset.base.model_dump(), code, identity.versions()])
    if not made.exists():
        torch.set_num_threads(1)
        aside = made.with_name(f".{made.name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        tiny_model.train(preset.base, aside)
        aside.rename(made)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    print(f"base: {models.content(folder)} in {folder}")


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
