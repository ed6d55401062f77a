"""Cells and settings made by hand, for tests that need no engine."""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from isocompute.budget import History
from isocompute.learner import (
    EvaluationRecord,
    LearnerConfig,
    ResponseStatistics,
    RunConfig,
    StepRecord,
    with_cohorts,
)
from isocompute.learner.config import EntropyConfig, KLConfig
from isocompute.rollout import EvaluationResult, Sampling, load_problems, source_from
from isocompute.rollout.contract import tables

from experiments.running import cell_folder
from experiments.running.cells import Cell, Generation, Origin, Surroundings
from experiments.settings import Preset, load

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params.yaml"
PACKAGES = ("budget", "rollout", "learner", "frontier")
BASE = ROOT / "experiments" / "inputs" / "smoke" / "base"
"""The base model of ``smoke``."""
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "max_prompt_tokens": 8}
GENERATION = Generation(sampling=Sampling(**SAMPLING))
SURROUNDINGS = {
    "code": "c",
    "versions": {},
    "sampler": "vllm",
    "device": "cpu",
    "engine": {"dtype": "float32"},
    "placement": "colocated",
    "learner_ranks": 1,
}


def origin_of(**changes: Any) -> Origin:
    """What some cells share."""
    shared = {"problem_set": "easy", "base_model": "base", "base": "b", "problems": "p"}
    return Origin(**{**shared, "surroundings": Surroundings(**SURROUNDINGS), **changes})


RUN = {"rollouts_per_problem": 4, "problems_per_batch": 2, "seed": 7, "evaluate_every": 32}


def cell(*, base: str = "b", surroundings: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """Twelve steps of 2 × 4, evaluated every four."""
    found = Surroundings(**{**SURROUNDINGS, **(surroundings or {})})
    origin = origin_of(base=base, generation=GENERATION, surroundings=found)
    settings: dict[str, Any] = {
        "purpose": "sweep",
        "origin": origin,
        "run": RunConfig(**{**RUN, **{name: changes.pop(name) for name in [*changes] if name in RUN}}),
        "rollouts": 96,
        "evaluation_samples": 4,
        "learner": LearnerConfig(
            learning_rate=3e-3, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01)
        ),
    }
    return Cell(**{**settings, **changes})


def step_record(step: int, *, reward: float = 0.5, length: float = 5.0) -> StepRecord:
    """A step of eight rollouts without an update."""
    responses = ResponseStatistics(
        reward=reward, reward_std=0.5, zero_variance_share=0.0, response_length=length, truncated_share=0.0
    )
    return StepRecord(
        step=step, rollouts=8 * step, sample_seconds=0.5, update_seconds=0.25, sync_seconds=0.125, responses=responses
    )


def evaluation_record(step: int, score: float) -> EvaluationRecord:
    """An evaluation after such a step."""
    return EvaluationRecord(step=step, rollouts=8 * step, scores={"avg_at_4": score}, evaluate_seconds=0.5)


