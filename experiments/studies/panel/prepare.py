"""Inputs of the cells of a unit: a base model, and its problem sets measured twice."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from isocompute.rollout import Loaded, load_checked, source_from
from isocompute.rollout.contract import tables

from ...running.cell_folder import ONLY, PREPARED, content_hash, write_json
from ...settings import DifficultyConfig, ModelConfig, PreparedConfig, PreparedModel, Preset
from ...settings import load as load_preset
from ...stages import prepare
from ...stages.prepare import record
from ..tiny.problems import MODELS, source_for, table_of
from .study import PANEL, STUDY, Unit

if TYPE_CHECKING:
    from .probe import Probe

INPUTS = Path(__file__).with_name("inputs")
"""Those of every unit, as the frozen commit made them."""
RESULTS = Path(__file__).with_name("results")
"""The tables of every unit, likewise."""


def preset_of(unit: Unit, inputs: Path = INPUTS) -> Preset:
    """The preset of a unit, from panel.yaml, with its own base model, which is in a folder of inputs."""
    preset, name = load_preset(PANEL, preset=unit.task), f"{unit.task}-{unit.base_seed}"
    model = PreparedModel(name=name, folder=str(inputs / name))
    return preset.model_copy(update={"base": PreparedConfig(models=(model,))})


def made(unit: Unit, work: Path) -> Path:
    """The folder with ``base/`` and ``SET.parquet`` of a task and base seed, trained and measured once, in minutes."""
    name = f"{unit.task}-{unit.base_seed}"
    kept = work / "inputs" / name
    if not kept.exists():
        aside = kept.with_name(f".{name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        _make(unit, work / "making" / name, aside)
        aside.rename(kept)
    return kept


def probed(unit: Unit) -> Probe:
    """Probe the base model of a unit with an eighth of a cell's rollouts, and keep what it says."""
    from .probe import probe, rollouts_of

    preset, inputs = preset_of(unit), INPUTS / f"{unit.task}-{unit.base_seed}"
    problems = tables.read(inputs / f"{unit.problem_set}.parquet", "problems")
    model = str(inputs / "base"), content_hash(inputs / "base")
    rollouts = rollouts_of(preset.sweep_of(unit.problem_set).rollouts)
    found = probe(preset, unit.problem_set, model, problems, rollouts=rollouts)
    write_json(RESULTS / unit.name / "probe.json", asdict(found))
    return found


def _make(unit: Unit, folder: Path, out: Path) -> None:
    """Train a base model and measure its problems in a folder, and copy what cells start from."""
    from ..tiny.model import train

    how = STUDY["inputs"][unit.task]
    model = MODELS[unit.task].model_validate({**how["model"], "seed": unit.base_seed})
    settings = DifficultyConfig.model_validate_json(json.dumps(how["difficulty"]))
    train(model, out / "base")
    base = ModelConfig(model=str(out / "base"))
    preset = preset_of(unit).model_copy(update={"base": base})
    if unit.task == "chains":
        parts = [load_checked(source_from(source)) for source in how["problems"]]
    else:
        parts = [Loaded(problems=table_of(source_for(model, **how["problems"])), dropped=pl.DataFrame())]
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        record(base)
        prepare.measure_sets(preset, settings, prepare.join_problems(preset, parts))
        for name in ("base.json", "histogram.svg", "histogram.png", *(f"{each}.parquet" for each in preset.sweep)):
            shutil.copy(PREPARED / ONLY / name, out / name)
