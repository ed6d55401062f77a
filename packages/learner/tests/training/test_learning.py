"""What is learnt from a step: in how many optimizer steps, from which responses, and what when one fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
)
from isocompute.learner.errors import SyncError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.training.loop import Learnt, learn
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, weights

pytestmark = pytest.mark.slow("runs that train")

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