def keep(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    """Write a table of a cell."""
    tables.write(pl.DataFrame(rows), name, folder / f"{name}.parquet")


def spent(run: str, step: int, cohort: str = "trained", rollouts: int = 8) -> dict[str, Any]:
    """A row of a ledger."""
    counts = {"rollouts": rollouts, "prompt_tokens": 4, "response_tokens": 4}
    return {"run_id": run, "step": step, "cohort": cohort, **counts}


def evaluated(one: Cell, step: int, score: float = 0.25, questions: int = 8) -> dict[str, Any]:
    """A row of its evaluations."""
    at = {"step": step, "rollouts": step * one.run.batch_rollouts, "tokens": 4 * step}
    return one.evals_row(**at, questions=questions, scores={"avg_at_4": score})


def passed(one: Cell, step: int) -> dict[str, Any]:
    """A row of its pass rates."""
    return {"run_id": one.run_id, "step": step, "problem_id": "p", "successes": 1, "samples": 4}


def took(one: Cell) -> dict[str, Any]:
    """A row of its timings."""
    return {"run_id": one.run_id, "step": 1, "phase": "sample", "seconds": 0.1, "device_seconds": 0.1}


def finish(folder: Path, one: Cell) -> None:
    """Write the tables of a finished cell."""
    keep(folder, "evals", evaluated(one, 0))
    keep(folder, "ledger", spent(one.run_id, 1))
    keep(folder, "pass_rates", passed(one, 0))
    keep(folder, "timings", took(one))
    cell_folder.set_done(folder, cell_folder.Done(rollouts=one.rollouts, step=4, diverged_at=None))


def environment(**more: str) -> dict[str, str]:
    """Variables of a process that imports this project."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}


def copied(folder: Path) -> Path:
    """A folder with the code of the stages, of which none is a test or a study."""
    hidden = shutil.ignore_patterns("tests", "studies")
    for place in (*(f"packages/{name}/src" for name in PACKAGES), "contract", "experiments"):
        # Not the links to contract/, which would be copied as folders of their own.
        shutil.copytree(ROOT / place, folder / place, ignore=hidden, symlinks=True)
    return folder


def sources(folder: Path) -> str:
    """The ``PYTHONPATH`` with which the code of a copy is imported."""
    return os.pathsep.join(map(str, [folder, *(folder / "packages" / name / "src" for name in PACKAGES)]))


def edit(path: Path | str, old: str, new: str) -> None:
    """Replace a text that is there, once."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def lost(folder: Path) -> int:
    """Training rollouts of a cell that were lost when attempts ended early."""
    return History.read(folder / "run.ledger").totals().lost_training.rollouts


def ended(one: Cell, *, budget: int, diverged_at: int | None = None, cohorts: tuple[str, ...] = ("trained",)) -> Path:
    """A folder as a worker leaves it: steps of 8 rollouts, evaluated every 32; the cohorts share a step's rollouts."""
    folder, steps = cell_folder.folder_of(one), budget // 8
    trained = [spent(one.run_id, step, cohort, 8 // len(cohorts)) for step in range(1, steps + 1) for cohort in cohorts]
    keep(folder, "ledger", *trained, *(spent(one.run_id, step, "eval", 32) for step in range(4, steps + 1, 4)))
    keep(folder, "evals", *({**evaluated(one, step), "rollouts": 8 * step} for step in range(0, steps + 1, 4)))
    keep(folder, "pass_rates", *(passed(one, step) for step in range(0, steps + 1, 4)))
    step = steps if diverged_at is None else diverged_at - 1
    cell_folder.set_done(folder, cell_folder.Done(rollouts=budget, step=step, diverged_at=diverged_at))
    keep(cell_folder.baseline_of(one), "ledger", spent(one.baseline_id, 0, "eval", 32))
    return folder


def kept_checkpoint(folder: Path, *, step: int = 12, size: int = 1000) -> None:
    """What a worker leaves of a cell's state."""
    kept = folder / "checkpoints" / f"step-{step:09d}"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "tensors.safetensors").write_bytes(b"\0" * size)


@cache
def _params() -> str:
    return json.dumps(yaml.safe_load(PARAMS.read_text()))


def params() -> Any:
    """``params.yaml`` of the checkout, to be changed."""
    return json.loads(_params())


def preset_of(folder: Path, name: str, own: Any, changes: dict[str, Any] | None) -> Preset:
    """A preset with settings changed, by their dotted paths, as read from a file."""
    for path, value in (changes or {}).items():
        place = own
        *parents, last = path.split(".")
        for key in parents:
            place = place[key]
        place[last] = value
    (folder / "params.yaml").write_text(yaml.safe_dump({"preset": name, name: own}))
    return load(folder / "params.yaml", name)


def smoke(folder: Path, changes: dict[str, Any] | None = None) -> Preset:
    """The preset ``smoke`` of the checkout with changes."""
    return preset_of(folder, "smoke", params()["smoke"], changes)


def first_evaluation(metrics: dict[str, float], questions: int) -> EvaluationResult:
    """What cells of one seed share, of four responses to each question."""
    rates = pl.DataFrame({"problem_id": ["p"], "successes": [1], "samples": [4]})
    answered = pl.DataFrame({"prompt_ids": [[1]] * 4 * questions, "response_ids": [[1]] * 4 * questions})
    return EvaluationResult(metrics=metrics, questions=questions, samples=4, rollouts=answered, pass_rates=rates)


def learnt_from(rollouts: pl.DataFrame, config: LearnerConfig) -> pl.DataFrame:
    """A batch of rollouts with rewards of 0 and 1 in turn, since those of a random model are rarely both."""
    # It loads torch, which most users of this module do not need.
    from isocompute.learner import prepare

    rewards = pl.Series([float(row % 2) for row in range(len(rollouts))], dtype=pl.Float32)
    return prepare(with_cohorts(rollouts.with_columns(reward=rewards), config.batch), config)


def sums(train: int, validation: int) -> pl.DataFrame:
    """Problems of one-digit sums."""
    terms = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    source = {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "settings": terms}
    return load_problems(source_from({**source, "train": train, "validation": validation}))
