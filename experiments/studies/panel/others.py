"""The default again from base models of other seeds: whether its answer is that of the base models that it has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from isocompute.rollout.contract import tables

from ...errors import ExperimentError
from ...report import choice, choice_text, sweep_digest
from ...running.cell_folder import OUT, write_json
from ...settings import PreparedConfig, PreparedModel, load
from ...stages import frontier, prepare, sweep
from .prepare import made
from .study import ROOT, Unit

FILE = Path(__file__).with_name("others.json")
"""Committed results; ``repro`` prints its sentence where the preset names the file as ``others``."""
BASES, SHUFFLES = 5, 4
"""Number of further base models, and of shuffles of n in each choice of them."""
PARAMS = ROOT / "params.yaml"


def run(work: Path) -> Iterator[str]:
    """Sweep from five more base models; fit each, and every choice of as many of them as the default has.

    Such choices are also fitted with n shuffled, as if it had no effect. A killed command goes on where it was.
    """
    preset = load(PARAMS)
    if not isinstance(preset.base, PreparedConfig) or len(preset.sweep) != 1:
        raise ExperimentError(f"{PARAMS.name}: {preset.name} is no sweep of one problem set from prepared base models")
    (problem_set,) = preset.sweep
    folder, count = work / "others", len(preset.base_models)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    alone, together, shuffled, swept = [], [], [], []
    # The panel has the first seeds.
    for seed in range(count, count + BASES):
        unit = Unit(task="chains", problem_set=problem_set, base_seed=seed)
        model = PreparedModel(name=f"{unit.task}-{seed}", folder=str(made(unit, folder)))
        own = preset.model_copy(update={"base": PreparedConfig(models=(model,))})
        with chdir(folder):
            prepare.run(own)
            sweep.run(own, problem_set)
            swept.append(tables.read(OUT / "sweep" / problem_set / "evals.parquet", "evals"))
        alone.append(choice(frontier.fit(preset, problem_set, swept[-1])))
        yield f"{model.name}: {choice_text(alone[-1])}"
    for number, evals in enumerate(map(pl.concat, combinations(swept, count))):
        together.append(choice(frontier.fit(preset, problem_set, evals)))
        seeds = range(number * SHUFFLES, (number + 1) * SHUFFLES)
        shuffled += [choice(frontier.fit(preset, problem_set, shuffle(evals, seed))) for seed in seeds]
        yield f"{', '.join(evals['base_model'].unique().sort())}: {choice_text(together[-1])}"
    document = {"count": count, "alone": alone, "together": together, "shuffled": shuffled}
    sentence = summary(document)
    found = {"preset": preset.name, "sweep": sweep_digest(preset, problem_set), "sentence": sentence}
    write_json(FILE, {**found, **document})
    yield sentence


def shuffle(evals: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The evaluations with n shuffled among the runs of each base model, higher learning rates staying the higher."""
    ranked = evals.with_columns(rate=pl.col("learning_rate").rank("dense").over("base_model", "rollouts_per_problem"))
    of_n, parts = ["learning_rate", "step", "run_id"], []
    for place, (_, part) in enumerate(ranked.drop(of_n).group_by("base_model", maintain_order=True)):
        values = part["rollouts_per_problem"].unique().sort()
        other = pl.col("rollouts_per_problem").replace(values, values.shuffle(seed=10 * seed + place))
        parts.append(part.with_columns(other))
    keys = ["base_model", "rate", "rollouts", "rollouts_per_problem"]
    return pl.concat(parts).join(ranked.select(*keys, *of_n), on=keys).select(evals.columns)


def summary(document: Mapping[str, Any]) -> str:
    """Count each answer, by base models together and alone, and how sure it is where n has no effect."""
    together, alone, shuffled = (document[name] for name in ("together", "alone", "shuffled"))
    sure = np.quantile([each["probability_best"] for each in shuffled], [0.5, 0.95])
    return (
        f"{len(together)} choices of {document['count']}: {_counted(together)}; {len(alone)} alone: {_counted(alone)}; "
        f"{len(shuffled)} with n shuffled, as if it had no effect: P(best) {sure[0]:.0%}, one in twenty {sure[1]:.0%}"
    )


def _counted(found: Sequence[Mapping[str, Any]]) -> str:
    near, sure = [each["near"] for each in found], [each["probability_best"] for each in found]
    said = Counter(f"{'undecided between ' * (len(one) > 1)}n = {' and '.join(map(str, one))}" for one in near)
    counts = ", ".join(f"{words} ({times})" for words, times in said.most_common())
    return f"{counts}, P(best) {min(sure):.0%} to {max(sure):.0%}"
