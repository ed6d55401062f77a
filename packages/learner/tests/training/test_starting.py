"""A branch of a trunk with a constant rate is the run with its decay at once, bit for bit; see ``test_resume``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import BatchConfig, LearnerConfig, ObjectiveConfig, OptimizerConfig
from isocompute.learner.errors import CheckpointError
from isocompute.learner.saving.checkpoint import Checkpoints, write_checksums
from isocompute.learner.training.loop import branch
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, Steps, kill, paid, run, weights

pytestmark = pytest.mark.slow("runs that train, again and again")

CONSTANT = OptimizerConfig(warmup_steps=2)
LATER = OptimizerConfig(warmup_steps=3, decay="linear", decay_after=4, decay_steps=8)
BRANCH = replace(RUN, run_id="b")
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo with all regularisers": {},
    "ppo": {"objective": ObjectiveConfig(algorithm="ppo", epochs=2)},
    "dropped problems": {"batch": BatchConfig(drop_above=0.5)},
}


def decaying(config: LearnerConfig, *, after: int = 4, last: int = 8) -> LearnerConfig:
    """The same with a rate that falls from a step on."""
    return replace(config, optimizer=replace(config.optimizer, decay="linear", decay_after=after, decay_steps=last))


@pytest.fixture
def constant(config: LearnerConfig) -> LearnerConfig:
    """Settings of a trunk."""
    return replace(config, optimizer=CONSTANT)


def grow(model: Path, constant: LearnerConfig, replay: Any, folder: Path, *, steps: int = 4, at: int = 4) -> Learner:
    """Train a trunk, or go on, and keep its checkpoint of a step."""
    learner = Learner(model, constant)
    run(learner, replay, folder, steps=steps, every={"keep": 1, "keep_steps": {at}})
    return learner


@pytest.mark.parametrize("after", [3, 4])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_branch_is_the_run_at_once_bit_for_bit(
    after: int, settings: dict[str, Any], model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Begun after an evaluation of its trunk, and between two."""
    constant = replace(constant, **settings)
    config = decaying(constant, after=after)
    at_once, at_once_paid = Learner(model, config), Steps(9)
    whole = run(at_once, replay, tmp_path / "at once", steps=9, meter=at_once_paid)
    # The trunk is longer than what the branch has of it.
    trunk = grow(model, constant, replay, tmp_path / "trunk", steps=6, at=after)
    branched, branch_paid = Learner(model, config), Steps(9)
    found = run(
        branched, replay, tmp_path / "branch", steps=9, meter=branch_paid, cell=BRANCH, trunk=tmp_path / "trunk"
    )
    assert [row["step"] for row in found.evals] == [step for step in (4, 6, 8) if step > after]
    assert found == replace(whole, evals=[row for row in whole.evals if row["step"] > after])
    assert paid(branch_paid) == paid(at_once_paid)[after:]
    assert torch.equal(weights(at_once), weights(branched))
    assert not torch.equal(weights(trunk), weights(branched))


def test_a_branch_of_a_trunk_that_learnt_nothing_from_a_batch_is_the_run_at_once(
    model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    constant = replace(constant, batch=BatchConfig(filter_zero_variance=True))
    answered = replay.sample

    def wrong_in_the_second_step(problems: pl.DataFrame, *, step: int, **settings: Any) -> pl.DataFrame:
        rollouts: pl.DataFrame = answered(problems, step=step, **settings)
        return rollouts.with_columns(reward=pl.lit(0.0)) if step == 2 else rollouts

    replay.sample = wrong_in_the_second_step
    at_once, records = Learner(model, decaying(constant)), []
    whole = run(at_once, replay, tmp_path / "at once", steps=8, records=records)
    rates = [record.update.learning_rate for record in records if getattr(record, "update", None)]
    # The decay begins after four batches that were learnt from, and the fifth is the sixth of the run.
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01, 0.008, 0.006, 0.004])
    grow(model, constant, replay, tmp_path / "trunk")
    branched = Learner(model, decaying(constant))
    found = run(branched, replay, tmp_path / "branch", steps=8, cell=BRANCH, trunk=tmp_path / "trunk")
    assert (found.step, branched.version) == (8, 7)
    assert found.evals == whole.evals[3:]
    assert torch.equal(weights(at_once), weights(branched))


