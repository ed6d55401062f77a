"""Logs of any trainer as ``evals``."""

import json
import shutil

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.contract import tables
from isocompute.budget.trainers.evals import ingest
from reading_logs import FIXTURES, QUESTIONS, rollouts


def test_what_was_ingested_is_a_table(tmp_path, capsys):
    log = tmp_path / "run.jsonl"
    lines = [{"step": s, "data": {"val-core/m/acc/mean@4": 0.2 + 0.3 * s / (s + 5)}} for s in range(12)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = tmp_path / "out" / "evals.parquet"
    config = str(FIXTURES / "verl" / "config.json")
    given = ["--trainer", "verl", "--config", config, "--set", "questions=300"]
    assert main(["doctor", str(log), *given, "--out", str(table.parent)]) == 0
    assert len(tables.read(table, "evals")) == 12
    assert f"12 evaluations of 1 run in {table}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.jsonl", '{"loss": 1}\n{"loss": 2}\n', "line 1 has no step"),
        ("run.jsonl", '{"step": 1\n{"step": 2}\n', "line 1 is not JSON"),
        ("run.csv", "loss,reward\n1,2\n", "has no column of steps"),
        ("run.csv", "Step,a - reward,b - reward\n1,2,3\n", "mixes the runs a, b"),
        ("trainer_state.json", "[]", "is not the trainer_state.json"),
        ("run.jsonl", '{"step": 1, "loss": 2}\n', "holds no evaluation"),
    ],
)
def test_a_file_that_is_not_a_log_is_one_clear_error(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    given = {"actor_rollout_ref.rollout.n": "4", "data.train_batch_size": "4", "questions": "9"}
    with pytest.raises(BudgetError, match=message):
        ingest("verl", [str(tmp_path / name)], constants=given)


def test_a_folder_holds_one_run(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        shutil.copy(FIXTURES / "verl" / "run.jsonl", tmp_path / name)
    with pytest.raises(BudgetError, match=r"a.jsonl, b.jsonl"):
        ingest("verl", [str(tmp_path)], config=FIXTURES / "verl" / "config.json", constants=QUESTIONS)


@pytest.mark.parametrize("trainer", ["verl", "trl", "openrlhf", "prime-rl"])
def test_a_setting_that_no_trainer_knows_is_refused(trainer):
    with pytest.raises(BudgetError, match="wrold_size"):
        rollouts(trainer, [{"step": 1, "loss": 1.0}], None, wrold_size="8")
