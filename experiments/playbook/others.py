"""The default again from base models of other seeds: whether its answer is that of the base models that it has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from math import log2
from pathlib import Path
from typing import Any

from isocompute.frontier import Frontier

from ..errors import ExperimentError
from ..report.choice import choice, text
from ..running.identity import digest
from ..running.work import write_json
from ..settings import PreparedConfig, Preset
from ..settings import load as load_preset
from ..settings.bases import PreparedModel
from ..stages import frontier, prepare, sweep
from ..stages.shared import OUT
from .prepare import inputs_of
from .study import PANEL, Unit

FILE = Path(__file__).with_name("others.json")
"""What was found, to be committed; ``repro`` prints it where it is of the preset's own sweep."""
REPEATS = 5
PARAMS = PANEL.parents[2] / "params.yaml"


def run(home: Path) -> Iterator[str]:
    """Prepare as many base models as the default has, sweep and fit, five times over; yields a line for each.

    What is finished is found again, so that a killed command goes on.

    Args:
        home: Where models, cells and tables are kept.

    Raises:
        ExperimentError: The default has no prepared base models, or several problem sets.
    """
    preset = load_preset(PARAMS)
    if not isinstance(preset.base, PreparedConfig) or len(preset.sweep) != 1:
        raise ExperimentError(f"{PARAMS.name}: {preset.name} is no sweep of one problem set from prepared base models")
    (problem_set,) = preset.sweep
    folder, count = home / "others", len(preset.base_models)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    found = []
    for repeat in range(REPEATS):
        # The panel has the first seeds.
        seeds = range(count * (repeat + 1), count * (repeat + 2))
        units = [Unit(task="chains", problem_set=problem_set, base_seed=seed) for seed in seeds]
        models = tuple(
            PreparedModel(name=f"{unit.task}-{unit.base_seed}", folder=str(inputs_of(unit, folder))) for unit in units
        )
        own = preset.model_copy(update={"base": PreparedConfig(models=models)})
        with chdir(folder):
            prepare.run(own)
            sweep.run(own, problem_set)
            frontier.run(own, problem_set)
            found.append({"base_seeds": list(seeds), **choice(Frontier.load(OUT / "frontier" / problem_set))})
        yield f"base models {', '.join(map(str, seeds))}: {text(found[-1])}"
    write_json(FILE, {"preset": preset.name, "sweep": sweep_of(preset, problem_set), "found": found})
    yield summary(found)


def sweep_of(preset: Preset, problem_set: str) -> str:
    """Hash of what is swept, base models apart: a result of another sweep is not shown."""
    swept = preset.sweep[problem_set]
    return digest({**swept.model_dump(mode="json", exclude={"learner"}), "learner": dict(swept.learner)})


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """What all repeats say, and the range of it."""
    chosen = [each["rollouts_per_problem"] for each in found]
    octaves = log2(max(chosen) / min(chosen))
    return f"{'; '.join(text(each) for each in found)}: {octaves:g} octaves from the least n to the largest"


def recorded(preset: Preset, problem_set: str) -> str:
    """What was found from other base models for a sweep; empty where nothing was."""
    document = json.loads(FILE.read_text()) if FILE.exists() else {}
    if document.get("sweep") != sweep_of(preset, problem_set):
        return ""
    return summary(document["found"])
