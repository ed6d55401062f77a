"""The hot loop with a real model, a sampler of recorded tokens and a meter of steps."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import RunConfig, UpdateSteps, train
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
)
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.records.steps import EvaluationRecord, StepRecord, timings_table
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.loop import Learnt, learn, print_record
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
    # The step after it is learnt from as ever, and one sync is for the check of each start.
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


def test_the_sync_check_lets_a_policy_that_diverged_end_as_it_did(learner: Learner, replay: Any) -> None:
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.fill_(float("inf"))
    learner.version = 3
    assert len(loop.sync_and_check(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")) == 8
    learner.version = 0
    with pytest.raises(DivergenceError, match="before step 1"):
        loop.sync_and_check(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")


def test_the_sync_check_has_a_phase_of_its_own(learner: Learner, replay: Any) -> None:
    assert loop.sync_and_check(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")[
        "phase"
    ].unique().to_list() == ["canary"]


def test_a_sampler_that_takes_no_weights_is_caught_by_the_sync_check(
    learner: Learner, replay: Any, tmp_path: Path
) -> None:
    run(learner, replay, tmp_path, steps=2)
    replay.sync = lambda weights, version: None
    learner.reset(learner.config)
    with pytest.raises(SyncError, match="before step 1"):
        loop.sync_and_check(learner=learner, sampler=replay, problems=PROBLEMS, run_id="r")


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


PASS = RunConfig(problems_per_batch=4, rollouts_per_problem=4)


def changed(sampler: Any, **columns: pl.Expr) -> Any:
    """Let a sampler answer with other columns."""
    answered = sampler.sample
    sampler.sample = lambda *args, **settings: answered(*args, **settings).with_columns(**columns)
    return sampler


def test_it_takes_one_pass_and_prints_a_line_for_each_step(
    learner: Learner, replay: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    progress = train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner)
    assert (progress.step, progress.rollouts, progress.evals) == (2, 32, [])
    lines = capfd.readouterr().err.splitlines()
    pattern = r"step \d: [\d,]+ rollouts, reward \S+, gradient norm \S+, [\d.]+ s"
    assert len(lines) == 2
    assert all(re.fullmatch(pattern, line) for line in lines), lines


def test_with_checkpoints_it_continues_where_it_was(learner: Learner, replay: Any, tmp_path: Path) -> None:
    settings = {"run": PASS, "problems": PROBLEMS, "sampler": replay, "checkpoints": Checkpoints(tmp_path)}
    train(**settings, learner=learner, meter=UpdateSteps(limit=1))
    records: list[Any] = []
    progress = train(**settings, learner=learner, meter=UpdateSteps(limit=3), watch=records.append)
    assert progress.step == 3
    assert [record.step for record in records] == [2, 3]


def test_the_comparison_before_the_first_step_is_charged_as_an_evaluation(learner: Learner, replay: Any) -> None:
    meter = Steps(1)
    train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner, meter=meter)
    assert meter.charged == [(0, {"eval": 8}), (1, {"trained": 16})]


def test_an_evaluator_without_a_grid_is_refused(learner: Learner, replay: Any) -> None:
    with pytest.raises(LearnerError, match="evaluate_every is None"):
        train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner, evaluator=LogLikelihood(replay))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": pl.lit("1")}, "the column reward of what Replay.sample returned is of the type String; it must be"),
        ({"logprobs": pl.lit(-1.0)}, "the column logprobs of .* must be a list of numbers, the log-probability of"),
        ({"weights_version": pl.lit("0")}, "the column weights_version of .* must be a whole number"),
        ({"problem_id": pl.lit("p99")}, "Replay.sample returned answers problem p99, which was not among those"),
    ],
)
def test_a_wrong_column_of_the_sampler_is_named_before_anything_is_learnt(
    learner: Learner, replay: Any, columns: dict[str, pl.Expr], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        train(run=PASS, problems=PROBLEMS, sampler=changed(replay, **columns), learner=learner)
    assert learner.version == 0


def test_a_column_that_the_sampler_does_not_report_is_named(learner: Learner, replay: Any) -> None:
    answered = replay.sample
    for column in ("finish_reason", "reward", "sample", "logprobs"):
        replay.sample = lambda *args, _column=column, **settings: answered(*args, **settings).drop(_column)
        with pytest.raises(LearnerError, match=rf"no column {column} \("):
            train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner)


def test_a_sampler_that_returns_no_table_is_refused(learner: Learner, replay: Any) -> None:
    replay.sample = lambda *args, **settings: [{"problem_id": "p0"}]
    with pytest.raises(LearnerError, match=r"Replay.sample.* a list"):
        train(run=PASS, problems=PROBLEMS, sampler=replay, learner=learner)


def test_a_run_without_steps_is_refused() -> None:
    with pytest.raises(LearnerError, match="limit is 0"):
        UpdateSteps(limit=0)


def test_a_step_without_an_update_and_an_evaluation_have_lines_of_their_own() -> None:
    stream = io.StringIO()
    print_record(StepRecord(step=3, rollouts=4096, sample_seconds=1.0, update_seconds=0.5), stream)
    print_record(EvaluationRecord(step=3, rollouts=4096, scores={"avg_at_4": 0.25}, evaluate_seconds=2.0), stream)
    assert stream.getvalue().splitlines() == [
        "step 3: 4,096 rollouts, 1.5 s",
        "evaluation after step 3: 4,096 rollouts, avg_at_4 0.250, 2.0 s",
    ]


PPO = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(algorithm="ppo"))


def sampled(sampler: Any, config: LearnerConfig, samples: int = 4) -> pl.DataFrame:
    """A step's responses with their cohorts."""
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
            batch = batch.with_columns(pl.lit(float("nan")).alias("loss_weight"))
        return super().update(batch, advance=advance)


