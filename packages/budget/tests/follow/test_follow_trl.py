"""TRL, installed, followed by what it logs to TensorBoard."""

import subprocess
import sys
from pathlib import Path

import pytest
from isocompute.budget import History
from isocompute.budget.cli import main
from isocompute.budget.commands.audit import Audit
from reading_logs import needed

pytestmark = pytest.mark.slow("a run of TRL's")

PROGRAM = Path(__file__).with_name("trl_program.py")


@pytest.fixture(autouse=True)
def _tensorboard(trl):
    needed("tensorboard")


def test_a_trl_run_that_is_killed_within_a_generation_batch_and_resumed_ends_at_its_budget(tmp_path, capsys):
    ledger, log = tmp_path / "run.ledger", tmp_path / "out"

    def run(killed, slow):
        flags = ["--ledger", str(ledger), "--log", str(log), "--rollouts", "28", "--trainer", "trl"]
        return main(["run", *flags, "--", sys.executable, str(PROGRAM), str(log), str(killed), str(slow)])

    # Two steps use a batch of four. Eight steps are taken, and five of them are in a checkpoint.
    assert run(9, 0) == 137
    assert History.read(ledger).totals().used.rollouts == 16
    assert run(0, 12) == 3
    out = capsys.readouterr().out
    assert "ended at its budget after step 11" in out
    assert "step 12 would take the run from 28 (4 of them lost) to 32 rollouts paid for, and the budget is 28" in out
    history = History.read(ledger)
    totals = history.totals()
    assert (totals.used.rollouts, totals.lost_training.rollouts, history.resumed_from) == (24, 4, (0, 5))
    made = sum(map(int, (tmp_path / "made.txt").read_text().split()))
    assert totals.used.rollouts + totals.lost_training.rollouts == made
    assert history.totals().used.response_tokens > 0


def test_every_difference_of_an_attached_run_that_was_killed_and_resumed_is_named(tmp_path):
    ledger, log = tmp_path / "run.ledger", tmp_path / "out"
    for killed, status in (("9", -9), ("0", 0)):
        program = [sys.executable, str(PROGRAM), str(log), killed, "0", str(ledger)]
        done = subprocess.run(program, check=False, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    found = Audit(str(log), ledger)
    assert (found.last.step, found.planned, found.last.rollouts) == (11, 160, 24)
    assert {d.mechanism: d.rollouts for d in found.differences} == {
        "steps not taken": -116,
        "several passes": -22,
        "whole batches": 2,
        "lost work": 4,
    }
    assert found.differences[-1].sentence.startswith(
        "attempt 1 lost what it generated of steps 6 to 8, since attempt 2 went on after step 5"
    )
    made = sum(map(int, (tmp_path / "made.txt").read_text().split()))
    assert made == found.last.rollouts + 4
    totals = History.read(ledger).totals()
    # Of a batch that two steps share, the half of step 6 is lost as well.
    assert (totals.used.rollouts, totals.lost_training.rollouts, History.read(ledger).resumed_from) == (22, 6, (0, 5))
