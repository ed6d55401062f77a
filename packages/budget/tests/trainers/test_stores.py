"""Runs in MLflow and TensorBoard: each is a run of its own, and reading leaves nothing behind."""

import json
import re
import shutil
import sqlite3
import struct

import polars as pl
import pytest
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.contract.tracking import TrackingError
from isocompute.budget.trainers.doctor import ingest
from isocompute.budget.trainers.live import LiveLog
from isocompute.budget.trainers.logs.sources import read_arguments
from reading_logs import DOCS, QUESTIONS, TRL, tfrecords

pytestmark = pytest.mark.slow("MLflow")

CONFIG = {**TRL, "generation_batch_size": 128}


READ = re.compile(".*(completions/m|num_tokens|loss|rewards/right/mean|runtime|samples_per_second)")


def logged(client, experiment, *, first, last, **other):
    """A start of the run in docs/trl/n4, from its entry after step ``first`` on, as transformers' callback logs it."""
    from mlflow.entities import Metric, Param

    run = client.create_run(experiment, run_name="trl").info.run_id
    settings = {**read_arguments(DOCS / "n4" / "training_args.bin"), **other}
    client.log_batch(run, params=[Param(key, str(value)) for key, value in list(settings.items())[:100]])
    client.log_batch(run, params=[Param(key, str(value)) for key, value in list(settings.items())[100:]])
    history = json.loads((DOCS / "n4" / "trainer_state.json").read_text())["log_history"]
    metrics = [
        Metric(key, value, 1_000 * number, entry["step"])
        for number, entry in enumerate(history)
        if first < entry["step"] <= last or entry["step"] == first == 0
        for key, value in entry.items()
        if READ.match(key)
    ]
    client.log_batch(run, metrics=metrics)
    client.set_terminated(run)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A store without runs, which takes seconds to make."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow = pytest.importorskip("mlflow")
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


def copied(bare, folder):
    """A store of its own, and a client of it."""
    import mlflow

    uri = f"sqlite:///{shutil.copy(bare, folder)}"
    return uri, mlflow.MlflowClient(tracking_uri=uri)


@pytest.fixture(scope="module")
def store(bare, tmp_path_factory):
    """A store with an empty experiment, and one of two runs of one name, configuration and seed."""
    uri, client = copied(bare, tmp_path_factory.mktemp("two"))
    client.create_experiment("empty")
    experiment = client.create_experiment("two")
    for reward in (0.1, 0.5):
        run = client.create_run(experiment, run_name="trl").info.run_id
        for key, value in CONFIG.items():
            client.log_param(run, key, value)
        for step in (2, 4):
            client.log_metric(run, "eval_reward", reward + step / 100, step=step)
            client.log_metric(run, "eval_completions/mean_length", 5.0, step=step)
        client.set_terminated(run)
    return uri


def everything(folder):
    return sorted(folder.rglob("*"))


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.mark.parametrize("source", ["mlflow:some", "runs:/abc", "sqlite:///no/such/mlflow.db"])
def test_reading_a_store_that_does_not_exist_creates_nothing(source, empty, capsys):
    pytest.importorskip("mlflow")
    assert main(["doctor", source, "--trainer", "trl", "--out", "out"]) == 2
    assert "there is no MLflow store" in capsys.readouterr().err
    assert everything(empty) == []


