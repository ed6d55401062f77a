"""The hot loop with a real model, a sampler of recorded tokens and a meter of steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import RunConfig, UpdateSteps, train
from isocompute.learner.config import BatchConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.errors import CheckpointError, DivergenceError, LearnerError, SyncError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.records.steps import timings_table
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.loop import Learnt, learn
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, LogLikelihood, Steps, Trial, moved, paid, weights

pytestmark = pytest.mark.slow("runs that train")


def test_a_run_evaluates_on_the_grid_and_stops_with_its_budget(trial: Trial) -> None:
    records: list[Any] = []
    progress = trial.run("run", steps=5, records=records)
    assert (progress.step, progress.rollouts) == (5, 80)
    assert [(row["step"], row["rollouts"]) for row in progress.evals] == [(0, 0), (2, 32), (4, 64)]
    assert trial.sampler.weights_version == trial.learner.version == 5
    assert [record.step for record in records] == [0, 1, 2, 2, 3, 4, 4, 5]
    phases = timings_table(records, "r").group_by("phase").len().sort("phase").rows()
    assert phases == [("evaluate", 3), ("sample", 5), ("sync", 5), ("update", 5)]


def changed_in(sampler: Any, step: int, changed: pl.Expr) -> None:
    """Change what a sampler answers in a step of training."""
    answered = sampler.sample

    def sample(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, **settings)
        chosen = (settings["phase"], settings["step"]) == ("train", step)
        return rollouts.with_columns(changed) if chosen else rollouts

    sampler.sample = sample


def test_a_batch_of_equal_rewards_is_paid_for_and_teaches_and_syncs_nothing(trial: Trial) -> None:
    trial.config = replace(trial.config, batch=BatchConfig(filter_zero_variance=True))
    before = weights(Learner(trial.model, trial.config))
    synced, taken = [], trial.sampler.sync

    def sync(weights: Any, version: int) -> None:
        synced.append(version)
        taken(weights, version)

    trial.sampler.sync = sync
    for step in (1, 2):
        changed_in(trial.sampler, step, pl.lit(0.0).alias("reward"))
    meter, records = Steps(2), []
    progress = trial.run("run", steps=2, records=records, meter=meter)
    assert paid(meter) == [(1, {"filtered": 16}), (2, {"filtered": 16})]
    assert torch.equal(before, trial.weights())
    assert (progress.step, trial.learner.version) == (2, 0)
    assert records[1].responses.zero_variance_share == 1.0
    assert (records[1].update, records[1].sync_seconds) == (None, None)
    # The step after it is learnt from as ever, and one sync is for the check of each start.
    progress = trial.run("run", steps=3)
    assert (progress.step, trial.learner.version, synced) == (3, 1, [0, 0, 1])
    assert not torch.equal(before, trial.weights())


def test_a_failed_rollout_is_counted_and_shifts_no_evaluation(trial: Trial) -> None:
    expected, clean = trial.run("clean", steps=4), trial.weights()
    answered = trial.sampler.sample

    def with_a_failed_try(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, **settings)
        failed = rollouts.head(1).with_columns(sample=pl.lit(99, pl.Int64), finish_reason=pl.lit("aborted"))
        return pl.concat([rollouts, failed]) if (settings["phase"], settings["step"]) == ("train", 1) else rollouts

    trial.sampler.sample, meter = with_a_failed_try, Steps(4)
    found = trial.run("failed", steps=4, meter=meter)
    assert paid(meter)[:2] == [(1, {"trained": 16, "failed": 1}), (2, {"trained": 16})]
    assert [(row["at"], row["rollouts"]) for row in found.evals] == [(0, 0), (32, 33), (64, 65)]
    assert found.rollouts == expected.rollouts + 1
    assert [row["avg_at_2"] for row in found.evals] == [row["avg_at_2"] for row in expected.evals]
    assert torch.equal(clean, trial.weights())


def test_what_cannot_be_learnt_from_is_charged_first_and_named(trial: Trial) -> None:
    """A reward, which is checked; and a log-probability, which is compared first."""
    last, broken = pl.int_range(pl.len()) == 15, pl.col("logprobs").list.eval(pl.element() * float("nan"))
    changed_in(trial.sampler, 1, pl.when(last).then(broken).otherwise("logprobs").alias("logprobs"))
    meter = Steps(2)
    with pytest.raises(LearnerError, match=r"response 3 to problem p\d .*\(logprobs\[0\] is nan\)"):
        trial.run("run", steps=2, meter=meter)
    changed_in(trial.sampler, 1, pl.lit(float("nan")).alias("reward"))
    with pytest.raises(LearnerError, match=r"response \d to problem p\d .*\(reward is nan\)"):
        trial.run("run", steps=2, meter=meter)
    assert paid(meter) == [(1, {"trained": 16})] * 2
    assert trial.learner.version == 0


def test_where_one_response_of_each_group_survives_the_step_teaches_nothing_and_the_run_goes_on(trial: Trial) -> None:
    survives = pl.when(pl.col("sample") == 0).then(pl.lit("stop")).otherwise(pl.lit("aborted"))
    changed_in(trial.sampler, 2, survives.alias("finish_reason"))
    meter, records = Steps(3), []
    progress = trial.run("run", steps=3, meter=meter, records=records)
    assert paid(meter) == [(1, {"trained": 16}), (2, {"failed": 12, "filtered": 4}), (3, {"trained": 16})]
    assert (progress.step, progress.rollouts, trial.learner.version) == (3, 48, 2)
    steps = {record.step: record for record in records if hasattr(record, "update")}
    assert {step: record.responses.lone_responses for step, record in steps.items()} == {1: 0, 2: 4, 3: 0}
    assert (steps[2].update, steps[2].metrics()["health/lone_responses"]) == (None, 4.0)


def test_charges_are_on_the_disk_before_a_checkpoint_is(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, save = Steps(2), Checkpoints.save

    def saved(store: Checkpoints, checkpoint: Any) -> Path:
        meter.charged.append((checkpoint.step, {"saved": True}))
        return save(store, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", saved)
    trial.run("run", steps=2, meter=meter)
    evaluated = ["eval", "saved"]
    assert [next(iter(counts)) for _, counts in meter.charged] == [*evaluated, "trained", "trained", *evaluated]


def test_the_sync_check_catches_a_sampler_that_takes_no_weights_and_lets_a_policy_that_diverged_end_as_it_did(
    learner: Learner, replay: Any
) -> None:
    def check() -> pl.DataFrame:
        return loop.sync_and_check(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")

    taken, replay.sync = replay.sync, lambda weights, version: None
    moved(learner.policy, 1e-2)
    with pytest.raises(SyncError, match="before step 1"):
        check()
    replay.sync = taken
    moved(learner.policy, float("inf"))
    with pytest.raises(DivergenceError, match="before step 1"):
        check()
    learner.version = 3
    assert len(check()) == 8


PASS = RunConfig(problems_per_batch=4, rollouts_per_problem=4)


def test_the_sync_check_is_charged_as_an_evaluation_and_the_newest_checkpoint_is_continued(
    learner: Learner, replay: Any, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path)
    settings = {"run": PASS, "problems": PROBLEMS, "sampler": replay, "checkpoints": checkpoints}
    meter, records = Steps(1), []
    with checkpoints.held(), pytest.raises(CheckpointError, match="another run"):
        train(**settings, learner=learner, meter=meter)
    # Refused before anything was sampled.
    assert meter.charged == []
    train(**settings, learner=learner, meter=meter)
    assert meter.charged == [(0, {"eval": 8}), (1, {"trained": 16})]
    progress = train(**settings, learner=learner, meter=UpdateSteps(limit=3), watch=records.append)
    assert progress.step == 3
    assert [record.step for record in records] == [2, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda table: table.with_columns(reward=pl.lit("1")), "column reward of what Replay.sample returned is of"),
        (lambda table: table.with_columns(logprobs=pl.lit(-1.0)), "column logprobs of .* must be a list of numbers"),
        (lambda table: table.with_columns(problem_id=pl.lit("p99")), "answers problem p99, which was not among those"),
        (lambda table: table.drop("finish_reason"), r"no column finish_reason \("),
        (lambda table: table.to_dicts(), r"Replay.sample.* a list"),
    ],
)
def test_a_wrong_answer_of_the_sampler_is_named_before_anything_is_learnt(
    learner: Learner, replay: Any, changed: Any, message: str
) -> None:
    answered = replay.sample
    replay.sample = lambda *args, **settings: changed(answered(*args, **settings))
    with pytest.raises(LearnerError, match=message):
        train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner)
    assert learner.version == 0


@pytest.mark.parametrize(
    ("cell", "message"),
    [({"rollouts_per_problem": 1}, "the advantage of grpo .* 2 or more"), ({"evaluate_every": None}, "y is None")],
)
def test_a_run_that_the_learner_cannot_learn_from_is_refused_before_anything_is_paid_for(
    cell: dict[str, Any], message: str, learner: Learner, replay: Any
) -> None:
    meter = Steps(2)
    named = {"run": replace(RUN, **cell), "problems": PROBLEMS, "sampler": replay, "learner": learner}
    with pytest.raises(LearnerError, match=message):
        train(**named, evaluator=LogLikelihood(replay), meter=meter)
    assert meter.charged == []


PPO, KL = (
    LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(algorithm="ppo")),
    KLConfig(coefficient=0.1, place="reward"),
)


def sampled(sampler: Any, config: LearnerConfig, samples: int = 4) -> pl.DataFrame:
    asked = {"samples": samples, "seed": 3, "step": 1, "phase": "train", "run_id": "r"}
    return with_cohorts(sampler.sample(PROBLEMS.head(4), **asked), config.batch)


def learn_from(learner: Learner, rollouts: pl.DataFrame) -> Learnt:
    return learn(learner=learner, run=RUN, step=1, rollouts=rollouts)


class Erring(Learner):
    """A learner whose device errs in some of its optimizer steps, counted with those that were tried again."""

    errs_at: tuple[int, ...] = ()
    tries = 0

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> Any:
        self.tries += 1
        if self.tries in self.errs_at:
            # More than float32 holds.
            batch = batch.with_columns(pl.lit(1e300).alias("loss_weight"))
        return super().update(batch, advance=advance)


class Passing(Learner):
    """A learner that counts the responses which it measures, and those of them that pass through the model."""

    measured = passed = 0

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        self.measured += len(rollouts)
        return super().measure(rollouts)

    def _passes(self, responses: Any, rows: Any, *, least: int = 0) -> Any:
        for piece, batch in super()._passes(responses, rows, least=least):
            # An update has at least one pass.
            self.passed += 0 if least else batch.responses
            yield piece, batch


@pytest.mark.parametrize(
    ("settings", "measured", "passed"),
    [
        ({"objective": ObjectiveConfig(updates_per_batch=2)}, 16, 12),
        ({"objective": ObjectiveConfig(epochs=2), "batch": BatchConfig(trained_rollouts=2)}, 8, 6),
        # The baseline needs the KL of every response, but of those that are filtered; a critic judges each alone.
        ({"kl": KL, "batch": BatchConfig(trained_rollouts=2)}, 16, 16),
        ({"kl": KL, "batch": BatchConfig(trained_rollouts=2, filter_zero_variance=True)}, 12, 12),
        ({"objective": PPO.objective}, 16, 16),
        ({"objective": PPO.objective, "batch": BatchConfig(filter_zero_variance=True)}, 12, 12),
    ],
)
def test_no_response_is_measured_that_nothing_needs(
    settings: dict[str, Any], measured: int, passed: int, model: Path, replay: Any
) -> None:
    """One of four groups has equal rewards."""
    config = LearnerConfig(learning_rate=1e-2, **settings)
    rollouts = sampled(replay, config)
    reward = pl.when(pl.col("problem_id") == rollouts["problem_id"][0]).then(0.0).otherwise(pl.col("sample") % 2)
    rollouts = with_cohorts(rollouts.with_columns(reward=reward), config.batch)
    learner = Passing(model, config)
    assert learn_from(learner, rollouts).update is not None
    assert (learner.measured, learner.passed) == (measured, passed)


@pytest.mark.parametrize("equal", range(4))
def test_an_update_of_equal_rewards_after_another_of_its_batch_is_not_taken_for_stale_weights(
    equal: int, model: Path, replay: Any
) -> None:
    """Each of four groups is an update of its own; that without a signal is any of them."""
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=4))
    rollouts = sampled(replay, config)
    group = rollouts["problem_id"].unique(maintain_order=True)[equal]
    reward = pl.when(pl.col("problem_id") == group).then(0.0).otherwise(pl.col("sample") % 2)
    learner = Learner(model, config)
    found = learn_from(learner, with_cohorts(rollouts.with_columns(reward=reward), config.batch))
    assert found.update is not None
    assert found.update.sync_error < 1e-4


def test_stale_weights_show_where_no_response_of_a_batch_of_several_updates_is_measured(
    model: Path, replay: Any
) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=2))
    equal = with_cohorts(sampled(replay, config).with_columns(reward=pl.lit(0.0)), config.batch)
    learner = Learner(model, config)
    assert learn_from(learner, equal).update is not None
    moved(learner.policy, 0.1)
    with pytest.raises(SyncError, match=r"sync\.tolerance"):
        learn_from(learner, equal)


@pytest.mark.parametrize("errs_at", [(1, 3), (2,), (2, 3)])
def test_an_optimizer_step_that_fails_once_is_tried_again_and_one_that_fails_twice_ends_the_batch(
    errs_at: tuple[int, ...], model: Path, replay: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=3))
    steady, learner = Learner(model, config), Erring(model, config)
    learner.errs_at = errs_at
    rollouts = sampled(replay, config)
    expected, found = learn_from(steady, rollouts), learn_from(learner, rollouts)
    assert caplog.text.count("run r: step 1 has a") == len(errs_at)
    if errs_at == (2, 3):
        assert (found.update, found.diverged, found.retries) == (None, True, 1)
        assert (learner.version, learner.tries) == (0, 3)
        return
    assert found == replace(expected, retries=len(errs_at))
    assert torch.equal(weights(steady), weights(learner))
    assert learner.version == 1


def test_a_policy_that_diverged_is_found_where_the_batch_is_measured_and_stale_responses_are_not_tried_again(
    model: Path, replay: Any
) -> None:
    learner, rollouts = Erring(model, PPO), sampled(replay, PPO)
    with pytest.raises(SyncError, match=r"weights version \[7\]"):
        learn_from(learner, rollouts.with_columns(weights_version=pl.lit(7, pl.Int64)))
    moved(learner.policy, float("inf"))
    found = learn_from(learner, rollouts)
    assert (found.diverged, found.retries, learner.tries) == (True, 1, 0)
