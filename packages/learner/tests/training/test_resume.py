"""A run that was killed, extended, branched or ended by its divergence goes on bit for bit."""

import json
from dataclasses import replace
from functools import partial
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
from small_run import PROBLEMS, RUN, Steps, Trial, distance, paid, weights
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
    base: str, settings: dict[str, Any], config: LearnerConfig, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    trial, records, meter = Trial(request.getfixturevalue(base), replace(config, **settings), tmp_path), [], Steps(6)
    whole, expected = trial.run("straight", steps=6, records=records), trial.weights()
    # Cut off one step after a checkpoint, which is then taken again, and within a pass that lacks problems.
    trial.kill("cut", after=3)
    assert trial.run("cut", steps=6, meter=meter) == whole
    assert [step for step, _ in paid(meter)] == [3, 4, 5, 6]
    assert torch.equal(expected, trial.weights())
    dropped = [record.dropped_problems for record in records if hasattr(record, "update")]
    assert dropped == ([0, 0, 4, 4, 4, 4] if "batch" in settings else [0] * 6)


def test_a_run_extended_is_the_run_at_once_bit_for_bit(trial: Trial) -> None:
    every, meter = {"every_evaluations": None, "every_steps": 3, "keep": 2}, Steps(10)
    whole, expected = trial.run("at once", steps=10, every=every), trial.weights()
    assert [row["step"] for row in whole.evals] == [0, 2, 4, 6, 8, 10]
    # The shorter one ends between two evaluations and two checkpoints, and none of its steps is taken again.
    assert trial.run("extended", steps=7, every=every).evals == whole.evals[:4]
    assert sorted(path.name for path in (trial.home / "extended").iterdir()) == ["step-000000006", "step-000000007"]
    # Killed after an evaluation without a checkpoint, which is made again.
    trial.kill("extended", after=8, every=every)
    assert trial.run("extended", steps=10, meter=meter, every=every) == whole
    assert torch.equal(expected, trial.weights())
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
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    steady, records, meter = trial.run("steady", steps=2), list[Any](), Steps(9)
    ended = trial.run("hot", of=Hot, steps=9, records=records, meter=meter)
    versions = trial.learner.version, trial.sampler.weights_version
    assert (ended.diverged_at, ended.step, *versions) == (4, 3, 3, 3)
    assert ended.evals == steady.evals
    assert paid(meter)[-1] == (4, {"trained": 16})
    assert ended.rollouts == records[-1].rollouts == 64
    assert (records[-1].step, records[-1].gradient_retries, records[-1].sync_seconds) == (4, 1, None)
    assert caplog.text.count("policy has diverged") == 2
    assert Checkpoints(trial.home / "hot").newest_step() == 2
    # Killed one step before it diverged, and started again; and asked once more after it had.
    trial.kill("killed", of=Hot, after=3)
    for folder in ("killed", "hot"):
        assert trial.run(folder, of=Hot, steps=9) == ended


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [("progress", "cursor", "of step 2 .*cursor"), ("values", "base", "step 2 .*names no base model")],
)
def test_a_checkpoint_of_another_version_is_one_error_and_leaves_the_learner_as_it_is(
    group: str, name: str, message: str, trial: Trial
) -> None:
    trial.run("run", steps=2)
    state = trial.home / "run" / "step-000000002" / "state.json"
    plain = json.loads(state.read_text())
    del plain[group][name]
    state.write_text(json.dumps(plain))
    write_checksums(state.parent)
    with pytest.raises(CheckpointError, match=message):
        trial.run("run", steps=3)
    assert trial.learner.version == 0


ANOTHER: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"learning_rate": 0.5}, r"learning_rate was 0\.01 and is 0\.5"),
    "n": ({"run": {"rollouts_per_problem": 8}}, "rollouts_per_problem was 4 and is 8"),
    "seed": ({"run": {"seed": 4}}, "seed was 3 and is 4"),
    "problems": ({"problems": PROBLEMS.head(7)}, r"problems was '8 with hash \w+' and is '7 with hash \w+'"),
}
"""What neither a run that goes on nor a branch takes."""