def test_an_experiment_without_runs_says_so(store, empty, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with pytest.raises(TrackingError, match=r"mlflow:empty: .*no run"):
        ingest("trl", ["mlflow:empty"], constants=QUESTIONS)
    with pytest.raises(TrackingError, match=r"mlflow:none: .*empty, two"):
        ingest("trl", ["mlflow:none"], constants=QUESTIONS)
    assert everything(empty) == []


def test_runs_of_one_name_and_seed_in_mlflow_are_two(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with pytest.raises(BudgetError, match=r"runs:/.* one seed, 42"):
        ingest("trl", ["mlflow:two"], constants=QUESTIONS)
    evals, _ = ingest("trl", ["mlflow:two"], constants={**QUESTIONS, "seed": "auto"})
    assert evals["run_id"].n_unique() == 2
    assert sorted(evals["avg_at_4"].to_list()) == pytest.approx([0.12, 0.14, 0.52, 0.54])
    # Eight processes, though no parameter says so.
    assert sorted(set(evals["rollouts"].to_list())) == [256, 512]
    whole, _ = ingest("trl", [store], constants={**QUESTIONS, "seed": "auto"})
    assert whole.equals(evals)


def test_a_resumed_run_of_two_mlflow_runs_is_one_run_of_one_seed(bare, tmp_path, monkeypatch, capsys):
    store, client = copied(bare, tmp_path)
    resumed = client.create_experiment("resumed")
    logged(client, resumed, first=0, last=60)
    logged(client, resumed, first=60, last=120, resume_from_checkpoint="out/checkpoint-60")
    assert main(["doctor", str(DOCS / "n4"), "--out", str(tmp_path / "whole")]) == 0
    whole = pl.read_parquet(tmp_path / "whole" / "evals.parquet").drop("run_id")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    capsys.readouterr()
    assert main(["doctor", "mlflow:resumed", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "n = 4, B_p = 16, seed 4, learning rate 0.0005; 31 evaluations of 64 problems" in said
    assert "is read as the same run" in said
    assert "numbered" not in said
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["run_id"].n_unique() == 1
    assert evals.drop("run_id").equals(whole)


def events(folder, rewards, *, name="1"):
    """An event file as TensorBoard leaves it: events of a step (2) and a summary (5) of a tag (1) and its value (2)."""

    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    folder.mkdir(parents=True, exist_ok=True)
    values = {step: field(1, b"eval/reward") + b"\x15" + struct.pack("<f", reward) for step, reward in rewards.items()}
    logged = [bytes([16, step]) + field(5, field(1, value)) for step, value in values.items()]
    records = tfrecords([field(3, b"brain.Event:2"), *logged])
    (folder / f"events.out.tfevents.{name}").write_bytes(records)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_parent_folder_of_event_files_is_read_run_by_run(tmp_path, config):
    events(tmp_path / "runs" / "a", {2: 0.1, 4: 0.2})
    events(tmp_path / "runs" / "b", {2: 0.5, 4: 0.6})
    # Hyperparameters are written into a folder of their own, without metrics.
    events(tmp_path / "runs" / "b" / "1700000000.1", {})
    with pytest.raises(BudgetError, match=r"runs/a and .*one seed, 42"):
        ingest("trl", [str(tmp_path / "runs")], config=config, constants=QUESTIONS)
    evals, _ = ingest("trl", [str(tmp_path / "runs")], config=config, constants={**QUESTIONS, "seed": "auto"})
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == pytest.approx([0.1, 0.2, 0.5, 0.6])


def test_two_event_files_of_one_folder_are_one_run_continued_or_refused(tmp_path, config):
    events(tmp_path / "run", {2: 0.1, 4: 0.2, 6: 0.3}, name="1")
    events(tmp_path / "run", {6: 0.35, 8: 0.4}, name="2")
    evals, notes = ingest("trl", [str(tmp_path / "run")], config=config, constants=QUESTIONS)
    assert evals["avg_at_4"].to_list() == pytest.approx([0.1, 0.2, 0.35, 0.4])
    assert any("went back to step 6" in note for note in notes)
    events(tmp_path / "run", {2: 0.7}, name="3")
    with pytest.raises(BudgetError, match="step 2 after step 8"):
        ingest("trl", [str(tmp_path / "run")], config=config, constants=QUESTIONS)


def test_a_store_is_followed_once_something_was_logged(store, tmp_path):
    live = LiveLog(store)
    assert len(live.look().logs) == 2
    assert (live.trainer.name, live.remote, live.look().settled) == ("trl", True, True)
    # Whoever reads a store while it is being made makes both fail.
    sqlite3.connect(tmp_path / "new.db").close()
    assert LiveLog(f"sqlite:///{tmp_path}/new.db").look().logs == ()


def test_a_store_given_as_a_path_or_found_in_a_folder_is_read(bare, tmp_path, monkeypatch, capsys):
    import mlflow

    # MLflow writes stores of files only on request.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("db", "files"):
        (tmp_path / name).mkdir()
    files = mlflow.MlflowClient(tracking_uri=(tmp_path / "files" / "mlruns").as_uri())
    for name, client in (("db", copied(bare, tmp_path / "db")[1]), ("files", files)):
        for number in range(2):
            # The second one goes back before its first step: two runs in one.
            run = client.create_run(client.create_experiment(f"{name}{number}"), run_name=name).info.run_id
            for key, value in {**CONFIG, "seed": len(name)}.items():
                client.log_param(run, key, value)
            for time, step in enumerate((2, 4, 6) if not number else (4, 2)):
                for key, value in (("eval_reward", step / 10), ("eval_completions/mean_length", 5.0)):
                    client.log_metric(run, key, value, step=step, timestamp=time)
            client.set_terminated(run)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    capsys.readouterr()
    for source in ("db/mlflow.db", "db", "files/mlruns", "files"):
        status = main(["doctor", str(tmp_path / source), "--set", "questions=8"])
        said = capsys.readouterr().out
        assert status == 3
        assert "3 evaluations of 8 problems" in said
        (unread,) = (line for line in said.splitlines() if ": NOT READ" in line)
        assert unread.startswith("runs:/")
    assert main(["doctor", str(tmp_path), "--set", "questions=8", "--out", str(tmp_path / "out")]) == 3
    assert "6 evaluations of 2 runs" in capsys.readouterr().out
