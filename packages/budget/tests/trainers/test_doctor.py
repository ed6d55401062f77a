"""Runs found below folders."""

import json
import re
import shutil

import polars as pl
import pytest
from isocompute.budget.cli import main
from isocompute.budget.trainers.logs.sources import read_arguments
from reading_logs import DOCS, FIXTURES, logged_run, run_settings


def test_runs_of_several_trainers_are_found_and_written(tmp_path, capsys):
    shutil.copytree(DOCS, tmp_path / "runs" / "trl")
    shutil.copy(FIXTURES / "wandb" / "run.wandb", tmp_path / "runs")
    (tmp_path / "runs" / "notes.csv").write_text("a,b\n1,2\n")
    assert main(["doctor", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["run_id"].n_unique() == 3
    assert sorted(evals["rollouts_per_problem"].unique().to_list()) == [4, 16]
    # Every average is one quantity, whatever it was taken of.
    assert evals["avg_at_4"].null_count() == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [run["trainer"] for run in manifest["runs"]] == ["trl"] * 3
    said = capsys.readouterr().out
    assert "7,680 rollouts and 35,134 response tokens in 120 steps, by its log and formula" in said
    assert "--group learning_rate" in said


def test_a_run_of_two_loggers_counts_once(tmp_path):
    shutil.copytree(FIXTURES / "trl", tmp_path / "run")
    assert main(["doctor", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["rollouts"].to_list() == [32, 64, 96]


def test_all_that_is_missing_is_said_at_once(tmp_path, capsys):
    shutil.copy(FIXTURES / "verl" / "run.jsonl", tmp_path / "run.jsonl")
    assert main(["doctor", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "no run is understood completely" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs.csv"]
    assert "missing, for all runs:" in said
    for name in ("actor_rollout_ref.rollout.n", "data.train_batch_size", "questions"):
        assert f"--set {name}=VALUE" in said
    assert "--set algorithm.filter_groups.enable=true or false" in said


def test_the_reward_of_training_is_offered_loudly_where_there_is_no_evaluation(tmp_path, capsys):
    rows = [row for row in logged_run() if "train/loss" in row]
    for number, row in enumerate(rows):
        row["train/rewards/right/mean"], row["train/reward"] = number / 8, number / 8
    state = [{k.removeprefix("train/").replace("global_", ""): v for k, v in row.items()} for row in rows]
    (tmp_path / "n4").mkdir()
    (tmp_path / "n4" / "trainer_state.json").write_text(json.dumps({"log_history": state}))
    given = [word for name, value in run_settings().items() for word in ("--set", f"{name}={value}")]
    assert main(["doctor", str(tmp_path), "--out", str(tmp_path / "out"), *given]) == 0
    assert "note: TRAINING REWARD: measured on the problems that are trained on" in capsys.readouterr().out
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["split"].unique().to_list() == ["train"]
    assert evals["rollouts"].to_list() == [16, 32, 48, 64, 80, 96]


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
def store(tmp_path_factory):
    """An MLflow store with a run that was resumed in a second MLflow run."""
    pytest.importorskip("mlflow")
    import mlflow

    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    resumed = client.create_experiment("resumed")
    logged(client, resumed, first=0, last=60)
    logged(client, resumed, first=60, last=120, resume_from_checkpoint="out/checkpoint-60")
    return uri


@pytest.mark.slow
def test_a_resumed_run_of_two_mlflow_runs_is_one_run_of_one_seed(store, tmp_path, monkeypatch, capsys):
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
