"""What the panel's cells start from: base models, and problem sets measured twice, as they are committed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..stages import base, difficulty, problems
from ..stages.shared import OUT
from .study import Study
from .unit import INPUTS, preset_of


def prepare(study: Study, home: Path) -> None:
    """Train every base model and measure its problem sets, in folders below ``home``; what is there is kept."""
    for unit in study.units():
        kept = INPUTS / f"{unit.task}-{unit.base_seed}"
        if kept.exists():
            continue
        preset = preset_of(unit)
        preset = preset.model_copy(update={"base": preset.base.model_copy(update={"seed": unit.base_seed})})
        folder = home / "inputs" / kept.name
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        print(f"{kept.name}:", flush=True)
        problems.run(preset)
        base.run(preset)
        difficulty.run(preset)
        aside = kept.with_name(f".{kept.name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(OUT / "base", aside / "base")
        for name in ("base.json", "histogram.svg", "histogram.png", *(f"{each}.parquet" for each in preset.sweep)):
            shutil.copy(OUT / "difficulty" / name, aside / name)
        aside.rename(kept)
