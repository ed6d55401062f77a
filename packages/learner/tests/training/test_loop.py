"""The hot loop with a real model, a sampler of recorded tokens and a meter of steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import BatchConfig, EntropyConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.records.steps import timings_table
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, LogLikelihood, Steps, paid, run, weights

pytestmark = pytest.mark.slow("runs that train")

OF_A_BATCH = ObjectiveConfig(baseline="batch", scale="batch")


def test_a_run_evaluates_on_the_grid_and_stops_with_its_budget(learner: Learner, replay: Any, tmp_path: Path) -> None:
    records: list[Any] = []
    progress = run(learner, replay, tmp_path, steps=5, records=records)
    assert (progress.step, progress.rollouts) == (5, 80)
    assert [(row["step"], row["rollouts"]) for row in progress.evals] == [(0, 0), (2, 32), (4, 64)]
    assert replay.weights_version == learner.version == 5
    assert [record.step for record in records] == [0, 1, 2, 2, 3, 4, 4, 5]
    phases = timings_table(records, "r").group_by("phase").len().sort("phase").rows()
    assert phases == [("evaluate", 3), ("sample", 5), ("sync", 5), ("update", 5)]


def test_a_run_evaluates_on_a_grid_of_octaves(learner: Learner, replay: Any, tmp_path: Path) -> None:
    octaves = replace(RUN, evaluate_every=16, evaluations_per_octave=2)
    progress = run(learner, replay, tmp_path, steps=7, cell=octaves)
    assert [row["step"] for row in progress.evals] == [0, 1, 2, 3, 4, 6]


def test_a_batch_of_equal_rewards_is_paid_for_and_teaches_and_syncs_nothing(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    learner = Learner(model, replace(config, batch=BatchConfig(filter_zero_variance=True)))
    before = weights(learner).clone()
    answered, synced, taken = replay.sample, [], replay.sync

    def right_in_the_last_step(problems: pl.DataFrame, *, step: int, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, step=step, **settings)
        return rollouts if step == 3 else rollouts.with_columns(reward=pl.lit(0.0))

    def sync(weights: Any, version: int) -> None:
        synced.append(version)
        taken(weights, version)

    replay.sample, replay.sync = right_in_the_last_step, sync
    meter, records = Steps(2), []
    progress = run(learner, replay, tmp_path, steps=2, records=records, meter=meter)
    assert paid(meter) == [(1, {"filtered": 16}), (2, {"filtered": 16})]
    assert torch.equal(before, weights(learner))
    assert (progress.step, learner.version, replay.weights_version) == (2, 0, 0)
    assert records[1].responses.zero_variance_share == 1.0
    assert (records[1].update, records[1].sync_seconds) == (None, None)
    # The step after it is learnt from as ever, and one sync is for the canary of each start.
    progress = run(learner, replay, tmp_path, steps=3)
    assert (progress.step, learner.version, replay.weights_version, synced) == (3, 1, 1, [0, 0, 1])
    assert not torch.equal(before, weights(learner))


def with_a_failed_try(sampler: Any, step: int) -> None:
    """Let one response to a step fail at first: one row more than was asked for."""
    answered = sampler.sample

    def sample(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, **settings)
        if settings["phase"] != "train" or settings["step"] != step:
            return rollouts
        failed = rollouts.head(1).with_columns(sample=pl.lit(99, pl.Int64), finish_reason=pl.lit("aborted"))
        return pl.concat([rollouts, failed])

    sampler.sample = sample


def test_a_failed_rollout_is_counted_and_shifts_no_evaluation(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    clean = Learner(model, config)
    expected = run(clean, replay, tmp_path / "clean", steps=4)
    with_a_failed_try(replay, step=1)
    learner, meter = Learner(model, config), Steps(4)
    found = run(learner, replay, tmp_path / "failed", steps=4, meter=meter)
    assert paid(meter)[:2] == [(1, {"trained": 16, "failed": 1}), (2, {"trained": 16})]
    assert [(row["at"], row["rollouts"]) for row in found.evals] == [(0, 0), (32, 33), (64, 65)]
    assert found.rollouts == expected.rollouts + 1
    assert [row["avg_at_2"] for row in found.evals] == [row["avg_at_2"] for row in expected.evals]
    assert torch.equal(weights(clean), weights(learner))


@pytest.mark.parametrize(
    ("changed", "charged", "message"),
    [
        (pl.lit(float("nan"), pl.Float64).alias("reward"), {"trained": 16}, "is not a finite number"),
        (
            pl.when(pl.col("sample") == 0).then(pl.lit("stop")).otherwise(pl.lit("aborted")).alias("finish_reason"),
            {"failed": 12, "trained": 4},
            "no group has two completed",
        ),
    ],
)
def test_what_no_advantage_can_be_made_of_is_charged_first(
    learner: Learner, replay: Any, tmp_path: Path, changed: pl.Expr, charged: dict[str, int], message: str
) -> None:
    answered = replay.sample

    def sample(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, **settings)
        return rollouts.with_columns(changed) if settings["phase"] == "train" else rollouts

    replay.sample = sample
    meter = Steps(2)
    with pytest.raises(LearnerError, match=message):
        run(learner, replay, tmp_path, steps=2, meter=meter)
    assert paid(meter) == [(1, charged)]


def test_charges_are_on_the_disk_before_a_checkpoint_is(
    learner: Learner, replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Steps(2)
    save = Checkpoints.save

    def saved(store: Checkpoints, checkpoint: Any) -> Path:
        meter.charged.append((checkpoint.step, {"saved": True}))
        return save(store, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", saved)
    run(learner, replay, tmp_path, steps=2, meter=meter)
    assert [next(iter(counts)) for _, counts in meter.charged] == [
        *("eval", "synced", "saved"),
        "trained",
        "trained",
        *("eval", "synced", "saved"),
    ]


def test_an_evaluation_that_was_charged_elsewhere_is_not_charged(
    learner: Learner, replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = LogLikelihood.__call__

    def shared(self: LogLikelihood, *, step: int, **counted: int) -> Any:
        found = evaluated(self, step=step, **counted)
        return replace(found, rollouts_table=None) if step == 0 else found

    monkeypatch.setattr(LogLikelihood, "__call__", shared)
    meter = Steps(2)
    progress = run(learner, replay, tmp_path, steps=2, meter=meter)
    assert [row["step"] for row in progress.evals] == [0, 2]
    assert [(step, counts) for step, counts in meter.charged if "eval" in counts] == [(2, {"eval": 4})]


def test_the_canary_lets_a_policy_that_diverged_end_as_it_did(learner: Learner, replay: Any) -> None:
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.fill_(float("inf"))
    learner.version = 3
    assert len(loop.canary(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")) == 8
    learner.version = 0
    with pytest.raises(DivergenceError, match="before step 1"):
        loop.canary(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")


def test_the_canary_has_a_phase_of_its_own(learner: Learner, replay: Any) -> None:
    assert loop.canary(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")["phase"].unique().to_list() == [
        "canary"
    ]


def test_a_sampler_that_takes_no_weights_is_caught_by_the_canary(learner: Learner, replay: Any, tmp_path: Path) -> None:
    run(learner, replay, tmp_path, steps=2)
    replay.sync = lambda weights, version: None
    learner.reset(learner.config)
    with pytest.raises(SyncError, match="before step 1"):
        loop.canary(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")


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
        ({"rollouts_per_problem": 0}, "a problem needs 1 or more"),
        ({"problems_per_batch": 0}, "a batch needs 1 or more"),
        ({"evaluate_every": 24}, "not a multiple of the batch of 16"),
        ({"evaluate_every": 0}, "not a multiple of the batch of 16"),
        ({"evaluations_per_octave": 0}, "evaluations_per_octave is 0: it must be 1 or more, or None"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        replace(RUN, **changed)


@pytest.mark.parametrize(
    ("n", "settings", "message"),
    [
        (1, {}, "the advantage of grpo is relative to its group: it must be 2 or more"),
        (
            1,
            {"objective": ObjectiveConfig(algorithm="ppo"), "batch": BatchConfig(filter_zero_variance=True)},
            "every group has equal rewards, and batch.filter_zero_variance is on: it must be off",
        ),
        (
            1,
            {"objective": ObjectiveConfig(algorithm="ppo", baseline="group")},
            "the advantage of ppo is relative to its group",
        ),
        (
            1,
            {"objective": OF_A_BATCH, "kl": KLConfig(coefficient=0.1, mask_zero_variance=True)},
            "every group has equal rewards, and kl.mask_zero_variance is on",
        ),
        (
            1,
            {"objective": OF_A_BATCH, "entropy": EntropyConfig(coefficient=0.1, mask_zero_variance=True)},
            "every group has equal rewards, and entropy.mask_zero_variance is on",
        ),
        (4, {"batch": BatchConfig(trained_rollouts=5)}, "trained_rollouts is 5"),
    ],
)
def test_a_run_that_the_learner_cannot_learn_from_is_refused_before_anything_is_paid_for(
    n: int, settings: dict[str, Any], message: str, model: Path, replay: Any, tmp_path: Path
) -> None:
    meter, learner = Steps(2), Learner(model, LearnerConfig(learning_rate=1e-2, **settings))
    with pytest.raises(LearnerError, match=message):
        loop.train(
            run=replace(RUN, rollouts_per_problem=n),
            problems=PROBLEMS,
            sampler=replay,
            learner=learner,
            evaluator=LogLikelihood(replay),
            meter=meter,
            checkpoints=Checkpoints(tmp_path),
            progress=loop.Progress(step=0, rollouts=0, tokens=0, evals=[]),
            watch=[].append,
        )
    assert meter.charged == []


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": OF_A_BATCH},
        # Masks of terms that are off.
        {
            "objective": OF_A_BATCH,
            "kl": KLConfig(mask_zero_variance=True),
            "entropy": EntropyConfig(mask_zero_variance=True),
        },
        {"objective": ObjectiveConfig(algorithm="ppo"), "kl": KLConfig(coefficient=0.1)},
    ],
)
def test_one_rollout_of_each_problem_is_legal_where_no_group_is_needed(settings: dict[str, Any]) -> None:
    replace(RUN, rollouts_per_problem=1).check(LearnerConfig(learning_rate=1e-2, **settings))
