"""What loggers leave behind, read without them: fixtures that they wrote, and the same run from each."""

import json
import pickle
import sqlite3
import zipfile
from pathlib import Path

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.evals import ingest
from isocompute.budget.trainers.logs.log import read_arguments
from reading_logs import FIXTURES

DOCS = Path(__file__).parents[2] / "docs" / "trl"
CONFIG = {
    "num_generations": 4,
    "num_generations_eval": 2,
    "per_device_train_batch_size": 8,
    "max_steps": 6,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "generation_batch_size": 16,
    "seed": 3,
    "num_iterations": 1,
    "learning_rate": 1e-4,
    "per_device_eval_batch_size": 8,
}


def entries():
    """The run that fixtures/wandb holds, as it was logged."""
    rows = []
    for s in range(1, 7):
        rows.append(
            {
                "train/loss": 0.1,
                "train/num_tokens": 100 * s,
                "train/completions/mean_length": 2.0 + s / 16,
                "train/epoch": s / 6,
                "train/global_step": s,
            }
        )
        if s % 2 == 0:
            rows.append(
                {
                    "eval/rewards/right/mean": s / 8,
                    "eval/runtime": 2.0,
                    "eval/samples_per_second": 8.0,
                    "eval/completions/mean_length": 2.0,
                    "train/global_step": s,
                }
            )
    return rows


def check(evals):
    assert evals["step"].to_list() == [2, 4, 6]
    assert evals["rollouts"].to_list() == [32, 64, 96]
    assert evals["avg_at_2"].to_list() == [0.25, 0.5, 0.75]
    assert evals["learning_rate"].to_list() == [1e-4] * 3
    assert evals["questions"].to_list() == [16] * 3


def test_wandbs_own_file_is_read_without_wandb():
    check(ingest("trl", [str(FIXTURES / "wandb" / "run.wandb")])[0])
    check(ingest("trl", [str(FIXTURES / "wandb")])[0])


def test_a_wandb_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    whole = (FIXTURES / "wandb" / "run.wandb").read_bytes()
    path = tmp_path / "run.wandb"
    for length in range(7, len(whole), 997):
        path.write_bytes(whole[:length])
        try:
            evals, _ = ingest("trl", [str(path)])
        except BudgetError:
            continue
        assert evals["rollouts"].to_list() == [32, 64, 96][: len(evals)]
    path.write_bytes(b"not of W&B")
    with pytest.raises(BudgetError, match="is no file of W&B's"):
        ingest("trl", [str(path)])


def test_trackios_database_is_read_without_trackio(tmp_path):
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, metrics TEXT)")
        database.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, config TEXT)")
        database.execute("INSERT INTO configs (run_id, config) VALUES ('a', ?)", [json.dumps(CONFIG)])
        for row in entries():
            database.execute("INSERT INTO metrics (run_id, run_name, metrics) VALUES ('a', 'r', ?)", [json.dumps(row)])
    check(ingest("trl", [str(tmp_path / "p.db")])[0])
    (tmp_path / "q.db").write_bytes(b"something else")
    with pytest.raises(BudgetError, match="Trackio"):
        ingest("trl", [str(tmp_path / "q.db")])


def test_a_trainers_arguments_are_read_without_unpickling():
    for n in (4, 16):
        found = read_arguments(DOCS / f"n{n}" / "training_args.bin")
        assert (found["num_generations"], found["generation_batch_size"], found["seed"]) == (n, 64, n)
        assert found["learning_rate"] == 5e-4


class Trap:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_arguments_that_would_run_code_do_not(tmp_path):
    for name, content in (("a", {"num_generations": 4, "x": Trap(tmp_path / "ran")}), ("b", [Trap(tmp_path / "ran")])):
        path = tmp_path / f"{name}.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        assert read_arguments(path) == ({"num_generations": 4} if name == "a" else {})
    assert not (tmp_path / "ran").exists()
    (tmp_path / "c.bin").write_bytes(b"PK")
    with pytest.raises(BudgetError, match=r"not the training_args.bin"):
        read_arguments(tmp_path / "c.bin")


def test_a_damaged_event_file_is_one_clear_error_or_read_as_far_as_it_goes(tmp_path):
    (events,) = (FIXTURES / "trl" / "events").iterdir()
    whole = events.read_bytes()
    path = tmp_path / "events.out.tfevents.x"
    for length in range(0, len(whole), 4_001):
        path.write_bytes(whole[:length])
        try:
            evals, _ = ingest("trl", [str(path)])
        except BudgetError:
            continue
        assert evals["rollouts"].to_list() == [32, 64, 96][: len(evals)]
