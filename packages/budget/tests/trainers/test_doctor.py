"""Runs found below folders."""

import json
import shutil

import polars as pl
from isocompute.budget.cli import main
from isocompute.budget.trainers.doctor import Given, examine
from reading_logs import DOCS, FIXTURES, asked, lines, logged_run, run_settings


def test_runs_of_several_trainers_are_found_and_written_and_what_is_not_read_is_named(tmp_path, capsys):
    shutil.copytree(DOCS, tmp_path / "runs" / "trl")
    shutil.copy(FIXTURES / "wandb" / "run.wandb", tmp_path / "runs")
    (tmp_path / "runs" / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "runs" / "twice.csv").write_text("step,val-core/m/acc/mean@4,val-core/m/acc/mean@4\n1,0.5,0.5\n")
    assert main(["doctor", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 3
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["run_id"].n_unique() == 3
    assert sorted(evals["rollouts_per_problem"].unique().to_list()) == [4, 16]
    # Every average is one quantity, whatever it was taken of.
    assert evals["avg_at_4"].null_count() == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [run["trainer"] for run in manifest["runs"]] == ["trl"] * 3
    assert [unread["source"] for unread in manifest["unread"]] == [str(tmp_path / "runs" / "twice.csv")]
    said = capsys.readouterr().out
    assert "7,680 rollouts and 35,134 response tokens in 120 steps, by its log and formula" in said
    assert "--group learning_rate" in said


def test_a_run_of_two_loggers_counts_once():
    (patient,) = examine([str(FIXTURES / "trl")], Given()).patients
    assert [row["rollouts"] for row in patient.rows] == [32, 64, 96]


def test_all_that_is_missing_is_said_at_once(tmp_path):
    given = {"actor_rollout_ref.rollout.n": 4, "data.train_batch_size": 16, "questions": 400}
    given |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 8, "actor_rollout_ref.actor.ppo_epochs": 1}
    given |= {"algorithm.filter_groups.enable": "false"}
    found = asked(shutil.copy(FIXTURES / "verl" / "run.jsonl", tmp_path), given)
    assert found == ("verl", set(given), [0, 128, 256])


def test_the_reward_of_training_is_offered_loudly_where_there_is_no_evaluation(tmp_path):
    rows = [row for row in logged_run() if "train/loss" in row]
    for number, row in enumerate(rows):
        row["train/rewards/right/mean"], row["train/reward"] = number / 8, number / 8
    state = [{k.removeprefix("train/").replace("global_", ""): v for k, v in row.items()} for row in rows]
    lines(tmp_path / "n4" / "trainer_state.json", [{"log_history": state}])
    every = {name: str(value) for name, value in run_settings().items()}
    (patient,) = examine([str(tmp_path)], Given(every=every)).patients
    assert patient.training
    assert any(note.startswith("TRAINING REWARD") for note in patient.notes)
    assert [(row["split"], row["rollouts"]) for row in patient.rows] == [("train", 16 * k) for k in range(1, 7)]