def erring(model: Path, config: LearnerConfig, *errs_at: int) -> Erring:
    learner = Erring(model, config)
    learner.errs_at = errs_at
    return learner


@pytest.mark.parametrize(("updates", "epochs", "steps"), [(1, 1, 1), (2, 1, 2), (4, 1, 4), (2, 2, 4), (9, 1, 4)])
def test_a_batch_is_learnt_from_in_several_steps_of_one_version(
    updates: int, epochs: int, steps: int, model: Path, replay: Any
) -> None:
    """Four groups make at most four updates."""
    objective = ObjectiveConfig(updates_per_batch=updates, epochs=epochs)
    config = LearnerConfig(learning_rate=1e-2, objective=objective)
    learner = Learner(model, config)
    rollouts = sampled(replay, config)
    found = learn_from(learner, rollouts)
    assert found.update is not None
    assert (found.update.optimizer_steps, learner.version, found.retries) == (steps, 1, 0)
    assert found.update.trained_tokens == epochs * rollouts["response_ids"].list.len().sum()
    assert found.advantages is not None
    assert found.advantages.advantage == pytest.approx(0.0, abs=1e-6)


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
        ({"objective": ObjectiveConfig(epochs=2), "batch": BatchConfig(filter_zero_variance=True)}, 12, 12),
        # The baseline needs the KL of every response, but of those that are filtered.
        ({"kl": KLConfig(coefficient=0.1, place="reward"), "batch": BatchConfig(trained_rollouts=2)}, 16, 16),
        (
            {
                "kl": KLConfig(coefficient=0.1, place="reward"),
                "batch": BatchConfig(trained_rollouts=2, filter_zero_variance=True),
            },
            12,
            12,
        ),
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


def test_a_part_of_a_batch_without_a_token_is_no_optimizer_step(model: Path, replay: Any) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=4))
    rollouts = sampled(replay, config)
    silent = pl.col("problem_id") == rollouts["problem_id"][0]
    nothing = [pl.when(silent).then(pl.col(c).list.head(0)).otherwise(c).alias(c) for c in ("response_ids", "logprobs")]
    found = learn_from(Learner(model, config), rollouts.with_columns(nothing))
    assert found.update is not None
    assert found.update.optimizer_steps == 3


@pytest.mark.parametrize("errs_at", [1, 2, 3])
def test_an_optimizer_step_that_fails_once_is_tried_again_and_changes_nothing(
    errs_at: int, model: Path, replay: Any
) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=3))
    steady, flickering = Learner(model, config), erring(model, config, errs_at)
    rollouts = sampled(replay, config)
    expected, found = learn_from(steady, rollouts), learn_from(flickering, rollouts)
    assert found == replace(expected, retries=1)
    assert torch.equal(weights(steady), weights(flickering))
    assert flickering.version == 1


def test_every_optimizer_step_may_fail_once(model: Path, replay: Any) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=2))
    found = learn_from(erring(model, config, 1, 3), sampled(replay, config))
    assert (found.retries, found.diverged) == (2, False)


def test_an_optimizer_step_that_fails_twice_ends_the_batch_without_another_version(
    model: Path, replay: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(updates_per_batch=3))
    learner = erring(model, config, 2, 3)
    found = learn_from(learner, sampled(replay, config))
    assert (found.update, found.diverged, found.retries) == (None, True, 1)
    assert (learner.version, learner.tries) == (0, 3)
    assert caplog.text.count("run r: step 1 has a") == 2


def test_a_policy_that_diverged_is_found_where_the_batch_is_measured(model: Path, replay: Any) -> None:
    learner, rollouts = erring(model, PPO), sampled(replay, PPO)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.fill_(float("inf"))
    found = learn_from(learner, rollouts)
    assert (found.diverged, found.retries, learner.tries) == (True, 1, 0)


@pytest.mark.parametrize(
    "config",
    [PPO, LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(baseline="batch", scale="batch"))],
    ids=["gae", "batch"],
)
def test_one_response_of_each_problem_is_enough_without_a_group_baseline(
    config: LearnerConfig, model: Path, replay: Any
) -> None:
    learner = Learner(model, config)
    before = weights(learner).clone()
    replay_one = sampled(replay, config, samples=1)
    mixed = replay_one.with_columns(reward=(pl.int_range(pl.len()) % 2).cast(pl.Float64))
    found = learn_from(learner, mixed)
    assert found.update is not None
    assert not torch.equal(before, weights(learner))


