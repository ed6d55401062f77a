"""What is read of a ledger, and when a command is not begun or not believed; no process is started."""

from pathlib import Path

import pytest
from isocompute.budget import Counts, History, Ledger

from experiments.errors import ExperimentError
from experiments.running.command import timings_of, train, write_tables

from .made import SCRIPT, cells, home_of, preset, problems


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def charge(path: Path, steps: range, *, seconds: float = 1.0, rollouts: int = 8) -> None:
    """An attempt that takes some steps."""
    with Ledger.open(path, run_id="r", resumed_from=steps.start - 1) as ledger:
        for step in steps:
            ledger.charge(step, {"trained": Counts(rollouts=rollouts)}, device_seconds=seconds)


def test_the_time_of_a_step_is_that_of_the_attempt_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    charge(path, range(1, 6), seconds=1.0)
    charge(path, range(4, 7), seconds=3.0)
    found = timings_of(History.read(path), "id", devices=2)
    assert found["device_seconds"].to_list() == [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    assert found["seconds"].to_list() == [0.5, 0.5, 0.5, 1.5, 1.5, 1.5]


def test_a_ledger_without_times_has_no_timings(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    charge(path, range(1, 3), seconds=0.0)
    assert timings_of(History.read(path), "id", devices=1).is_empty()


@pytest.mark.slow
def test_a_run_beyond_its_budget_is_refused(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    home = home_of(one)
    home.mkdir(parents=True)
    charge(home / "run.ledger", range(1, 13), rollouts=9)
    with pytest.raises(ExperimentError, match=r"its command ended with 108 of 96 rollouts in 12 of 12 steps"):
        write_tables(one, home, {}, logs=str(home / "checkpoints"), questions=8)


def test_a_script_that_changes_under_a_sweep_is_refused(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    script = tmp_path / SCRIPT
    script.write_text(script.read_text().replace("/ 20", "/ 30"))
    with pytest.raises(ExperimentError, match=r"stand_in.py changed since the sweep began"):
        train({"b": "."}, one, problems(), home_of(one))