OTHERS = ANOTHER | {
    "algorithm": ({"objective": ObjectiveConfig(algorithm="cispo")}, "objective.algorithm was 'grpo' and is 'cispo'"),
    "micro-batch": ({"compute": ComputeConfig(micro_batch_tokens=64)}, "compute.micro_batch_tokens was"),
    "a prompt": ({"problems": PROBLEMS.with_columns(prompt=pl.lit("?"))}, r"problems was '8 with hash \w+'"),
}


def refused(
    how: Any, message: str, trial: Trial, *, run: dict[str, Any], problems: pl.DataFrame = PROBLEMS, **config: Any
) -> None:
    """Continue, or branch off, with a fresh learner whose weights stay as they are."""
    fresh = Learner(trial.model, replace(trial.config, **config))
    before = weights(fresh)
    with pytest.raises(CheckpointError, match=message):
        how(learner=fresh, run=replace(RUN, **run), problems=problems)
    assert torch.equal(weights(fresh), before)
    assert fresh.version == 0


def test_a_run_under_other_settings_does_not_continue_and_they_are_named(trial: Trial) -> None:
    """Unless they change no result: the order of rows, pass rates, tolerances, when checkpoints are saved."""
    trial.run("run", steps=2)
    store = Checkpoints(trial.home / "run", every_steps=7, keep=5)
    for others, message in OTHERS.values():
        refused(partial(restore, checkpoints=store), message, trial, **{"run": {}} | others)
    fresh = Learner(trial.model, replace(trial.config, sync=SyncConfig(tolerance=0.5)))
    problems = PROBLEMS.reverse().with_columns(pass_rate=pl.lit(0.5))
    found = restore(learner=fresh, checkpoints=store, run=RUN, problems=problems)
    assert found.step == fresh.version == 2


def test_a_run_does_not_continue_over_another_base_model_and_both_are_named(trial: Trial) -> None:
    """Also where all weights are learnt and none is a reference."""
    trial.config, model = replace(trial.config, kl=KLConfig()), trial.model
    trial.run("run", steps=2)
    first, policy = trial.learner, LlamaForCausalLM.from_pretrained(model)
    # The same weights elsewhere, and in several files.
    policy.save_pretrained(trial.home / "moved", max_shard_size="4KB")
    assert len(list((trial.home / "moved").glob("*.safetensors"))) > 1
    with torch.no_grad():
        next(policy.parameters())[3, 1] += 1.0
    policy.save_pretrained(trial.home / "other")
    how, trial.model = partial(restore, checkpoints=Checkpoints(trial.home / "run")), trial.home / "other"
    other = Learner(trial.model, trial.config)
    refused(how, f"step 2 .*{model}.*{first.base}.*other.*{other.base}", trial, run={})
    moved = Learner(trial.home / "moved", trial.config)
    assert how(learner=moved, run=RUN, problems=PROBLEMS).step == 2
    assert torch.equal(weights(moved), weights(first))


