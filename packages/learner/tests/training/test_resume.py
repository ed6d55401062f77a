"""A run that was killed, extended, branched or ended by its divergence goes on bit for bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    SyncConfig,
)
from isocompute.learner.errors import CheckpointError
from isocompute.learner.saving.checkpoint import Checkpoints, write_checksums
from isocompute.learner.training.run import branch, restore
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, Steps, distance, kill, paid, run, weights
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.slow("runs that train, again and again")

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "all regularisers, its head its embedding": ("tied_model", {}),
    "ppo that drops problems": (
        "model",
        {"objective": ObjectiveConfig(algorithm="ppo", epochs=2), "batch": BatchConfig(drop_above=0.5)},
    ),
    "an adapter": ("model", {"adapter": AdapterConfig(rank=4)}),
}


@pytest.mark.parametrize(("base", "settings"), SETTINGS.values(), ids=SETTINGS)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(
    base: str,
    settings: dict[str, Any],
    config: LearnerConfig,
    replay: Any,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    config, model = replace(config, **settings), request.getfixturevalue(base)
    straight, sampler, records = Learner(model, config), type(replay)(model), []
    whole = run(straight, sampler, tmp_path / "straight", steps=6, records=records)
    # Cut off one step after a checkpoint, which is then taken again, and within a pass that lacks problems.
    kill(Learner(model, config), sampler, tmp_path / "cut", after=3)
    resumed, meter = Learner(model, config), Steps(6)
    assert run(resumed, sampler, tmp_path / "cut", steps=6, meter=meter) == whole
    assert [step for step, _ in paid(meter)] == [3, 4, 5, 6]
    assert torch.equal(weights(straight), weights(resumed))
    dropped = [record.dropped_problems for record in records if hasattr(record, "update")]
    assert dropped == ([0] * 6 if config.batch.drop_above is None else [0, 0, 4, 4, 4, 4])


def test_a_run_extended_is_the_run_at_once_bit_for_bit(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    every: dict[str, Any] = {"every_evaluations": None, "every_steps": 3, "keep": 2}
    at_once = Learner(model, config)
    whole = run(at_once, replay, tmp_path / "at once", steps=10, every=every)
    assert [row["step"] for row in whole.evals] == [0, 2, 4, 6, 8, 10]
    # The shorter one ends between two evaluations and two checkpoints, and none of its steps is taken again.
    first = run(Learner(model, config), replay, tmp_path / "extended", steps=7, every=every)
    assert first.evals == whole.evals[:4]
    assert sorted(path.name for path in (tmp_path / "extended").iterdir()) == ["step-000000006", "step-000000007"]
    # Killed after an evaluation without a checkpoint, which is made again.
    kill(Learner(model, config), replay, tmp_path / "extended", after=8, every=every)
    extended, meter = Learner(model, config), Steps(10)
    assert run(extended, replay, tmp_path / "extended", steps=10, meter=meter, every=every) == whole
    assert torch.equal(weights(at_once), weights(extended))
    assert [step for step, _ in paid(meter)] == [8, 9, 10]


class Hot(Learner):
    """A learner whose third update leaves weights so large that the next gradient is not finite."""

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> Any:
        report = super().update(batch, advance=advance)
        if self.version == 3:
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.mul_(1e20)
        return report


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
    assert caplog.text.count("policy has diverged") == 2
    saved = Checkpoints(tmp_path / "hot").newest()
    assert saved is not None
    assert saved.step == 2
    # Killed one step before it diverged, and started again; and asked once more after it had.
    kill(Hot(model, config), replay, tmp_path / "killed", after=3)
    for folder in ("killed", "hot"):
        assert run(Hot(model, config), replay, tmp_path / folder, steps=9) == ended


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [("progress", "cursor", "of step 2 .*cursor"), ("values", "base", "step 2 .*names no base model")],
)
def test_a_checkpoint_of_another_version_is_one_error_and_leaves_the_learner_as_it_is(
    group: str, name: str, message: str, model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    run(Learner(model, config), replay, tmp_path, steps=2)
    state = tmp_path / "step-000000002" / "state.json"
    plain = json.loads(state.read_text())
    del plain[group][name]
    state.write_text(json.dumps(plain))
    write_checksums(state.parent)
    fresh = Learner(model, config)
    with pytest.raises(CheckpointError, match=message):
        restore(learner=fresh, checkpoints=Checkpoints(tmp_path), run=RUN, problems=PROBLEMS)
    assert fresh.version == 0


ANOTHER: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"config": {"learning_rate": 0.5}}, r"learning_rate was 0\.01 and is 0\.5"),
    "n": ({"run": {"rollouts_per_problem": 8}}, "rollouts_per_problem was 4 and is 8"),
    "seed": ({"run": {"seed": 4}}, "seed was 3 and is 4"),
    "problems": ({"problems": PROBLEMS.head(7)}, r"problems was '8 with hash \w+' and is '7 with hash \w+'"),
}
"""What neither a run that goes on nor a branch takes."""

OTHERS = ANOTHER | {
    "algorithm": (
        {"config": {"objective": ObjectiveConfig(algorithm="cispo")}},
        "objective.algorithm was 'grpo' and is 'cispo'",
    ),
    "micro-batch": ({"config": {"compute": ComputeConfig(micro_batch_tokens=64)}}, "compute.micro_batch_tokens was"),
    "a prompt": ({"problems": PROBLEMS.with_columns(prompt=pl.lit("?"))}, r"problems was '8 with hash \w+'"),
}


def test_a_run_under_other_settings_does_not_continue_and_they_are_named(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Unless they change no result: the order of rows, pass rates, tolerances, when checkpoints are saved."""
    run(Learner(model, config), replay, tmp_path, steps=2)
    for others, message in OTHERS.values():
        fresh = Learner(model, replace(config, **others.get("config", {})))
        before = weights(fresh)
        own, problems = replace(RUN, **others.get("run", {})), others.get("problems", PROBLEMS)
        with pytest.raises(CheckpointError, match=message):
            restore(learner=fresh, checkpoints=Checkpoints(tmp_path), run=own, problems=problems)
        assert torch.equal(weights(fresh), before)
    fresh = Learner(model, replace(config, sync=SyncConfig(tolerance=0.5)))
    found = restore(
        learner=fresh,
        checkpoints=Checkpoints(tmp_path, every_steps=7, keep=5),
        run=RUN,
        problems=PROBLEMS.reverse().with_columns(pass_rate=pl.lit(0.5)),
    )
    assert found.step == fresh.version == 2