def test_responses_that_only_sharpen_the_baseline_are_measured_against_and_not_learnt_from(
    model: Path, replay: Any
) -> None:
    config = LearnerConfig(learning_rate=1e-2, batch=BatchConfig(trained_rollouts=2))
    rollouts = sampled(replay, config)
    assert sorted(rollouts["cohort"].value_counts().iter_rows()) == [("filtered", 8), ("trained", 8)]
    assert rollouts.filter(pl.col("cohort") == "trained")["sample"].unique().sort().to_list() == [0, 1]
    learner = Learner(model, config)
    found = learn_from(learner, rollouts)
    assert found.update is not None
    trained = rollouts.filter(pl.col("cohort") == "trained")
    assert found.update.trained_tokens == trained["response_ids"].list.len().sum()
    # Rewards 1 0 0 0 and 1 1 0 0: relative to their own mean, those of the first two would be 0 in every second group.
    assert found.advantages is not None
    assert found.advantages.advantage > 0.5


def test_a_kl_in_the_reward_is_measured_before_the_update(model: Path, replay: Any) -> None:
    config = LearnerConfig(learning_rate=1e-2, kl=KLConfig(coefficient=5.0, place="reward", estimator="k1"))
    plain = replace(config, kl=KLConfig())
    learner, without = Learner(model, config), Learner(model, plain)
    rollouts = sampled(replay, config)
    learn_from(learner, rollouts)
    learn_from(without, rollouts)
    # The policy is still the base model, so there is no KL; the second step has one.
    assert torch.equal(weights(learner), weights(without))
    replay.sync(learner.weights(), 1)
    rollouts = sampled(replay, config)
    learn_from(learner, rollouts)
    learn_from(without, rollouts)
    assert not torch.equal(weights(learner), weights(without))


@pytest.mark.parametrize(
    "config",
    [PPO, LearnerConfig(learning_rate=1e-2, kl=KLConfig(coefficient=0.1, place="reward"))],
    ids=["a critic", "KL in the reward"],
)
def test_failed_responses_are_neither_measured_nor_learnt_from(config: LearnerConfig, model: Path, replay: Any) -> None:
    """Though they have tokens and log-probabilities."""
    learner, other = Learner(model, config), Learner(model, config)
    rollouts = sampled(replay, config)
    failed = rollouts.head(2).with_columns(
        cohort=pl.lit("failed"), finish_reason=pl.lit("aborted"), reward=pl.lit(float("nan")), sample=pl.lit(99)
    )
    assert failed["response_ids"].list.len().min() > 0
    rows = pl.concat([rollouts, failed], how="vertical_relaxed")
    assert learn_from(learner, rows) == learn_from(other, rollouts)
    assert torch.equal(weights(learner), weights(other))


def test_nothing_but_failed_or_filtered_responses_teaches_nothing(model: Path, replay: Any) -> None:
    learner, rollouts = erring(model, PPO), sampled(replay, PPO)
    assert learn_from(learner, rollouts.with_columns(cohort=pl.lit("filtered"))) == Learnt()
    assert learn_from(learner, rollouts.with_columns(cohort=pl.lit("failed"))) == Learnt()
    assert learner.tries == learner.version == 0


def test_stale_responses_end_the_run_and_are_not_tried_again(model: Path, replay: Any) -> None:
    learner = erring(model, LearnerConfig(learning_rate=1e-2))
    stale = sampled(replay, learner.config).with_columns(weights_version=pl.lit(7, pl.Int64))
    with pytest.raises(SyncError, match=r"weights version \[7\]"):
        learn_from(learner, stale)
    assert learner.tries == 1


@pytest.mark.parametrize("name", ["grpo", "ppo", "cispo", "gspo"])
def test_what_is_measured_does_not_depend_on_how_a_batch_is_cut(name: str, model: Path, replay: Any) -> None:
    """Sums and counts, and never means of means: micro-batches of a few tokens and of all."""
    config = LearnerConfig(
        learning_rate=1e-2,
        objective=ObjectiveConfig(algorithm=name, updates_per_batch=2),
        kl=KLConfig(coefficient=0.1),
        entropy=EntropyConfig(coefficient=0.1),
    )
    rollouts = sampled(replay, config)
    found = []
    for tokens in (16, 8192):
        update = learn_from(Learner(model, replace(config, compute=ComputeConfig(micro_batch_tokens=tokens))), rollouts)
        assert update.update is not None
        metrics = update.update.metrics()
        # How the sampler agrees is that of the first micro-batch alone.
        found.append({name: value for name, value in metrics.items() if not name.startswith("sync_")})
    assert {"loss", "entropy", "kl", "ratio", "clip_fraction_high", "effective_sample_size"} < found[0].keys()
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-6)
