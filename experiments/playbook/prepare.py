"""What the cells of a unit start from: a base model, and its problem sets measured twice."""

from __future__ import annotations

import shutil
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from isocompute.rollout.contract import tables

from ..errors import ExperimentError
from ..running.models import content_hash
from ..running.work import write_json
from ..settings import Preset
from ..settings import load as load_preset
from ..stages import prepare
from ..stages.base import FOLDER, ONLY
from ..tiny.config import TinyModelConfig
from .study import PANEL, Unit

if TYPE_CHECKING:
    from ..probe import Probe

INPUTS = Path(__file__).with_name("inputs")
"""Those of every unit, as the frozen commit made them."""
RESULTS = Path(__file__).with_name("results")
"""The tables of every unit, likewise."""


def preset_of(unit: Unit) -> Preset:
    """The preset of a unit, from panel.yaml, with the seed of its base model."""
    preset = load_preset(PANEL, preset=unit.task)
    if not isinstance(preset.base, TinyModelConfig):
        raise ExperimentError(f"{PANEL.name}: the base model of {unit.task} is none that is trained from a seed")
    return preset.model_copy(update={"base": preset.base.model_copy(update={"seed": unit.base_seed})})


def made(unit: Unit, work: Path) -> Path:
    """The folder with ``base/`` and ``SET.parquet`` of a task and base seed, trained and measured once, in minutes."""
    name = f"{unit.task}-{unit.base_seed}"
    kept = work / "inputs" / name
    if not kept.exists():
        aside = kept.with_name(f".{name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        _make(preset_of(unit), work / "making" / name, aside)
        aside.rename(kept)
    return kept


def probed(unit: Unit) -> Probe:
    """Probe the base model of a unit with an eighth of a cell's rollouts, and keep what it says."""
    from ..probe import probe, rollouts_of

    preset, inputs = preset_of(unit), INPUTS / f"{unit.task}-{unit.base_seed}"
    problems = tables.read(inputs / f"{unit.problem_set}.parquet", "problems")
    model = str(inputs / "base"), content_hash(inputs / "base")
    rollouts = rollouts_of(preset.sweep_of(unit.problem_set).rollouts)
    found = probe(preset, unit.problem_set, model, problems, rollouts=rollouts)
    write_json(RESULTS / unit.name / "probe.json", asdict(found))
    return found


def _make(preset: Preset, folder: Path, out: Path) -> None:
    """Run the stage ``prepare`` in a folder, and copy what cells start from."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        prepare.run(preset)
        made = FOLDER / ONLY
        shutil.copytree(made / ONLY, out / "base")
        for name in ("base.json", "histogram.svg", "histogram.png", *(f"{each}.parquet" for each in preset.sweep)):
            shutil.copy(made / name, out / name)
