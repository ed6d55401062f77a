"""A run that was killed, extended or ended by its divergence goes on as if nothing had happened, bit for bit."""

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
from isocompute.learner.training.loop import restore
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, Steps, kill, paid, run, weights

pytestmark = pytest.mark.slow("runs that train, again and again")

SETTINGS: dict[str, dict[str, Any]] = {
    "grpo with all regularisers": {},
    "ppo": {"objective": ObjectiveConfig(algorithm="ppo", epochs=2)},
    "cispo in two updates": {"objective": ObjectiveConfig(algorithm="cispo", updates_per_batch=2)},
    "KL in the reward": {"kl": KLConfig(coefficient=0.1, place="reward", estimator="k1")},
    "fewer trained than sampled": {"batch": BatchConfig(trained_rollouts=2)},
    "an adapter": {"adapter": AdapterConfig(rank=4)},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(
    settings: dict[str, Any], model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    config = replace(config, **settings)
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=6)
    # Cut off one step after a checkpoint, which is then taken again.
    kill(Learner(model, config), replay, tmp_path / "cut", after=3)
    resumed = Learner(model, config)
    assert run(resumed, replay, tmp_path / "cut", steps=6) == whole
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("after", [2, 3, 4])
def test_a_run_that_drops_problems_goes_on_bit_for_bit(
    after: int, model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    """Killed within a pass from which problems were dropped, and between two of them."""
    config = replace(config, batch=BatchConfig(drop_above=0.5))
    records: list[Any] = []
    straight = Learner(model, config)
    every = {"every_evaluations": None, "every_steps": 1}
    whole = run(straight, replay, tmp_path / "straight", steps=6, records=records)
    assert [record.dropped_problems for record in records if hasattr(record, "update")] == [0, 0, 4, 4, 4, 4]
    kill(Learner(model, config), replay, tmp_path / "cut", after=after, every=every)
    resumed, meter = Learner(model, config), Steps(6)
    assert run(resumed, replay, tmp_path / "cut", steps=6, meter=meter, every=every) == whole
    assert [step for step, _ in paid(meter)] == list(range(after + 1, 7))
    assert torch.equal(weights(straight), weights(resumed))


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


@pytest.mark.parametrize(
    ("every", "steps", "kept"),
    [
        ({"every_evaluations": 2, "keep": 9}, 6, [0, 4, 6]),
        ({"every_evaluations": None, "every_steps": 3, "keep": 9}, 7, [3, 6, 7]),
        ({"every_evaluations": None, "every_steps": 3, "keep": 2}, 8, [6, 8]),
    ],
)
def test_checkpoints_are_saved_when_they_are_due_and_at_the_end(
    every: dict[str, Any], steps: int, kept: list[int], model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    straight, resumed = Learner(model, config), Learner(model, config)
    run(straight, replay, tmp_path / "c", steps=steps, every=every)
    assert steps_of(tmp_path / "c") == kept
    # Whenever they were saved, a run that goes on from the last one makes every evaluation once.
    kill(Learner(model, config), replay, tmp_path / "cut", after=steps, every=every)
    whole = run(straight, replay, tmp_path / "c", steps=10, every=every)
    assert run(resumed, replay, tmp_path / "cut", steps=10, every=every) == whole
    assert [row["step"] for row in whole.evals] == [0, 2, 4, 6, 8, 10]
    assert torch.equal(weights(straight), weights(resumed))


def test_a_run_extended_is_the_run_at_once_bit_for_bit(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    at_once = Learner(model, config)
    whole = run(at_once, replay, tmp_path / "at once", steps=10)
    # The shorter one ends between two evaluations, and none of its steps is taken again.
    first = run(Learner(model, config), replay, tmp_path / "extended", steps=7)
    assert first.evals == whole.evals[:4]
    extended, meter = Learner(model, config), Steps(10)
    assert run(extended, replay, tmp_path / "extended", steps=10, meter=meter) == whole
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


def test_the_critic_is_in_a_checkpoint_and_never_in_the_weights(model: Path, replay: Any, tmp_path: Path) -> None:
    ppo = LearnerConfig(learning_rate=1e-2, objective=ObjectiveConfig(algorithm="ppo"))
    learner = Learner(model, ppo)
    run(learner, replay, tmp_path, steps=2)
    saved = Checkpoints(tmp_path).newest()
    assert saved is not None
    critic = [name for name in saved.tensors if name.startswith("critic.")]
    assert critic
    assert any(saved.tensors[name].any() for name in critic)
    handed_over = {name for name, _ in learner.weights()}
    assert {f"policy.{name}" for name in handed_over} == {n for n in saved.tensors if n.startswith("policy.")}
    other = Learner(model, ppo)
    other.load_state(saved.tensors, saved.values)
    assert all(torch.equal(other.state()[0][name], saved.tensors[name]) for name in saved.tensors)


def test_a_checkpoint_of_another_version_is_one_error_and_leaves_the_learner_as_it_is(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    learner = Learner(model, config)
    run(learner, replay, tmp_path, steps=2)
    state = tmp_path / "step-000000002" / "state.json"
    plain = json.loads(state.read_text())
    del plain["progress"]["place"]
    state.write_text(json.dumps(plain))
    write_checksums(state.parent)
    fresh = Learner(model, config)
    with pytest.raises(CheckpointError, match=r"of step 2 .*place"):
        restore(learner=fresh, checkpoints=Checkpoints(tmp_path), run=RUN, problems=PROBLEMS)
    assert fresh.version == 0


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"config": {"learning_rate": 0.5}}, r"learning_rate was .* and is 0\.5"),
    "algorithm": (
        {"config": {"objective": ObjectiveConfig(algorithm="cispo")}},
        "objective.algorithm was 'grpo' and is 'cispo'",
    ),
    "weight decay": ({"config": {"optimizer": OptimizerConfig(weight_decay=0.01)}}, "optimizer.weight_decay was 0.0"),
    "micro-batch": ({"config": {"compute": ComputeConfig(micro_batch_tokens=64)}}, "compute.micro_batch_tokens was"),
    "n": ({"run": {"rollouts_per_problem": 8}}, "rollouts_per_problem was 4 and is 8"),
    "B_p": ({"run": {"problems_per_batch": 2}}, "problems_per_batch was 4 and is 2"),
    "seed": ({"run": {"seed": 4}}, "seed was 3 and is 4"),
    "problems": ({"problems": PROBLEMS.head(7)}, r"problems was '8 with hash \w+' and is '7 with hash \w+'"),
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


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=6)
    run(Learner(model, config), replay, tmp_path / "cut", steps=4)
    (tmp_path / "cut" / "step-000000004" / "tensors-00000.safetensors").write_bytes(b"no")
    resumed = Learner(model, config)
    assert run(resumed, replay, tmp_path / "cut", steps=6) == whole
    assert torch.equal(weights(straight), weights(resumed))
