"""Cells that a command trains, run as processes: their tables, their deaths, and what is said of wrong ones."""

import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.budget import History

from experiments.errors import ExperimentError
from experiments.running import work
from experiments.running.cells import CommandCell
from experiments.running.command import train
from experiments.running.work import Spool
from experiments.stages.sweep import collect

from .made import cells, command, home_of, last_step, preset, problems, same, started

pytestmark = pytest.mark.slow("commands as processes")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(cell: CommandCell) -> Path:
    """Train a cell; returns its folder."""
    home = home_of(cell)
    home.mkdir(parents=True, exist_ok=True)
    train({"b": "."}, cell, problems(), home)
    return home


def test_a_command_leaves_the_tables_of_a_cell_and_is_not_run_again(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    home = trained(one)
    evals, ledger = (pl.read_parquet(home / f"{name}.parquet") for name in ("evals", "ledger"))
    assert evals["run_id"].unique().to_list() == ledger["run_id"].unique().to_list() == [one.run_id]
    assert evals["step"].to_list() == [0, 2, 4, 6, 8, 10, 12]
    assert evals["rollouts"].to_list() == [8 * step for step in evals["step"]]
    trained_tokens = ledger.filter(cohort="trained")["response_tokens"]
    assert evals["tokens"].to_list() == [int(trained_tokens[:step].sum()) for step in evals["step"]]
    (row,) = evals.filter(step=4).drop("avg_at_4", "tokens").to_dicts()
    assert row == {
        "run_id": one.run_id,
        "step": 4,
        "rollouts": 32,
        "rollouts_per_problem": 2,
        "problems_per_batch": 4,
        "seed": 0,
        "problem_set": "easy",
        "split": "validation",
        "questions": 8,
        "samples": 4,
        "learning_rate": 2e-3,
        "base_model": "base",
    }
    assert ledger.filter(cohort="eval")["rollouts"].to_list() == [32] * 7
    timings = pl.read_parquet(home / "timings.parquet")
    assert timings["device_seconds"].to_list() == [0.25] * 12
    assert not (home / "pass_rates.parquet").exists()
    assert work.finished(one, home)
    assert [record.rollouts for record in Spool(home / "metrics.jsonl").records()] == evals["rollouts"].to_list()
    before = (home / "output.log").stat().st_mtime_ns
    assert (trained(one) / "output.log").stat().st_mtime_ns == before


def test_the_tables_of_cells_are_joined_without_what_no_log_gives(tmp_path: Path) -> None:
    made = cells(preset(tmp_path))[:2]
    for cell in made:
        trained(cell)
    collect(made, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "cells.json",
        "evals.parquet",
        "ledger.parquet",
    ]
    assert pl.read_parquet(tmp_path / "out" / "evals.parquet")["seed"].unique().to_list() == [0, 1]


def test_a_command_that_dies_goes_on_from_its_checkpoints_to_the_same_tables(tmp_path: Path) -> None:
    trained(cells(preset(tmp_path))[0])
    # The flag is part of the command, so that the run is another one.
    dying = cells(preset(tmp_path, command=command(kill_after="7")))[0]
    with pytest.raises(ExperimentError, match="exit code 137"):
        trained(dying)
    assert not work.finished(dying, home_of(dying))
    home = trained(dying)
    assert same(home, home_of(cells(preset(tmp_path))[0]))
    assert History.read(home / "run.ledger").totals().lost_training.rollouts == 8


def test_killed_with_its_worker_twice_a_cell_ends_as_one_left_alone(tmp_path: Path) -> None:
    """SIGKILL of the worker alone: the command ends with it, or two would write one ledger."""
    of = preset(tmp_path, command=command(pause="0.1"))
    one, home = cells(of)[0], home_of(cells(of)[0])
    for reached in (3, 8):
        process = started(one, problems(), base=".")
        while last_step(home) < reached:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert started(one, problems(), base=".").wait() == 0
    assert len(History.read(home / "run.ledger").resumed_from) == 3
    other = cells(preset(tmp_path))[0]
    trained(other)
    assert same(home, home_of(other))


def test_a_cell_that_is_asked_to_stop_is_not_finished_and_continues(tmp_path: Path) -> None:
    one = cells(preset(tmp_path, command=command(pause="0.2")))[0]
    home = home_of(one)
    work.ask_to_stop(home)
    trained(one)
    assert not work.finished(one, home)
    work.forget_stop(home)
    trained(one)
    assert work.finished(one, home)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"command": command(fault="fails")}, "the third line | ValueError: the reward is not defined"),
        ({"command": command(fault="fails")}, "its command ended with exit code 1; what it printed is in"),
        ({"command": ["no-program", *command()[1:]]}, "no-program cannot be started: No such file or directory"),
        ({"command": command(fault="no ledger")}, "wrote no ledger, so that nobody counted what it generated"),
        ({"command": command(fault="ends early")}, "its command ended with 88 of 96 rollouts in 11 of 12 steps"),
        ({"command": command(fault="no evaluations"), "log_settings": {}}, "holds no evaluation that TRL would have"),
        ({"command": command(fault="no first evaluation")}, "has no evaluation at step 0 (there are 2, 4, 6,"),
        ({"command": command(fault="other settings")}, "per_device_train_batch_size is 16 in the trainer's"),
        ({"log_settings": {"num_generations_eval": "2"}}, "has avg_at_2, and avg_at_4 is asked for"),
    ],
)
def test_a_command_that_is_no_run_of_its_cell_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        trained(cells(preset(tmp_path, **changes))[0])
    assert said in str(error.value)
