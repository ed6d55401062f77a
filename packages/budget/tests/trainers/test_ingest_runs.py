"""One curve is one run: what tells runs apart, and what is refused because nothing does."""

import json

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.evals import ingest, join_restarts, reader_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.registry import trainer

CONFIG = {
    "num_generations": 4,
    "num_generations_eval": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "generation_batch_size": 16,
    "num_iterations": 1,
    "seed": 42,
}
QUESTIONS = {"questions": "16"}


def lines(path, rewards, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        for step, reward in rewards.items():
            stream.write(json.dumps({"step": step, "eval_reward": reward, **more}) + "\n")
    return path


def state(path, rewards):
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"step": step, "eval_reward": reward} for step, reward in rewards.items()]
    path.write_text(json.dumps({"global_step": max(rewards), "log_history": history}))
    return path


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def read(config, *sources, **given):
    return ingest("trl", [str(s) for s in sources], config=config, constants={**QUESTIONS, **given})


def test_two_runs_of_one_configured_seed_are_not_one_curve(tmp_path, config):
    a = lines(tmp_path / "a.jsonl", {2: 0.1, 4: 0.2})
    b = lines(tmp_path / "b.jsonl", {2: 0.5, 4: 0.6})
    with pytest.raises(BudgetError, match=r"a.jsonl and .*seed, 42"):
        read(config, a, b)
    evals, _ = read(config, a, b, seed="auto")
    assert evals.sort("seed", "step")["seed"].to_list() == [0, 0, 1, 1]
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.5, 0.6]


def test_one_file_of_several_runs_is_read_run_by_run(tmp_path, config):
    path = tmp_path / "all.csv"
    path.write_text("run_id,step,eval_reward\nx,2,0.1\ny,2,0.5\nx,4,0.2\ny,4,0.6\n")
    evals, _ = read(config, path, seed="auto")
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.5, 0.6]
    with pytest.raises(BudgetError, match=r"\(x\) and .*\(y\) have one"):
        read(config, path)


def test_a_file_that_interleaves_two_runs_is_refused(tmp_path, config):
    path = lines(tmp_path / "log.jsonl", {2: 0.1})
    lines(path, {2: 0.5})
    lines(path, {4: 0.2})
    lines(path, {4: 0.6})
    with pytest.raises(BudgetError, match="step 2 after step 2"):
        read(config, path)


def test_of_a_run_that_went_back_to_a_checkpoint_the_later_attempt_counts(tmp_path, config):
    path = lines(tmp_path / "log.jsonl", {2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4})
    lines(path, {6: 0.35, 8: 0.45})
    evals, notes = read(config, path)
    assert evals["avg_at_4"].to_list() == [0.1, 0.2, 0.35, 0.45]
    assert any("went back to step 6" in note for note in notes)
    # Killed again before it came as far: what the first attempt did beyond was lost.
    lines(path, {4: 0.25})
    assert read(config, path)[0]["avg_at_4"].to_list() == [0.1, 0.25]
    lines(path, {4: 0.3, 6: 0.4})
    assert read(config, path)[0]["avg_at_4"].to_list() == [0.1, 0.3, 0.4]


def test_columns_of_two_runs_of_one_name_are_refused(tmp_path, config):
    path = tmp_path / "export.csv"
    path.write_text("train/global_step,a - eval/reward,a - eval/reward\n2,0.1,0.5\n4,0.2,0.6\n")
    with pytest.raises(BudgetError, match="'a - eval/reward' twice"):
        read(config, path)


def test_a_folder_of_several_trainer_states_is_several_runs(tmp_path, config):
    # The newest file is not the furthest one once a folder has been copied.
    state(tmp_path / "out" / "a" / "checkpoint-10" / "trainer_state.json", {5: 0.1, 10: 0.2})
    state(tmp_path / "out" / "a" / "checkpoint-5" / "trainer_state.json", {5: 0.1})
    state(tmp_path / "out" / "b" / "checkpoint-5" / "trainer_state.json", {5: 0.6})
    evals, _ = read(config, tmp_path / "out", seed="auto")
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.6]
    with pytest.raises(BudgetError, match="have one seed, 42"):
        read(config, tmp_path / "out")


def test_what_logs_and_configuration_say_differently_is_refused(tmp_path):
    trainer = tmp_path / "trainer_state.json"
    trainer.write_text(json.dumps({"log_history": [{"step": 1, "eval_reward": 0.5}], "train_batch_size": 4}))
    given = tmp_path / "config.json"
    given.write_text(json.dumps(CONFIG))
    with pytest.raises(BudgetError, match=r"is 4 in .*state and 8 in"):
        ingest("trl", [str(trainer)], config=given, constants=QUESTIONS)
    evals, _ = ingest("trl", [str(trainer)], config=given, constants={**QUESTIONS, "per_device_train_batch_size": "8"})
    assert evals["rollouts"].to_list() == [16]
    # Any other setting that a log repeats is compared too.
    table = tmp_path / "config2.json"
    table.write_text(json.dumps({**CONFIG, "per_device_train_batch_size": 4, "steps_per_generation": 4}))
    evals, _ = ingest("trl", [str(trainer)], config=table, constants=QUESTIONS)
    assert evals["rollouts"].to_list() == [16]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "config.yaml", "config.toml"])
def test_a_configuration_that_cannot_be_read_is_named(name, tmp_path):
    log = lines(tmp_path / "log.jsonl", {2: 0.1})
    for content in (b"\xff\xfe\x00", b"{[", b"- 1\n- 2\n", b"[" * 5_000):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BudgetError, match=name):
            ingest("trl", [str(log)], config=path, constants=QUESTIONS)


def starts(*of):
    """The steps and the restarts of each run that is found in the logs of several starts."""
    reader = reader_of(trainer("trl"))
    logs = [
        Log(name=f"log {k}", rows=[(step, {"eval_reward": 0.1 * k + step / 99}) for step in steps], config=config)
        for k, (steps, config) in enumerate(of)
    ]
    return [([step for step, _ in log.rows], log.restarts) for log in join_restarts(logs, reader)]


@pytest.mark.parametrize(("first", "whole"), [(11, True), (12, True), (13, True), (14, False), (6, True), (2, False)])
def test_a_start_that_goes_on_where_another_had_come_to_is_the_same_run(first, whole):
    # Every second step is logged, up to 10: after a checkpoint at 11 the first entry is that of 13.
    found = starts((range(2, 12, 2), CONFIG), (range(first, 20, 2), CONFIG))
    assert len(found) == (1 if whole else 2)
    if whole:
        assert found == [([*range(2, min(first, 11), 2), *range(first, 20, 2)], (first,))]


def test_a_start_goes_on_only_with_a_run_of_its_own_settings():
    other = {**CONFIG, "num_iterations": 2}
    assert len(starts((range(2, 12, 2), CONFIG), (range(12, 20, 2), other))) == 2
    # Where a run was written to is no setting of it; a log without any may be of another run.
    assert len(starts((range(2, 12, 2), CONFIG), (range(12, 20, 2), {**CONFIG, "output_dir": "b"}))) == 1
    assert len(starts((range(2, 12, 2), {}), (range(12, 20, 2), {}))) == 2
