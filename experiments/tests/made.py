"""Cells and settings made by hand, for tests that need no engine."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from isocompute.budget import History
from isocompute.learner import EvaluationRecord, LearnerConfig, ResponseStatistics, StepRecord
from isocompute.learner.config import AdapterConfig, EntropyConfig, KLConfig
from isocompute.rollout.contract import tables

from experiments.running import work
from experiments.running.cells import Cell, Origin, Surroundings

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params.yaml"
BASE = ROOT / "experiments" / "inputs" / "smoke" / "base"
"""The base model of ``smoke``."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "max_prompt_tokens": 8}
SURROUNDINGS = {
    "code": "c",
    "versions": {},
    "sampler": "vllm",
    "device": "cpu",
    "engine": {"dtype": "float32"},
    "placement": "colocated",
    "learner_ranks": 1,
}


def cell(*, base: str = "b", surroundings: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """Twelve steps of 2 × 4, evaluated every four."""
    origin = Origin(
        problem_set="easy",
        base_model="base",
        base=base,
        problems="p",
        generation={"sampling": SAMPLING},
        surroundings=Surroundings(**{**SURROUNDINGS, **(surroundings or {})}),
    )
    settings: dict[str, Any] = {
        "purpose": "sweep",
        "origin": origin,
        "rollouts_per_problem": 4,
        "problems_per_batch": 2,
        "seed": 7,
        "rollouts": 96,
        "evaluate_every": 32,
        "evaluation_samples": 4,
        "learner": LearnerConfig(
            learning_rate=3e-3, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01)
        ),
    }
    return Cell(**{**settings, **changes})


def adapted(one: Cell) -> Cell:
    """A cell that learns an adapter."""
    return replace(one, learner=replace(one.learner, learning_rate=1e-2, adapter=AdapterConfig(rank=8)))


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


def finish(folder: Path, one: Cell) -> None:
    """Write the tables of a finished cell."""
    rows = {
        "evals": {
            "run_id": one.run_id,
            "step": 0,
            "rollouts": 0,
            "tokens": 0,
            "rollouts_per_problem": 4,
            "problems_per_batch": 2,
            "seed": 7,
            "problem_set": "easy",
            "split": "validation",
            "questions": 8,
            "samples": 4,
            "avg_at_4": 0.25,
        },
        "ledger": {
            "run_id": one.run_id,
            "step": 1,
            "cohort": "trained",
            "rollouts": 8,
            "prompt_tokens": 32,
            "response_tokens": 40,
        },
        "pass_rates": {"run_id": one.run_id, "step": 0, "problem_id": "p", "successes": 1, "samples": 4},
        "timings": {"run_id": one.run_id, "step": 1, "phase": "sample", "seconds": 0.1, "device_seconds": 0.1},
    }
    for name, row in rows.items():
        tables.write(pl.DataFrame([row]), name, folder / f"{name}.parquet")
    work.set_done(folder, work.Done(rollouts=one.rollouts, step=4, diverged_at=None))


def lost(folder: Path) -> int:
    """Training rollouts of a cell that were lost when attempts ended early."""
    return History.read(folder / "ledger.bin").totals().lost_training.rollouts


def ended(one: Cell, *, budget: int, diverged_at: int | None = None, cohorts: tuple[str, ...] = ("trained",)) -> Path:
    """A folder as a worker leaves it: steps of 8 rollouts, evaluated every 32; the cohorts share a step's rollouts."""
    folder, steps = work.folder_of(one), budget // 8
    ledger = [(one.run_id, step, cohort, 8 // len(cohorts), 4, 4) for step in range(1, steps + 1) for cohort in cohorts]
    ledger += [(one.run_id, step, "eval", 32, 4, 4) for step in range(4, steps + 1, 4)]
    columns = ["run_id", "step", "cohort", "rollouts", "prompt_tokens", "response_tokens"]
    tables.write(pl.DataFrame(ledger, schema=columns, orient="row"), "ledger", folder / "ledger.parquet")
    rows = [
        {
            "run_id": one.run_id,
            "step": step,
            "rollouts": 8 * step,
            "tokens": 4 * step,
            "rollouts_per_problem": 4,
            "problems_per_batch": 2,
            "seed": one.seed,
            "problem_set": "easy",
            "split": "validation",
            "questions": 8,
            "samples": 4,
            "avg_at_4": 0.25,
        }
        for step in range(0, steps + 1, 4)
    ]
    tables.write(pl.DataFrame(rows), "evals", folder / "evals.parquet")
    rates = [{"run_id": one.run_id, "step": r["step"], "problem_id": "p", "successes": 1, "samples": 4} for r in rows]
    tables.write(pl.DataFrame(rates), "pass_rates", folder / "pass_rates.parquet")
    step = steps if diverged_at is None else diverged_at - 1
    work.set_done(folder, work.Done(rollouts=budget, step=step, diverged_at=diverged_at))
    start = {
        "run_id": one.start_id,
        "step": 0,
        "cohort": "eval",
        "rollouts": 32,
        "prompt_tokens": 9,
        "response_tokens": 9,
    }
    tables.write(pl.DataFrame([start]), "ledger", work.start_of(one) / "ledger.parquet")
    return folder


@cache
def _settings() -> Any:
    return yaml.safe_load(PARAMS.read_text())


def changed(tmp_path: Path, change: str, value: object) -> Path:
    """The preset ``smoke`` of the checkout with one setting changed, by its dotted path."""
    smoke = place = copy.deepcopy(_settings()["smoke"])
    *parents, last = change.split(".")
    for key in parents:
        place = place[key]
    place[last] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"preset": "smoke", "smoke": smoke}))
    return path