@pytest.mark.parametrize("after", [5, 7])
def test_a_branch_that_was_killed_goes_on_bit_for_bit(
    after: int, model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Before it has a checkpoint of its own, so that it begins again, and after, so that it is restored."""
    config = decaying(constant)
    grow(model, constant, replay, tmp_path / "trunk")
    as_branch = {"cell": BRANCH, "trunk": tmp_path / "trunk"}
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=8, **as_branch)
    kill(Learner(model, config), replay, tmp_path / "cut", after=after, **as_branch)
    resumed, meter = Learner(model, config), Steps(8)
    assert run(resumed, replay, tmp_path / "cut", steps=8, meter=meter, **as_branch) == whole
    assert [step for step, _ in paid(meter)] == ([5, 6, 7, 8] if after == 5 else [7, 8])
    assert torch.equal(weights(straight), weights(resumed))


def test_a_trunk_is_extended_as_if_it_had_no_branch_and_more_of_them_begin_there(
    model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    straight = Learner(model, constant)
    whole = run(straight, replay, tmp_path / "straight", steps=10)
    grow(model, constant, replay, tmp_path / "trunk")
    files = {path: path.read_bytes() for path in (tmp_path / "trunk").rglob("*") if path.is_file()}
    first = Learner(model, decaying(constant))
    run(first, replay, tmp_path / "first", steps=8, cell=BRANCH, trunk=tmp_path / "trunk")
    assert {path: path.read_bytes() for path in (tmp_path / "trunk").rglob("*") if path.is_file()} == files
    extended = grow(model, constant, replay, tmp_path / "trunk", steps=10)
    assert torch.equal(weights(extended), weights(straight))
    saved = Checkpoints(tmp_path / "trunk").newest()
    assert saved is not None
    assert (saved.step, saved.progress["evals"]) == (10, whole.evals)
    # Six steps and three checkpoints later, of which one is kept, the one of step 4 is there.
    again = Learner(model, decaying(constant))
    run(again, replay, tmp_path / "again", steps=8, cell=BRANCH, trunk=tmp_path / "trunk")
    assert torch.equal(weights(again), weights(first))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a constant rate": ({"config": {"optimizer": CONSTANT}}, r"decay_after is 0 \(decay is constant\): it must be"),
    "no step": ({"decay": {"after": 0}}, r"optimizer.decay_after is 0 \(decay is linear\)"),
    "a step without a checkpoint": ({"decay": {"after": 3}}, r"no checkpoint of step 3 \(.*step-000000004\)"),
    "rate": ({"config": {"learning_rate": 0.5}}, r"learning_rate was 0\.01 and is 0\.5"),
    "warm-up": ({"config": {"optimizer": LATER}}, "optimizer.warmup_steps was 2 and is 3"),
    "n": ({"run": {"rollouts_per_problem": 8}}, "rollouts_per_problem was 4 and is 8"),
    "seed": ({"run": {"seed": 4}}, "seed was 3 and is 4"),
    "grid": ({"run": {"evaluations_per_octave": 2}}, r"\(evaluations_per_octave was None and is 2\)"),
    "problems": ({"problems": PROBLEMS.head(7)}, r"problems was '8 with hash \w+' and is '7 with hash \w+'"),
}


def test_a_branch_of_another_run_than_its_trunk_is_refused(
    model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    grow(model, constant, replay, tmp_path)
    trunk = Checkpoints(tmp_path)
    for others, message in REFUSED.values():
        fresh = Learner(model, replace(decaying(constant, **others.get("decay", {})), **others.get("config", {})))
        before = weights(fresh)
        own = replace(BRANCH, **others.get("run", {}))
        with pytest.raises(CheckpointError, match=message):
            branch(learner=fresh, trunk=trunk, run=own, problems=others.get("problems", PROBLEMS))
        assert fresh.version == 0
        assert torch.equal(weights(fresh), before)


def test_a_trunk_whose_rate_was_not_constant_is_refused(
    model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    config = decaying(constant)
    grow(model, config, replay, tmp_path)
    with pytest.raises(CheckpointError, match=r"step 4 .* linear"):
        branch(learner=Learner(model, config), trunk=Checkpoints(tmp_path), run=BRANCH, problems=PROBLEMS)


def test_a_damaged_checkpoint_of_a_trunk_is_one_error_and_stays_where_it_is(
    model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    grow(model, constant, replay, tmp_path)
    state = tmp_path / "step-000000004" / "state.json"
    plain = json.loads(state.read_text())
    del plain["progress"]["place"]
    state.write_text(json.dumps(plain))
    fresh = Learner(model, decaying(constant))
    for message in (r"step-000000004: the checkpoint is damaged \(state.json", r"step 4 cannot be read .*place"):
        with pytest.raises(CheckpointError, match=message):
            branch(learner=fresh, trunk=Checkpoints(tmp_path), run=BRANCH, problems=PROBLEMS)
        write_checksums(state.parent)
    assert fresh.version == 0
    assert state.exists()
