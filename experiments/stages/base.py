"""The base model: trained from scratch for the embedded default, or recorded where it is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..errors import ExperimentError
from ..running import identity, models
from ..running.work import WORK, write_json
from ..settings import ModelConfig, Preset
from .shared import OUT

FOLDER = OUT / "base"


def run(preset: Preset) -> None:
    """Train the embedded base model, or record the one that is named and what is in it."""
    if isinstance(preset.base, ModelConfig):
        described = models.describe(preset.base.name)
        write_json(FOLDER / "model.json", {**preset.base.model_dump(), **described})
        print(f"base: {preset.base.name}: {described['model_type']}, {described['vocabulary']:,} tokens")
        return
    import torch

    from ..tiny import model as tiny_model

    code = identity.code_of("experiments.tiny.model")
    made = WORK / "base" / identity.digest([preset.base.model_dump(), code, identity.versions()])
    if not made.exists():
        torch.set_num_threads(1)
        aside = made.with_name(f".{made.name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        steps = preset.base.steps
        tiny_model.train(
            preset.base, aside, progress=lambda step, loss: print(f"base: step {step}/{steps}, loss {loss:.3f}")
        )
        aside.rename(made)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(made, FOLDER)
    print(f"base: {models.content(FOLDER)} in {FOLDER}")


def model_of(preset: Preset) -> tuple[str, str]:
    """Where the base model is, and the hash of its content.

    Raises:
        ExperimentError: The stage ``base`` has not run, or the model is another one since it has.
    """
    if not isinstance(preset.base, ModelConfig):
        if not (FOLDER / "config.json").exists():
            raise ExperimentError(f"{FOLDER}: there is no base model; run the stage `base` first")
        return str(FOLDER.resolve()), models.content_hash(FOLDER)
    now = changed(preset)
    if now:
        raise ExperimentError(now)
    recorded = json.loads((FOLDER / "model.json").read_text())
    return preset.base.name, str(recorded["content"])


def changed(preset: Preset) -> str:
    """Why the base model that is named is not the one recorded; empty when it is.

    Raises:
        ExperimentError: Nothing was recorded.
    """
    path = FOLDER / "model.json"
    if not isinstance(preset.base, ModelConfig):
        return ""
    if not path.exists():
        raise ExperimentError(f"{path}: there is no base model; run the stage `base` first")
    recorded = json.loads(path.read_text())
    if recorded["model"] != preset.base.model or recorded["revision"] != preset.base.revision:
        return (
            f"{path} records the model {recorded['model']}, and the preset names {preset.base.name}: run `base` again"
        )
    # A name on the hub with its commit cannot change; a folder can.
    if Path(preset.base.model).is_dir() and models.content(preset.base.name) != recorded["content"]:
        return (
            f"the base model {preset.base.model} has changed since the stage `base` recorded it: "
            "`dvc repro` records what it is now"
        )
    return ""
