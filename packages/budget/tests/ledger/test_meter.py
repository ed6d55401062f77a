import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError, Counts, History, Ledger, Limits, Meter
from isocompute.budget.ledger.meter import Hook


def taken(rollouts, tokens=0):
    return {"trained": Counts(rollouts=rollouts, response_tokens=tokens)}


def test_device_time_and_money_stop_after_the_step_that_reaches_them(tmp_path):
    path = tmp_path / "a.ledger"
    limits = Limits(device_seconds=250, money=3.0, price_per_device_hour=36.0)
    with Ledger.open(path, run_id="run") as ledger:
        meter = Meter(ledger, limits)
        for step in (1, 2, 3):
            assert meter.admit(step, 8)
            meter.charge(step, taken(8), device_seconds=100.0)
        assert re.search(r"300 device-seconds before step 4.* 250", meter.admit(4, 8).reason)
        dear = Meter(ledger, Limits(money=2.5, price_per_device_hour=36.0))
        assert re.search(r"3\.00 before step 4.* 2\.50", dear.admit(4, 8).reason)
        ledger.note_limits(limits)
    history = History.read(path)
    assert (history.limits, history.device_seconds) == (limits, 300.0)
    # Unlike rollouts, time that was lost in a crash was paid for, and is held against the limit.
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        meter = Meter(ledger, limits)
        assert (meter.used.rollouts, meter.standing.device_seconds) == (8, 300.0)
        assert not meter.admit(2, 8)
        ledger.charge(2, {}, device_seconds=1.5)
        with pytest.raises(BudgetError, match="device_seconds is -1"):
            ledger.charge(2, taken(8), device_seconds=-1)
        assert (ledger.used.rollouts, ledger.device_seconds) == (8, 301.5)


@pytest.mark.slow
@given(
    st.integers(1, 400),
    st.none() | st.integers(1, 4000),
    st.none() | st.integers(1, 400),
    st.none() | st.integers(1, 40),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_what_is_admitted_never_exceeds_any_limit(tmp_path_factory, most, tokens, seconds, money, sizes):
    path = tmp_path_factory.mktemp("run") / "a.ledger"
    limits = Limits(
        rollouts=most, response_tokens=tokens, device_seconds=seconds, money=money, price_per_device_hour=360.0
    )
    with Ledger.open(path, run_id="run") as ledger:
        meter = Meter(ledger, limits)
        for step, size in enumerate(sizes, start=1):
            used, spent = meter.used, meter.standing.device_seconds
            fits = (
                used.rollouts + size <= most
                and (tokens is None or used.response_tokens < tokens)
                and (seconds is None or spent < seconds)
                and (money is None or spent / 10 < money)
            )
            assert bool(meter.admit(step, size)) == fits
            if fits:
                meter.charge(step, taken(size, tokens=size), device_seconds=size)
        assert meter.used.rollouts <= most
        assert ledger.history().totals().used == meter.used


def test_no_hook_holds_a_run_to_nothing(tmp_path):
    with pytest.raises(BudgetError, match="there is no limit to hold the run to"):
        Hook(tmp_path / "run.ledger", Limits(price_per_device_hour=2.0))
