"""A ledger that is charged, killed and opened again: what is counted, what becomes lost, and what is refused."""

import logging
import re
import subprocess
import sys
from threading import Thread

import pytest
from isocompute.budget import BudgetError, Counts, History, Ledger, LedgerError, Limits, Meter

STEP = {"trained": Counts(rollouts=28, response_tokens=420), "filtered": Counts(rollouts=4, response_tokens=60)}
EVALUATION = {"eval": Counts(rollouts=100, response_tokens=900)}


def write(path, steps, **options):
    with Ledger.open(path, run_id="run", **options) as ledger:
        for step in steps:
            ledger.charge(step, STEP)
    return path


def test_threads_may_charge_at_once(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        threads = [Thread(target=lambda: [ledger.charge(1, STEP) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.used.rollouts == 400 * 32
        assert ledger.history().totals() == ledger.totals


@pytest.mark.slow
def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "a.ledger"
    first = Ledger.open(path, run_id="run")
    History.read(path)
    with pytest.raises(LedgerError, match=r"a\.ledger: another writer"):
        Ledger.open(path, run_id="run")
    code = f"from isocompute.budget import Ledger; Ledger.open({str(path)!r}, run_id='run')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another writer has this ledger open" in other.stderr
    first.charge(1, STEP)
    first.close()
    assert History.read(path).resumed_from == (0,)
    with Ledger.open(path, run_id="run", resumed_from=1) as second:
        assert second.used.rollouts == 32


def test_another_runs_ledger_a_closed_one_and_an_odd_run_id_are_refused(tmp_path):
    path = write(tmp_path / "a.ledger", [1])
    with pytest.raises(LedgerError, match="run run, not of other"):
        Ledger.open(path, run_id="other")
    for run_id in ("", "x" * 1001, "\udc80"):
        with pytest.raises(LedgerError, match="run_id"):
            Ledger.open(tmp_path / "new.ledger", run_id=run_id)
    for word in ("first", "3", -1):
        with pytest.raises(BudgetError, match="resumed_from"):
            Ledger.open(path, run_id="run", resumed_from=word)
    ledger = Ledger.open(path, run_id="run", resumed_from="last")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="the ledger is closed"):
        ledger.charge(2, STEP)
    assert ledger.used.rollouts == 32


def test_resuming_from_a_step_that_was_never_charged_is_refused(tmp_path):
    write(tmp_path / "a.ledger", [1, 2])
    with pytest.raises(LedgerError, match=r"from step 3, .* at step 2"):
        Ledger.open(tmp_path / "a.ledger", run_id="run", resumed_from=3)
    write(tmp_path / "a.ledger", [2], resumed_from=1)
    with pytest.raises(LedgerError, match="cannot resume from step 10"):
        Ledger.open(tmp_path / "new.ledger", run_id="run", resumed_from=10)
    assert not (tmp_path / "new.ledger").exists()


@pytest.mark.parametrize(
    ("step", "charge", "problem"),
    [
        (1, {"generated": Counts(rollouts=1)}, "'generated' is not a cohort; the cohorts are trained, filtered"),
        (-1, STEP, "step is -1"),
        (1.5, STEP, "step is 1.5"),
    ],
)
def test_a_charge_that_makes_no_sense_is_refused_and_not_recorded(tmp_path, step, charge, problem):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        before = ledger.history()
        with pytest.raises(BudgetError, match=problem):
            ledger.charge(step, charge)
        assert ledger.history() == before


@pytest.mark.parametrize("charge", [STEP, EVALUATION, {}])
def test_a_ledger_with_charges_is_not_opened_without_a_word_on_where_it_goes_on(tmp_path, charge):
    path = write(tmp_path / "a.ledger", [1])
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        ledger.charge(2, charge)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"up to step 2.*'last'.*=STEP .*=0 "):
        Ledger.open(path, run_id="run")
    assert path.read_bytes() == before


def test_sums_beyond_64_bits_are_refused_and_not_counted(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        ledger.charge(1, {"trained": Counts(rollouts=2**63 - 2)})
        before = ledger.history()
        with pytest.raises(LedgerError, match="step 2 is not counted, since a sum would exceed 64 bits"):
            ledger.charge(2, STEP)
        assert ledger.history() == before
        ledger.charge(2, {"trained": Counts(rollouts=1)})
        assert ledger.used.rollouts == 2**63 - 1


def test_last_keeps_every_step_and_what_becomes_lost_is_told_as_it_happens(tmp_path, caplog):
    path = write(tmp_path / "a.ledger", [1, 2, 3])
    with Ledger.open(path, run_id="run", resumed_from="last") as ledger:
        ledger.charge(3, EVALUATION)
        ledger.charge(4, {})
    with Ledger.open(path, run_id="run", resumed_from="last") as ledger:
        assert ledger.used.rollouts == 96
    assert History.read(path).resumed_from == (0, 3, 4)
    assert not caplog.records
    write(path, [], resumed_from=1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search("attempt 4 .* step 1.* 64 rollouts for training and 100 of eval", record.getMessage())


@pytest.mark.parametrize("counted", ["paid", "used"])
def test_a_limit_on_what_is_used_leaves_lost_work_out(tmp_path, counted):
    path = write(tmp_path / "a.ledger", [1, 2])
    for limits in (Limits(rollouts=100, counted=counted), Limits(response_tokens=900, counted=counted)):
        with Ledger.open(path, run_id="run", resumed_from=0) as ledger:
            meter = Meter(ledger, limits)
            assert (meter.used.rollouts, meter.standing.paid.rollouts) == (0, 64)
            assert bool(meter.admit(1, 48)) == (counted == "used")
        assert History.read(path).limits == limits


def test_what_was_charged_and_comes_back_with_a_checkpoint_is_paid_for_once(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
        # Two batches ahead, of which a checkpoint of step 1 holds both; both are charged before a kill.
        ledger.reserve(64)
        ledger.charge(2, STEP)
        ledger.charge(3, STEP)
    for _ in range(2):
        with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
            for _ in range(2):
                ledger.charge_lost(1, restored=64)
                ledger.take_back(1, restored=64)
                assert (
                    ledger.used.rollouts,
                    ledger.lost.rollouts,
                    ledger.lost.response_tokens,
                ) == (32, 0, 0)
            ledger.charge(2, STEP)
    # Of one batch that was charged, and one that was not, a checkpoint brings back 48: 16 were made in vain.
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        ledger.charge_lost(1, restored=48)
        ledger.take_back(1, restored=48)
        assert (ledger.used.rollouts, ledger.lost.rollouts) == (32, 16)
        assert ledger.lost_work()["rollouts"].min() > 0
        assert ledger.history().totals() == ledger.totals
