"""Ledgers against a model that is written another way: it keeps the events, and asks of each what came later."""

import os
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, TRAINING_COHORTS, BudgetError, Counts, History, Ledger, Limits, Meter
from isocompute.budget.ledger import fold
from isocompute.budget.ledger.counts import split

pytestmark = pytest.mark.slow("a campaign of random histories")

HISTORIES = int(os.environ.get("ISOCOMPUTE_HISTORIES", "50"))


@dataclass
class Model:
    """All events, in order; every answer looks at all of them."""

    events: list = field(default_factory=list)
    begins: list = field(default_factory=list)
    ends: list = field(default_factory=list)

    def begin(self, resumed_from):
        self.begins.append((len(self.events), resumed_from))
        self.end(resumed_from)

    def end(self, step):
        self.ends.append((len(self.events), step))

    def charge(self, step, counts, shares=(1,), seconds=0.0):
        self.events.append((step, None, None, seconds))
        for k in range(len(shares)):
            until, before = (
                {cohort: [x * sum(shares[:many]) // sum(shares) for x in three(c)] for cohort, c in counts.items()}
                for many in (k + 1, k)
            )
            for cohort in counts:
                part = of_three(a - b for a, b in zip(until[cohort], before[cohort], strict=True))
                self.events += [(step + k, cohort, part, 0.0)] if part else []

    def later(self, what, place):
        return [begin for begin in what if begin[0] > place]

    def last_step(self):
        reached = [min([e[0], *(r for _, r in self.later(self.ends, at))]) for at, e in enumerate(self.events)]
        return max(reached, default=0)

    def is_lost(self, place):
        step, cohort, *_ = self.events[place]
        begins = self.later(self.begins, place)
        if any(ended < step for _, ended in self.later(self.ends, place)):
            return True
        if cohort in TRAINING_COHORTS or not begins:
            return False
        return any(e[:2] == (step, cohort) for e in self.events[begins[0][0] :])

    def charges(self):
        """Every charge as step, cohort and counts: those that survived, and those that were lost."""
        found = ([], [])
        for at, (step, cohort, c, _) in enumerate(self.events):
            if cohort is not None:
                found[self.is_lost(at)].append((step, cohort, c))
        return found

    def seconds(self):
        # One after the other, as a ledger does: later Pythons add floats up more exactly.
        total = 0.0
        for *_, seconds in self.events:
            total += seconds
        return total


def three(c):
    return (c.rollouts, c.prompt_tokens, c.response_tokens)


def of_three(numbers):
    return Counts(**dict(zip(("rollouts", "prompt_tokens", "response_tokens"), numbers, strict=True)))


def total(charges, cohorts):
    return sum((c for _, cohort, c in charges if cohort in cohorts), Counts())


def check(history, model):
    """The sums of a history are the model's."""
    totals = history.totals()
    survived, lost = model.charges()
    assert totals.canonical == {cohort: total(survived, [cohort]) for cohort in COHORTS}
    assert totals.lost == {cohort: total(lost, [cohort]) for cohort in COHORTS}
    assert totals.used == total(survived, TRAINING_COHORTS)
    assert totals.paid == total(survived + lost, COHORTS)
    assert history.device_seconds == model.seconds()


def check_tables(history, model):
    for frame, charges in zip((history.table(), history.lost_work()), model.charges(), strict=True):
        expected = {}
        for step, cohort, c in charges:
            expected[step, cohort] = expected.get((step, cohort), Counts()) + c
        found = {}
        for _, step, cohort, *numbers in frame.select(frame.columns[:6]).iter_rows():
            found[step, cohort] = found.get((step, cohort), Counts()) + of_three(numbers)
        assert found == expected


def some(source, most):
    return Counts(
        rollouts=source.randint(1, most), prompt_tokens=source.randint(0, 90), response_tokens=source.randint(0, 90)
    )


def act(source, step, resumed_from):
    """One thing that a driver does: where it is then, the step that it charges, and what."""
    kind = source.choices(("step", "empty", "evaluate", "repeat", "late", "time"), (6, 1, 2, 2, 2, 1))[0]
    apart = source.choice(("eval", "pilot"))
    taken_over = source.randint(0, resumed_from)
    if kind == "step":
        counts = {"trained": some(source, 9)} | ({"filtered": some(source, 5)} if source.random() < 0.3 else {})
        return step + 1, step + 1, counts
    return {
        "empty": (step + 1, step + 1, {}),
        "evaluate": (step, step, {apart: some(source, 50)}),
        "repeat": (step, taken_over, {apart: some(source, 50)}),
        "late": (step, taken_over, {"failed": some(source, 5)}),
        "time": (step, source.randint(0, step), {}),
    }[kind]


def live(path, source, model, limits):
    """One attempt at a run, from a step that is not beyond the model's last."""
    last = model.last_step()
    resumed_from = source.choice((0, last, source.randint(0, last), source.randint(max(0, last - 2), last)))
    model.begin(resumed_from)
    foreseen = History.read(path).totals(resumed_from=resumed_from) if path.exists() else None
    # Whatever a sequential reading of the events accepts, opening must accept.
    with Ledger.open(path, run_id="run", resumed_from=resumed_from) as ledger:
        assert foreseen in (None, ledger.totals)
        meter = Meter(ledger, limits)
        step = resumed_from
        for _ in range(source.randint(0, 8)):
            moved, at, counts = act(source, step, resumed_from)
            rollouts = sum(counts[cohort].rollouts for cohort in ("trained", "filtered") if cohort in counts)
            if rollouts and not meter.admit(at, rollouts):
                break
            before, seconds = ledger.used.rollouts, source.choice((0.0, 0.0, 0.1, 7.3))
            shares = [source.randint(1, 3) for _ in range(source.randint(1, 4))] if source.random() < 0.3 else (1,)
            meter.charge(at, counts, shares=shares, device_seconds=seconds)
            model.charge(at, counts, shares, seconds)
            step = moved
            assert ledger.used.rollouts >= before
        if source.random() < 0.3:
            ledger.end(step)
            model.end(step)
    history = History.read(path)
    assert history.totals() == ledger.totals
    assert (history.device_seconds, history.last_step) == (ledger.device_seconds, model.last_step())
    check(history, model)
    return history


def test_random_histories_have_the_same_sums_live_reopened_and_in_the_model(tmp_path):
    source = random.Random(9)
    lost = late = 0
    for number in range(HISTORIES):
        path, model = tmp_path / f"{number}.ledger", Model()
        limits = Limits(rollouts=source.randint(10, 80))
        for _ in range(source.randint(2, 5)):
            history = live(path, source, model, limits)
            totals = history.totals()
            failed = totals.canonical["failed"].rollouts
            # However often a run starts again, it never pays for more training than its limit.
            assert totals.paid_training.rollouts - failed - totals.lost["failed"].rollouts <= limits.rollouts
        if number % 5 == 0:
            check_tables(history, model)
        lost += history.totals().lost_training.rollouts > 0
        late += failed > 0
    assert min(lost, late) > HISTORIES / 4


@given(
    accumulation=st.integers(1, 4),
    every=st.integers(1, 9),
    rollouts_per_pass=st.integers(1, 5),
    steps=st.integers(1, 12),
    checkpoints=st.lists(st.integers(0, 12), max_size=4),
)
def test_what_is_used_up_to_a_step_does_not_depend_on_where_a_run_was_killed(
    accumulation, every, rollouts_per_pass, steps, checkpoints
):
    """TRL generates in a process's first pass and then after every so many, from wherever it was resumed."""
    generated = 0

    def attempt(sql, resumed_from, killed_after):
        nonlocal generated
        number = fold.begin(sql, resumed_from, began="", host="", job=None, salt="")
        for passes in range((killed_after - resumed_from) * accumulation):
            step = resumed_from + 1 + passes // accumulation
            if passes % every == 0:
                used_in = [1 + resumed_from + k // accumulation for k in range(passes, passes + every)]
                shares = [used_in.count(s) for s in range(step, used_in[-1] + 1)]
                parts = split(Counts(rollouts=every * rollouts_per_pass), shares)
                fold.charge(sql, number, [(step + k, {"trained": part}) for k, part in enumerate(parts)], 0.0)
                generated += every * rollouts_per_pass
        if killed_after == steps:
            fold.end(sql, steps)

    with closing(sqlite3.connect(":memory:")) as undisturbed, closing(sqlite3.connect(":memory:")) as killed:
        for sql in (undisturbed, killed):
            sql.executescript(fold.SCHEMA)
        attempt(undisturbed, 0, steps)
        generated, resumed_from = 0, 0
        for checkpoint in checkpoints:
            if resumed_from <= checkpoint < steps:
                # Killed in the step after the checkpoint.
                attempt(killed, resumed_from, checkpoint + 1 if checkpoint + 1 < steps else checkpoint)
                resumed_from = checkpoint
        attempt(killed, resumed_from, steps)
        for sql in (undisturbed, killed):
            assert sql.execute("SELECT step, rollouts FROM ledger").fetchall() == [
                (step, accumulation * rollouts_per_pass) for step in range(1, steps + 1)
            ]
        assert fold.totals(killed).paid.rollouts == generated


@pytest.mark.parametrize("shares", [(), (1, 0), (1,) * 257])
def test_shares_that_cannot_be_are_refused(tmp_path, shares):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        with pytest.raises(BudgetError, match="share"):
            ledger.charge(1, {"trained": Counts(rollouts=1)}, shares=shares)
        assert not ledger.totals.paid
