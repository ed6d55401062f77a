"""A run of the loop that takes a second: a sampler of recorded tokens, a meter of steps, evaluations of likelihood."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.loop import branch, restore

PROBLEMS = pl.DataFrame({"problem_id": [f"p{i}" for i in range(8)]})
RUN = loop.RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=4, seed=3, evaluate_every=32)


@dataclass
class Steps:
    """A meter that admits a number of steps."""

    limit: int
    charged: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def admit(self, *, step: int, rollouts: int) -> bool:
        return step <= self.limit

    def charge(self, step: int, rollouts: pl.DataFrame) -> None:
        self.charged.append((step, dict(rollouts["cohort"].value_counts().sort("count", descending=True).iter_rows())))

    def sync(self) -> None:
        self.charged.append((0, {"synced": True}))


class Killed(BaseException):
    """Ends a run where it is, as a kill does."""


@dataclass
class Mortal(Steps):
    """A meter whose process is killed after a number of steps, before the next one."""

    def admit(self, *, step: int, rollouts: int) -> bool:
        if step > self.limit:
            raise Killed
        return True


@dataclass
class LogLikelihood:
    """An evaluator: what the policy thinks of recorded answers, which a change of any weight changes."""

    sampler: Any

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Any:
        table = self.sampler.sample(PROBLEMS.head(2), samples=2, seed=99, step=0, phase="eval", run_id="r")
        score = float(table["logprobs"].explode().mean())
        row = {"step": step, "rollouts": rollouts, "tokens": tokens, "at": at, "avg_at_2": score}
        return Evaluated(row, {"avg_at_2": score}, table)


@dataclass
class Evaluated:
    row: dict[str, Any]
    scores: dict[str, float]
    rollouts_table: pl.DataFrame


def run(
    learner: Any,
    sampler: Any,
    folder: Path,
    *,
    steps: int,
    records: list[Any] | None = None,
    meter: Steps | None = None,
    every: dict[str, Any] | None = None,
    cell: loop.RunConfig = RUN,
    trunk: Path | None = None,
) -> loop.Progress:
    """Train, or go on training, for so many steps in all; begin as a branch of a trunk if there is one."""
    store = Checkpoints(folder, **every or {})
    if trunk is not None and store.newest() is None:
        progress = branch(learner=learner, trunk=Checkpoints(trunk), run=cell, problems=PROBLEMS)
    else:
        progress = restore(learner=learner, checkpoints=store, run=cell, problems=PROBLEMS)
    loop.canary(learner=learner, sampler=sampler, problems=PROBLEMS, run_id="r")
    return loop.train(
        run=cell,
        problems=PROBLEMS,
        sampler=sampler,
        learner=learner,
        evaluator=LogLikelihood(sampler),
        meter=meter or Steps(steps),
        checkpoints=store,
        progress=progress,
        watch=[].append if records is None else records.append,
    )


def kill(learner: Any, sampler: Any, folder: Path, *, after: int, **settings: Any) -> None:
    """Train, and be killed after so many steps."""
    with pytest.raises(Killed):
        run(learner, sampler, folder, steps=0, meter=Mortal(after), **settings)


def paid(meter: Steps) -> list[tuple[int, dict[str, Any]]]:
    """What was charged for training, step by step."""
    return [(step, counts) for step, counts in meter.charged if not counts.keys() & {"eval", "synced"}]


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in learner.weights()])
