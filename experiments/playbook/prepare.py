"""What the cells of a unit start from: a base model, and its problem sets measured twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..settings import Preset
from ..settings import load as load_preset
from ..stages import base, difficulty, problems
from ..stages.shared import OUT
from .study import PANEL, Unit

INPUTS = Path(__file__).with_name("inputs")
"""Inputs that are committed, so that a unit can go on wherever it was begun."""


def preset_of(unit: Unit) -> Preset:
    """The preset of a unit, from panel.yaml, with the seed of its base model."""
    preset = load_preset(PANEL, preset=unit.task)
    return preset.model_copy(update={"base": preset.base.model_copy(update={"seed": unit.base_seed})})


def inputs_of(unit: Unit, home: Path) -> Path:
    """The folder with ``base/`` and ``SET.parquet`` that the units of a task and base seed share.

    They are made once: taken from the checkout where they are committed, else trained and measured, which takes
    minutes.

    Args:
        home: Where the panel runs.
    """
    name = f"{unit.task}-{unit.base_seed}"
    kept = home / "inputs" / name
    if kept.exists():
        return kept
    aside = kept.with_name(f".{name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    if (INPUTS / name).exists():
        shutil.copytree(INPUTS / name, aside)
    else:
        _make(preset_of(unit), home / "making" / name, aside)
    aside.rename(kept)
    return kept


def _make(preset: Preset, folder: Path, out: Path) -> None:
    """Run the stages up to ``difficulty`` in a folder, and copy what cells start from."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for stage in (problems, base, difficulty):
            stage.run(preset)
        shutil.copytree(OUT / "base", out / "base")
        for name in ("base.json", "histogram.svg", "histogram.png", *(f"{each}.parquet" for each in preset.sweep)):
            shutil.copy(OUT / "difficulty" / name, out / name)
    finally:
        os.chdir(before)