def test_a_run_goes_on_with_other_micro_batches_where_that_is_asked_for_and_says_so(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    whole, straight = trial.run("straight", steps=6), trial.weights()
    trial.run("cut", steps=3)
    trial.config = replace(trial.config, compute=ComputeConfig(micro_batch_tokens=16))
    every, records = {"may_change": ["compute.micro_batch_tokens"]}, []
    found = trial.run("cut", steps=5, every=every, records=records)
    changes = [{"step": 3, "compute.micro_batch_tokens": [8192, 16]}]
    assert found.changes == changes
    assert "from step 3 with other settings (compute.micro_batch_tokens was 8192 and is 16)" in caplog.text
    assert [r.metrics()["health/rounding_changes"] for r in records if hasattr(r, "update")] == [1.0, 1.0]
    # From there on it is a run of the new setting, which remembers the change.
    found = trial.run("cut", steps=6)
    assert found.changes == changes
    assert [row["step"] for row in found.evals] == [row["step"] for row in whole.evals]
    # Sums of float32 in another order differ by 1e-7 of their terms, and Adam divides a gradient by its own size.
    assert distance(trial.weights(), straight) < 1e-5


CONSTANT = OptimizerConfig(warmup_steps=2)
BRANCH = replace(RUN, run_id="b")


def decaying(config: LearnerConfig, *, after: int = 4, last: int = 8) -> LearnerConfig:
    return replace(config, optimizer=replace(config.optimizer, decay="linear", decay_after=after, decay_steps=last))


def grow(trial: Trial, *, steps: int = 4, at: int = 4) -> None:
    """Train a trunk, and keep its checkpoint of a step."""
    trial.run("trunk", steps=steps, every={"keep": 1, "keep_steps": {at}})


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
    after: int, settings: dict[str, Any], trial: Trial
) -> None:
    """Killed before it has a checkpoint of its own, so that it begins again, and after, so that it is restored."""
    constant = replace(trial.config, optimizer=CONSTANT, **settings)
    config, answered = decaying(constant, after=after), trial.sampler.sample

    def wrong_in_the_second_step(problems: pl.DataFrame, *, step: int, **asked: Any) -> pl.DataFrame:
        rollouts: pl.DataFrame = answered(problems, step=step, **asked)
        return rollouts.with_columns(reward=pl.lit(0.0)) if step == 2 else rollouts

    trial.sampler.sample, trial.config = wrong_in_the_second_step, config
    at_once_paid, branch_paid, records = Steps(9), Steps(9), []
    whole = trial.run("at once", steps=9, meter=at_once_paid, records=records)
    expected = trial.weights()
    # A schedule counts the batches that were learnt from.
    rates = [record.update.learning_rate for record in records if getattr(record, "update", None)]
    assert len(rates) == 9 - config.batch.filter_zero_variance == trial.learner.version
    assert rates == [config.learning_rate_at(number) for number in range(1, 1 + len(rates))]
    # The trunk is longer than what the branch has of it.
    trial.config = constant
    grow(trial, steps=6, at=after)
    trunk, trial.config = trial.weights(), config
    as_branch = {"cell": BRANCH, "trunk": trial.home / "trunk"}
    for died in (5, 7):
        trial.kill("branch", after=died, **as_branch)
    found = trial.run("branch", steps=9, meter=branch_paid, **as_branch)
    assert [row["step"] for row in found.evals] == [step for step in (4, 6, 8) if step > after]
    assert found == replace(whole, evals=[row for row in whole.evals if row["step"] > after])
    assert paid(branch_paid) == paid(at_once_paid)[6:]
    assert torch.equal(expected, trial.weights())
    assert not torch.equal(trunk, trial.weights())


REFUSED = ANOTHER | {
    "a constant rate": ({"optimizer": CONSTANT}, r"decay_after is 0 \(decay is constant\): it must be"),
    "no step": (
        {"optimizer": replace(CONSTANT, decay="linear", decay_steps=8)},
        r"optimizer.decay_after is 0 \(decay is linear\)",
    ),
    "a step without a checkpoint": (
        {"optimizer": replace(CONSTANT, decay="linear", decay_after=3, decay_steps=8)},
        r"no checkpoint of step 3 \(.*step-000000004\)",
    ),
    "grid": ({"run": {"evaluations_per_octave": 2}}, r"\(evaluations_per_octave was None and is 2\)"),
}


def test_a_branch_of_another_run_than_its_trunk_is_refused(trial: Trial) -> None:
    trial.config = replace(trial.config, optimizer=CONSTANT)
    grow(trial)
    trial.config = decaying(trial.config)
    for others, message in REFUSED.values():
        given = others | {"run": {"run_id": "b", **others.get("run", {})}}
        refused(partial(branch, trunk=Checkpoints(trial.home / "trunk")), message, trial, **given)
