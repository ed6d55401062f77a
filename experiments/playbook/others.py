"""The default again from base models of other seeds: whether its answer is that of the base models that it has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import chdir
from math import log2
from pathlib import Path
from typing import Any

from isocompute.frontier import Frontier

from ..errors import ExperimentError
from ..report.page import choice, choice_text
from ..running.identity import digest
from ..running.work import write_json
from ..settings import PreparedConfig, Preset
from ..settings import load as load_preset
from ..settings.bases import PreparedModel
from ..stages import frontier, prepare, sweep
from ..stages.shared import OUT
from .prepare import made
from .study import ROOT, Unit

FILE = Path(__file__).with_name("others.json")
"""What was found, to be committed; ``repro`` prints it where it is of the preset's own sweep."""
REPEATS = 5
PARAMS = ROOT / "params.yaml"


def run(work: Path) -> Iterator[str]:
    """Prepare, sweep and fit five more base models, each alone and then all together; yields a line for each fit.

    What is finished is found again, so that a killed command goes on.
    """
    preset = load_preset(PARAMS)
    if not isinstance(preset.base, PreparedConfig) or len(preset.sweep) != 1:
        raise ExperimentError(f"{PARAMS.name}: {preset.name} is no sweep of one problem set from prepared base models")
    (problem_set,) = preset.sweep
    folder, count = work / "others", len(preset.base_models)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    # The panel has the first seeds.
    units = [Unit(task="chains", problem_set=problem_set, base_seed=seed) for seed in range(count, count + REPEATS)]
    models = tuple(
        PreparedModel(name=f"{unit.task}-{unit.base_seed}", folder=str(made(unit, folder))) for unit in units
    )
    found = []
    with chdir(folder):
        for model, unit in zip(models, units, strict=True):
            found.append({"base_seeds": [unit.base_seed], **_chosen(preset, problem_set, (model,))})
            yield f"base model {unit.base_seed}: {choice_text(found[-1])}"
        together = _chosen(preset, problem_set, models)
    document = {"found": found, "together": together}
    write_json(FILE, {"preset": preset.name, "sweep": sweep_of(preset, problem_set), **document})
    yield summary(document)


def _chosen(preset: Preset, problem_set: str, models: tuple[PreparedModel, ...]) -> dict[str, Any]:
    own = preset.model_copy(update={"base": PreparedConfig(models=models)})
    prepare.run(own)
    sweep.run(own, problem_set)
    frontier.run(own, problem_set)
    return choice(Frontier.load(OUT / "frontier" / problem_set))


def sweep_of(preset: Preset, problem_set: str) -> str:
    """Hash of what is swept, base models apart: a result of another sweep is not shown."""
    swept = preset.sweep[problem_set]
    return digest({**swept.model_dump(mode="json", exclude={"learner"}), "learner": dict(swept.learner)})


def summary(document: Mapping[str, Any]) -> str:
    """What each of the other base models says alone, the range of it, and what all say together."""
    chosen = [each["rollouts_per_problem"] for each in document["found"]]
    octaves = log2(max(chosen) / min(chosen))
    alone = "; ".join(choice_text(each) for each in document["found"])
    together = choice_text(document["together"])
    return f"{alone}: {octaves:g} octaves from the least n to the largest; all together: {together}"


def recorded(preset: Preset, problem_set: str) -> str:
    """What was found from other base models for a sweep; empty where nothing was."""
    document = json.loads(FILE.read_text()) if FILE.exists() else {}
    if document.get("sweep") != sweep_of(preset, problem_set):
        return ""
    return summary(document)
