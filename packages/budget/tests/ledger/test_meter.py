import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.managers import BaseManager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError, Counts, History, Ledger, Limits, Meter


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
        assert meter.admit(4, 8).reason == ("the run has taken 300 device-seconds before step 4, and the budget is 250")
        dear = Meter(ledger, Limits(money=2.5, price_per_device_hour=36.0))
        assert dear.admit(4, 8).reason == "the run has cost 3.00 before step 4, and the budget is 2.50"
        assert Meter(ledger, Limits(device_seconds=301)).admit(4, 8)
        ledger.note_limits(limits)
    history = History.read(path)
    assert history.limits == limits
    assert history.device_seconds == 300.0
    assert "device" not in " ".join(history.table().columns)
    # Unlike rollouts, time that was lost in a crash was paid for, and is held against the limit.
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        meter = Meter(ledger, limits)
        assert meter.used.rollouts == 8
        assert meter.device_seconds == 300.0
        assert not meter.admit(2, 8)
        ledger.charge(2, {}, device_seconds=1.5)
        assert ledger.device_seconds == 301.5
    assert History.read(path).device_seconds == 301.5


def test_negative_device_time_is_refused_and_nothing_charged(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        with pytest.raises(BudgetError, match="device_seconds is -1"):
            ledger.charge(1, taken(8), device_seconds=-1)
        assert ledger.used == Counts()


acts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["reserve", "charge", "release"]), st.integers(1, 40)), max_size=60
)


@pytest.mark.slow
@given(
    st.integers(1, 400),
    st.none() | st.integers(1, 4000),
    st.none() | st.integers(1, 400),
    st.none() | st.integers(1, 40),
    acts,
)
def test_what_several_ranks_are_admitted_never_exceeds_any_limit(tmp_path_factory, most, tokens, seconds, money, acts):
    path = tmp_path_factory.mktemp("run") / "a.ledger"
    limits = Limits(
        rollouts=most, response_tokens=tokens, device_seconds=seconds, money=money, price_per_device_hour=360.0
    )
    with Ledger.open(path, run_id="run") as ledger:
        meter = Meter(ledger, limits)
        held = {}
        for step, (rank, act, size) in enumerate(acts, start=1):
            if act == "reserve" and rank not in held:
                used, spent = meter.used, meter.device_seconds
                admission = meter.reserve(step, size, rank=rank)
                fits = (
                    used.rollouts + sum(n for _, n in held.values()) + size <= most
                    and (tokens is None or used.response_tokens < tokens)
                    and (seconds is None or spent < seconds)
                    and (money is None or spent / 10 < money)
                )
                assert bool(admission) == fits
                if admission:
                    held[rank] = (step, size)
            elif act == "charge" and rank in held:
                began, reserved = held.pop(rank)
                meter.charge(began, taken(reserved, tokens=size), device_seconds=size, rank=rank)
            elif act == "release" and rank in held:
                meter.release(held.pop(rank)[0], rank=rank)
            assert meter.reserved == sum(n for _, n in held.values())
            assert meter.used.rollouts + meter.reserved <= most
        assert ledger.history().totals().used == meter.used


def test_a_partial_charge_leaves_the_rest_of_a_reservation(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        meter = Meter(ledger, Limits(rollouts=64))
        assert meter.reserve(1, 32, rank=0)
        assert meter.reserve(1, 32, rank=1)
        meter.charge(1, taken(8), rank=0)
        assert meter.reserved == 24 + 32
        assert not meter.admit(1, 1)
        # Failed rollouts are generated again, and an evaluation was never reserved.
        meter.charge(1, {"failed": Counts(rollouts=5), "eval": Counts(rollouts=100)}, rank=0)
        assert meter.reserved == 24 + 32
        meter.charge(1, {"filtered": Counts(rollouts=4), "stale": Counts(rollouts=20)}, rank=0)
        assert meter.reserved == 32
        meter.charge(1, taken(40), rank=1)
        assert meter.reserved == 0


RANK = """
import sys
from multiprocessing.managers import BaseManager
from isocompute.budget import Counts
port, rank = map(int, sys.argv[1:])
BaseManager.register("meter")
manager = BaseManager(("127.0.0.1", port), authkey=b"ranks")
manager.connect()
meter = manager.meter()
step = taken = 0
while meter.reserve(step := step + 1, 7, rank=rank).admitted:
    meter.charge(step, {"trained": Counts(rollouts=7)}, rank=rank)
    taken += 7
print(taken)
"""


@pytest.mark.slow
def test_ranks_in_processes_of_their_own_charge_through_the_one_writer(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        meter = Meter(ledger, Limits(rollouts=1000))
        BaseManager.register("meter", callable=lambda: meter)
        server = BaseManager(("127.0.0.1", 0), authkey=b"ranks").get_server()

        def serve():
            with suppress(SystemExit):
                server.serve_forever()

        threading.Thread(target=serve, daemon=True).start()
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, str(server.address[1]), str(rank)], stdout=subprocess.PIPE)
            for rank in range(3)
        ]
        total = sum(int(process.communicate(timeout=120)[0]) for process in ranks)
        server.stop_event.set()
        assert total == meter.used.rollouts == ledger.history().totals().used.rollouts == 994