def test_a_run_does_not_continue_over_another_base_model_and_both_are_named(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Also where all weights are learnt and none is a reference."""
    config = replace(config, kl=KLConfig())
    first, policy = Learner(model, config), LlamaForCausalLM.from_pretrained(model)
    run(first, replay, tmp_path / "run", steps=2)
    # The same weights elsewhere, and in several files.
    policy.save_pretrained(tmp_path / "moved", max_shard_size="4KB")
    assert len(list((tmp_path / "moved").glob("*.safetensors"))) > 1
    with torch.no_grad():
        next(policy.parameters())[3, 1] += 1.0
    policy.save_pretrained(tmp_path / "other")
    other = Learner(tmp_path / "other", config)
    before = weights(other)
    named = {"checkpoints": Checkpoints(tmp_path / "run"), "run": RUN, "problems": PROBLEMS}
    with pytest.raises(CheckpointError, match=f"step 2 .*{model}.*{first.base}.*other.*{other.base}"):
        restore(learner=other, **named)
    assert torch.equal(weights(other), before)
    moved = Learner(tmp_path / "moved", config)
    assert restore(learner=moved, **named).step == 2
    assert torch.equal(weights(moved), weights(first))


def test_a_run_goes_on_with_other_micro_batches_where_that_is_asked_for_and_says_so(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=6)
    run(Learner(model, config), replay, tmp_path / "cut", steps=3)
    smaller = replace(config, compute=ComputeConfig(micro_batch_tokens=16))
    every, records = {"may_change": ["compute.micro_batch_tokens"]}, []
    learner = Learner(model, smaller)
    found = run(learner, replay, tmp_path / "cut", steps=5, every=every, records=records)
    changes = [{"step": 3, "compute.micro_batch_tokens": [8192, 16]}]
    assert found.changes == changes
    assert "from step 3 with other settings (compute.micro_batch_tokens was 8192 and is 16)" in caplog.text
    assert [r.metrics()["health/rounding_changes"] for r in records if hasattr(r, "update")] == [1.0, 1.0]
    # From there on it is a run of the new setting, which remembers the change.
    last = Learner(model, smaller)
    found = run(last, replay, tmp_path / "cut", steps=6)
    assert found.changes == changes
    assert [row["step"] for row in found.evals] == [row["step"] for row in whole.evals]
    # Sums of float32 in another order differ by 1e-7 of their terms, and Adam divides a gradient by its own size.
    assert distance(weights(last), weights(straight)) < 1e-5


CONSTANT = OptimizerConfig(warmup_steps=2)
BRANCH = replace(RUN, run_id="b")


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


BRANCHES: dict[str, tuple[int, dict[str, Any]]] = {
    "between two evaluations of its trunk": (3, {}),
    "after one, with ppo that drops problems": (
        4,
        {"objective": ObjectiveConfig(algorithm="ppo", epochs=2), "batch": BatchConfig(drop_above=0.5)},
    ),
    "after a batch that taught nothing": (4, {"batch": BatchConfig(filter_zero_variance=True)}),
}


@pytest.mark.parametrize(("after", "settings"), BRANCHES.values(), ids=BRANCHES)
def test_a_branch_is_the_run_at_once_bit_for_bit_though_it_was_killed(
    after: int, settings: dict[str, Any], model: Path, constant: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Killed before it has a checkpoint of its own, so that it begins again, and after, so that it is restored."""
    constant = replace(constant, **settings)
    config, answered = decaying(constant, after=after), replay.sample

    def wrong_in_the_second_step(problems: pl.DataFrame, *, step: int, **asked: Any) -> pl.DataFrame:
        rollouts: pl.DataFrame = answered(problems, step=step, **asked)
        return rollouts.with_columns(reward=pl.lit(0.0)) if step == 2 else rollouts

    replay.sample = wrong_in_the_second_step
    at_once, at_once_paid, records = Learner(model, config), Steps(9), []
    whole = run(at_once, replay, tmp_path / "at once", steps=9, meter=at_once_paid, records=records)
    # A schedule counts the batches that were learnt from.
    rates = [record.update.learning_rate for record in records if getattr(record, "update", None)]
    assert len(rates) == 9 - config.batch.filter_zero_variance == at_once.version
    assert rates == [config.learning_rate_at(number) for number in range(1, 1 + len(rates))]
    # The trunk is longer than what the branch has of it.
    trunk = grow(model, constant, replay, tmp_path / "trunk", steps=6, at=after)
    as_branch, branched, branch_paid = {"cell": BRANCH, "trunk": tmp_path / "trunk"}, Learner(model, config), Steps(9)
    for died in (5, 7):
        kill(Learner(model, config), replay, tmp_path / "branch", after=died, **as_branch)
    found = run(branched, replay, tmp_path / "branch", steps=9, meter=branch_paid, **as_branch)
    assert [row["step"] for row in found.evals] == [step for step in (4, 6, 8) if step > after]
    assert found == replace(whole, evals=[row for row in whole.evals if row["step"] > after])
    assert paid(branch_paid) == paid(at_once_paid)[6:]
    assert torch.equal(weights(at_once), weights(branched))
    assert not torch.equal(weights(trunk), weights(branched))


REFUSED = ANOTHER | {
    "a constant rate": ({"config": {"optimizer": CONSTANT}}, r"decay_after is 0 \(decay is constant\): it must be"),
    "no step": ({"decay": {"after": 0}}, r"optimizer.decay_after is 0 \(decay is linear\)"),
    "a step without a checkpoint": ({"decay": {"after": 3}}, r"no checkpoint of step 3 \(.*step-000000004\)"),
    "grid": ({"run": {"evaluations_per_octave": 2}}, r"\(evaluations_per_octave was None and is 2\)"),
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
