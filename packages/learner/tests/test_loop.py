"""The hot loop with a real model, a sampler of recorded tokens and a meter of steps."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner import loop
from isocompute.learner.checkpoint import Checkpoints
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import DivergenceError, LearnerError, SyncError
from isocompute.learner.learner import Learner
from isocompute.learner.timings import timings_table

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
) -> loop.Progress:
    """Train, or go on training, for so many steps in all."""
    store = Checkpoints(folder)
    progress = loop.restore(learner=learner, checkpoints=store)
    loop.canary(learner=learner, sampler=sampler, problems=PROBLEMS, run_id="r")
    return loop.train(
        run=RUN, problems=PROBLEMS, sampler=sampler, learner=learner, evaluator=LogLikelihood(sampler),
        meter=meter or Steps(steps), checkpoints=store, progress=progress,
        watch=[].append if records is None else records.append,
    )  # fmt: skip


def paid(meter: Steps) -> list[tuple[int, dict[str, Any]]]:
    """What was charged for training, step by step."""
    return [(step, counts) for step, counts in meter.charged if not counts.keys() & {"eval", "synced"}]


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in learner.weights()])


def test_a_run_evaluates_on_the_grid_and_stops_with_its_budget(learner: Learner, replay: Any, tmp_path: Path) -> None:
    records: list[Any] = []
    progress = run(learner, replay, tmp_path, steps=5, records=records)
    assert (progress.step, progress.rollouts) == (5, 80)
    assert [(row["step"], row["rollouts"]) for row in progress.evals] == [(0, 0), (2, 32), (4, 64)]
    assert replay.weights_version == learner.version == 5
    assert [record.step for record in records] == [0, 1, 2, 2, 3, 4, 4, 5]
    phases = timings_table(records, "r").group_by("phase").len().sort("phase").rows()
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
    meter, records = Steps(2), []
    run(learner, replay, tmp_path, steps=2, records=records, meter=meter)
    assert paid(meter) == [(1, {"filtered": 16}), (2, {"filtered": 16})]
    assert torch.equal(before, weights(learner))
    assert records[1].responses.zero_variance_share == 1.0


def test_a_run_extended_is_the_run_at_once_bit_for_bit(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    at_once = Learner(model, config)
    whole = run(at_once, replay, tmp_path / "at once", steps=10)
    first = run(Learner(model, config), replay, tmp_path / "extended", steps=6)
    assert first.evals == whole.evals[:4]
    extended, meter = Learner(model, config), Steps(10)
    assert run(extended, replay, tmp_path / "extended", steps=10, meter=meter) == whole
    assert torch.equal(weights(at_once), weights(extended))
    assert [step for step, _ in paid(meter)] == [7, 8, 9, 10]


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
    ("changed", "message"),
    [
        (pl.lit(float("nan"), pl.Float64).alias("reward"), "is not a finite number"),
        (pl.concat_str("problem_id", pl.col("sample").cast(pl.String)).alias("problem_id"), "a group has one rollout"),
    ],
)
def test_what_no_advantage_can_be_made_of_is_charged_first(
    learner: Learner, replay: Any, tmp_path: Path, changed: pl.Expr, message: str
) -> None:
    answered = replay.sample

    def sample(problems: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        rollouts = answered(problems, **settings)
        return rollouts.with_columns(changed) if settings["phase"] == "train" else rollouts

    replay.sample = sample
    meter = Steps(2)
    with pytest.raises(LearnerError, match=message):
        run(learner, replay, tmp_path, steps=2, meter=meter)
    assert paid(meter) == [(1, {"trained": 16})]


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
        *("eval", "synced", "saved"), "trained", "trained", *("eval", "synced", "saved"),
    ]  # fmt: skip


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


class Hot(Learner):
    """A learner whose third update leaves weights so large that the next gradient is not finite."""

    def update(self, rollouts: pl.DataFrame) -> Any:
        report = super().update(rollouts)
        if self.version == 3:
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.mul_(1e20)
        return report


class Flickering(Learner):
    """A learner whose device errs in the first try of its second update."""

    tries = 0

    def update(self, rollouts: pl.DataFrame) -> Any:
        self.tries += 1
        if self.tries == 2:
            rollouts = rollouts.with_columns(advantage=pl.lit(float("nan")))
        return super().update(rollouts)


def test_a_gradient_that_is_not_finite_once_is_tried_again_and_recorded(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    steady, flickering = Learner(model, config), Flickering(model, config)
    expected = run(steady, replay, tmp_path / "steady", steps=4)
    records: list[Any] = []
    assert run(flickering, replay, tmp_path / "flickering", steps=4, records=records) == expected
    assert expected.diverged_at is None
    assert [record.step for record in records if "gradient_retries" in record.metrics()] == [2]
    assert torch.equal(weights(steady), weights(flickering))


def test_a_run_that_diverges_ends_with_its_evaluations_and_does_so_again_when_resumed(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steady = run(Learner(model, config), replay, tmp_path / "steady", steps=2)
    records: list[Any] = []
    hot, meter = Hot(model, config), Steps(9)
    ended = run(hot, replay, tmp_path / "hot", steps=9, records=records, meter=meter)
    assert (ended.diverged_at, ended.step, hot.version, replay.weights_version) == (4, 3, 3, 3)
    assert ended.evals == steady.evals
    assert paid(meter)[-1] == (4, {"trained": 16})
    assert ended.rollouts == records[-1].rollouts == 64
    assert (records[-1].step, records[-1].gradient_retries, records[-1].sync_seconds) == (4, 1, None)
    assert caplog.text.count("the policy has diverged; no update was made") == 2
    saved = Checkpoints(tmp_path / "hot").newest()
    assert saved is not None
    assert saved.step == 2
    # Killed one step before it diverged, and started again; and asked once more after it had.
    run(Hot(model, config), replay, tmp_path / "killed", steps=3)
    for folder in ("killed", "hot"):
        assert run(Hot(model, config), replay, tmp_path / folder, steps=9) == ended


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
        ({"rollouts_per_problem": 1}, "a group baseline needs 2 or more"),
        ({"problems_per_batch": 0}, "a batch needs 1 or more"),
        ({"evaluate_every": 24}, "not a multiple of the batch of 16"),
        ({"evaluate_every": 0}, "not a multiple of the batch of 16"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        replace(RUN, **changed)
