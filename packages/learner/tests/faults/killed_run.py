"""A small run with a ledger that can be killed anywhere and continued; imported, a process forked from it is quick."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.budget import Ledger, Limits, Meter
from isocompute.learner.config import BatchConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.ranks.group import LearnerGroup
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.saving.export import save_policy
from isocompute.learner.training import loop
from isocompute.learner.training.run import restore
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, LogLikelihood, Replay, counted_writes

STEPS, EVERY = 8, 2
RUN = loop.RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=4, seed=3, evaluate_every=64)
CONFIG = LearnerConfig(
    learning_rate=1e-2,
    objective=ObjectiveConfig(algorithm="ppo", updates_per_batch=2),
    batch=BatchConfig(drop_above=0.5),
)


def count(sampler: Any, answers: Path) -> None:
    """Write down how many rollouts a sampler has answered with, a line for each call, whatever is charged."""
    answered = sampler.sample

    def sample(problems: pl.DataFrame, **asked: Any) -> pl.DataFrame:
        found: pl.DataFrame = answered(problems, **asked)
        with answers.open("a") as file:
            file.write(f"{len(found)}\n")
        return found

    sampler.sample = sample


def run(home: Path, model: Path, learner: Any, sampler: Any) -> None:
    """Run to the end, or what is left of it, and write down what is compared."""
    count(sampler, home / "answers")
    store = Checkpoints(home / "checkpoints", every_steps=EVERY, keep=2)
    progress = restore(learner=learner, checkpoints=store, run=RUN, problems=PROBLEMS)
    opened: dict[str, Any] = {"run_id": "r", "resumed_from": progress.step}
    answered = loop.sync_and_check(learner=learner, sampler=sampler, problems=PROBLEMS, run_id="r")
    # Paid for in an attempt that training replaces, so that the ledger of a run does not depend on its starts.
    with Ledger.open(home / "run.ledger", **opened) as ledger:
        ledger.charge(progress.step + 1, answered.with_columns(cohort=pl.lit("eval")))
    (home / "training").touch()
    with Ledger.open(home / "run.ledger", **opened) as ledger:
        ended = loop.train(
            run=RUN,
            problems=PROBLEMS,
            sampler=sampler,
            learner=learner,
            evaluator=LogLikelihood(sampler),
            meter=Meter(ledger, Limits(rollouts=STEPS * RUN.batch_rollouts, counted="used")),
            checkpoints=store,
            progress=progress,
            watch=lambda record: None,
        )
        ledger.table().write_parquet(home / "ledger.parquet")
        ledger.lost_work().write_parquet(home / "lost.parquet")
        totals = {"paid": ledger.totals.paid.rollouts, "used": ended.rollouts}
    save_policy(learner.weights(), model, home / "policy")
    (home / "evals.json").write_text(json.dumps(ended.evals))
    (home / "totals.json").write_text(json.dumps(totals))


def alone(home: Path, model: Path, dies_at: int = 0) -> None:
    """Run in this process with one rank.

    Args:
        home: The run's folder.
        model: The base model.
        dies_at: The call among those that write, at which the process is killed; 0 for none.
    """
    calls = counted_writes(pytest.MonkeyPatch(), dies_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run(home, model, Learner(model, CONFIG), Replay(model))
    (home / "writes").write_text(str(calls()))


def drive(home: Path, model: Path, address: str, environment: dict[str, str]) -> None:
    """Drive two ranks in a cluster that is there; its variables are those of the process that started it."""
    os.environ.update(environment)
    import ray

    ray.init(address=address, log_to_driver=False)
    run(home, model, LearnerGroup(model, CONFIG, world_size=2, grace=1), Replay(model))
