"""Starting a run again: what must be said, what becomes lost, and what the limits count."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError, Counts, History, Ledger, LedgerError, Limits, Meter

STEP = {"trained": Counts(rollouts=32, response_tokens=480)}
EVALUATION = {"eval": Counts(rollouts=100, response_tokens=900)}


def charged(path, steps, **options):
    with Ledger.open(path, run_id="run", **options) as ledger:
        for step in steps:
            ledger.charge(step, STEP)
    return path


@pytest.mark.parametrize("charge", [STEP, EVALUATION, {}])
def test_a_ledger_with_charges_is_not_opened_without_a_word_on_where_it_goes_on(tmp_path, charge):
    path = charged(tmp_path / "a.ledger", [1])
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        ledger.charge(2, charge)
    before = path.read_bytes()
    with pytest.raises(LedgerError) as caught:
        Ledger.open(path, run_id="run")
    assert str(caught.value) == (
        f"{path}: has charges up to step 2, so say where this attempt goes on: resumed_from='last' keeps them all, "
        "resumed_from=STEP what was charged up to the step of a checkpoint, resumed_from=0 nothing; the rest was paid "
        "for and becomes lost work"
    )
    assert path.read_bytes() == before


def test_a_ledger_without_charges_begins_again_without_a_word(tmp_path):
    for attempt in (1, 2, 3):
        with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
            assert ledger.attempt == attempt


def test_what_was_lost_earlier_is_a_charge_too(tmp_path):
    path = charged(tmp_path / "a.ledger", [1])
    charged(path, [], resumed_from=0)
    with pytest.raises(LedgerError, match="all of them lost"):
        Ledger.open(path, run_id="run")


def test_last_keeps_every_step(tmp_path, caplog):
    path = charged(tmp_path / "a.ledger", [1, 2, 3])
    with Ledger.open(path, run_id="run", resumed_from="last") as ledger:
        ledger.charge(4, {})
    with Ledger.open(path, run_id="run", resumed_from="last") as ledger:
        assert ledger.used.rollouts == ledger.totals.paid.rollouts == 96
    assert History.read(path).resumed_from == (0, 3, 4)
    assert not caplog.records


@pytest.mark.parametrize("word", ["first", "", "3", -1])
def test_a_ledger_has_one_word_for_a_step(tmp_path, word):
    path = charged(tmp_path / "a.ledger", [1])
    with pytest.raises(BudgetError, match="resumed_from"):
        Ledger.open(path, run_id="run", resumed_from=word)


def test_what_becomes_lost_is_told_as_it_happens(tmp_path, caplog):
    path = charged(tmp_path / "a.ledger", [1, 2, 3])
    with Ledger.open(path, run_id="run", resumed_from=3) as ledger:
        ledger.charge(3, EVALUATION)
    charged(path, [], resumed_from=1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{path}: attempt 3 goes on after step 1, so what was charged to later steps is lost work from now on: "
        "64 rollouts for training and 100 of evaluations and pilots, which were paid for"
    )


def test_a_lost_evaluation_is_told_more_quietly(tmp_path, caplog):
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, EVALUATION)
    with caplog.at_level(logging.INFO):
        charged(path, [], resumed_from=0)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "0 rollouts for training and 100 of evaluations and pilots" in record.getMessage()


@pytest.mark.slow
@given(
    limit=st.integers(1, 300),
    restarts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
)
def test_a_run_never_pays_for_more_training_than_its_limit_however_often_it_starts_again(
    tmp_path_factory, limit, restarts
):
    path = tmp_path_factory.mktemp("run") / "a.ledger"
    last = 0
    for resumed_from, steps in restarts:
        step = min(resumed_from, last)
        with Ledger.open(path, run_id="run", resumed_from=step) as ledger:
            meter = Meter(ledger, Limits(rollouts=limit))
            while steps and (admission := meter.admit(step + 1, 32)):
                step, steps = step + 1, steps - 1
                meter.charge(step, STEP)
            assert not steps or f"and the budget is {limit:,}" in admission.reason
            meter.charge(step, EVALUATION)
            totals = History.read(path).totals()
            assert meter.paid == totals.used + totals.lost_training
            assert meter.paid.rollouts <= limit
            assert not meter.overshoot
        last = step


def test_a_limit_on_what_is_used_leaves_lost_work_out(tmp_path):
    path = tmp_path / "a.ledger"
    for _ in range(2):
        with Ledger.open(path, run_id="run", resumed_from=0) as ledger:
            meter = Meter(ledger, Limits(rollouts=100, counted="used"))
            for step in (1, 2, 3):
                assert meter.admit(step, 32)
                meter.charge(step, STEP)
            assert not meter.admit(4, 32)
            assert meter.used.rollouts == 96
    assert meter.paid.rollouts == 192
    assert History.read(path).limits == Limits(rollouts=100, counted="used")


@pytest.mark.parametrize("counted", ["paid", "used"])
def test_response_tokens_are_held_against_the_same(tmp_path, counted):
    path = charged(tmp_path / "a.ledger", [1, 2])
    with Ledger.open(path, run_id="run", resumed_from=0) as ledger:
        meter = Meter(ledger, Limits(response_tokens=900, counted=counted))
        assert bool(meter.admit(1, 32)) == (counted == "used")
        assert meter.overshoot.response_tokens == (60 if counted == "paid" else 0)


def test_limits_count_what_is_paid_or_used(tmp_path):
    with pytest.raises(BudgetError, match=r"'spent'.*'paid' or 'used'"):
        Limits(rollouts=1, counted="spent")
