"""TRL, installed, followed by what it logs to TensorBoard."""

import sys
from pathlib import Path

import pytest
from isocompute.budget import History
from isocompute.budget.cli import main
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
