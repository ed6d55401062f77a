"""The hot loop with a real model, a sampler of recorded tokens and a meter of steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import loop
from isocompute.learner.checkpoint import Checkpoints
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError, SyncError
from isocompute.learner.learner import Learner
from isocompute.learner.timings import timings_table

PROBLEMS = pl.DataFrame({"problem_id": [f"p{i}" for i in range(8)]})
RUN = loop.RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=4, seed=3, evaluate_every=32)


@dataclass
class Steps:
    """A meter that admits a number of steps."""

    limit: int
    charged: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def admit(self, step: int, rollouts: int) -> bool:
        return step <= self.limit

    def charge(self, step: int, counts: Mapping[str, Any]) -> None:
        self.charged.append((step, dict(counts)))


@dataclass
class LogLikelihood:
    """An evaluator: what the policy thinks of recorded answers, which a change of any weight changes."""

    sampler: Any

    def __call__(self, *, step: int, rollouts: int, tokens: int) -> Any:
        table = self.sampler.sample(PROBLEMS.head(2), samples=2, seed=99, step=0, phase="eval", run_id="r")
        score = float(table["logprobs"].explode().mean())
        return Evaluated({"step": step, "rollouts": rollouts, "tokens": tokens, "avg_at_2": score}, table)


@dataclass
class Evaluated:
    row: dict[str, Any]
    rollouts_table: pl.DataFrame


def run(learner: Any, sampler: Any, folder: Path, *, steps: int, told: list[Any] | None = None) -> loop.Progress:
    """Train, or go on training, for so many steps in all."""
    store = Checkpoints(folder)
    progress = loop.restore(learner, store)
    loop.canary(learner, sampler, PROBLEMS, run_id="r")
    lines: list[Any] = [] if told is None else told

    def watch(step: int, rollouts: int, metrics: Mapping[str, float]) -> None:
        lines.append({"step": step, "rollouts": rollouts, "metrics": dict(metrics)})

    meter = Steps(steps)
    return loop.train(RUN, PROBLEMS, sampler, learner, LogLikelihood(sampler), meter, len, store, progress, watch)


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in learner.weights()])


def test_a_run_evaluates_on_the_grid_and_stops_with_its_budget(learner: Learner, replay: Any, tmp_path: Path) -> None:
    told: list[Any] = []
    progress = run(learner, replay, tmp_path, steps=5, told=told)
    assert (progress.step, progress.rollouts) == (5, 80)
    assert [(row["step"], row["rollouts"]) for row in progress.evals] == [(0, 0), (2, 32), (4, 64)]
    assert replay.weights_version == learner.version == 5
    assert [line["step"] for line in told] == [0, 1, 2, 2, 3, 4, 4, 5]
    phases = timings_table(told, "r").group_by("phase").len().sort("phase").rows()
    assert phases == [("evaluate", 3), ("sample", 5), ("sync", 5), ("update", 5)]


def test_a_run_that_was_cut_off_goes_on_bit_for_bit(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=6)
    # Cut off one step after a checkpoint, which is then taken again.
    run(Learner(model, config), replay, tmp_path / "cut", steps=3)
    resumed = Learner(model, config)
    assert run(resumed, replay, tmp_path / "cut", steps=6) == whole
    assert torch.equal(weights(straight), weights(resumed))


def test_a_batch_of_equal_rewards_is_paid_for_and_teaches_nothing(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    learner = Learner(model, replace(config, filter_zero_variance=True))
    before = weights(learner).clone()
    answered = replay.sample

    def never_right(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        return answered(problems, **settings).with_columns(reward=pl.lit(0.0))

    replay.sample = never_right
    meter = Steps(2)
    progress = loop.restore(learner, Checkpoints(tmp_path))
    told: list[Mapping[str, float]] = []
    loop.train(
        RUN, PROBLEMS, replay, learner, LogLikelihood(replay), meter, len, Checkpoints(tmp_path), progress,
        lambda step, rollouts, metrics: told.append(metrics),
    )  # fmt: skip
    paid = [(step, counts) for step, counts in meter.charged if "eval" not in counts]
    assert paid == [(1, {"filtered": 16}), (2, {"filtered": 16})]
    assert torch.equal(before, weights(learner))
    assert told[1]["zero_variance_share"] == 1.0


def test_a_sampler_that_takes_no_weights_is_caught_by_the_canary(learner: Learner, replay: Any, tmp_path: Path) -> None:
    run(learner, replay, tmp_path, steps=2)
    replay.sync = lambda weights, version: None
    learner.reset(learner.config)
    with pytest.raises(SyncError, match="before step 1"):
        loop.canary(learner, replay, PROBLEMS, run_id="r")


def test_a_sampler_that_misses_one_sync_stops_the_run(learner: Learner, replay: Any, tmp_path: Path) -> None:
    taken = replay.sync

    def stamps_only(weights: Any, version: int) -> None:
        if version == 2:
            replay.weights_version = version
        else:
            taken(weights, version)

    replay.sync = stamps_only
    with pytest.raises(SyncError, match="before step 3"):
        run(learner, replay, tmp_path, steps=5)
    assert learner.version == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rollouts_per_problem": 1}, "a group baseline needs 2 or more"),
        ({"problems_per_batch": 0}, "a batch needs 1 or more"),
        ({"evaluate_every": 24}, "no multiple of the batch of 16"),
        ({"evaluate_every": 0}, "no multiple of the batch of 16"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        replace(RUN, **changed)
