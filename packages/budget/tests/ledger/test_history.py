import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, TRAINING_COHORTS, Counts, History, LedgerError
from isocompute.budget.contract import tables
from isocompute.budget.ledger import frames
from isocompute.budget.ledger.ledger import drop_copies

pytestmark = pytest.mark.slow("random histories")

counts = st.builds(
    Counts, rollouts=st.integers(1, 64), prompt_tokens=st.integers(0, 640), response_tokens=st.integers(0, 960)
)
charges = st.lists(
    st.tuples(st.integers(0, 6), st.dictionaries(st.sampled_from(COHORTS), counts, min_size=1)), max_size=8
)
attempts = st.lists(st.tuples(st.integers(0, 6), charges), min_size=1, max_size=4)


def history(attempts, *, run_id="run", where="x"):
    contents = []
    for resumed_from, charged in attempts:
        contents.append(frames.encode_attempt(run_id, resumed_from))
        contents += [frames.encode_charge(step, by_cohort) for step, by_cohort in charged]
    data = frames.head() + b"".join(frames.frame(n, payload) for n, payload in enumerate(contents))
    return History.decode(data, where)


def one(step, rollouts, cohort="trained"):
    return (step, {cohort: Counts(rollouts=rollouts)})


def rows(frame):
    return [tuple(row) for row in frame.select("step", "cohort", "rollouts").rows()]


@given(attempts)
def test_canonical_and_lost_add_up_to_what_was_paid(attempts):
    h = history(attempts)
    generated = [c for _, charged in attempts for _, by_cohort in charged for c in by_cohort.values()]
    assert h.totals().paid == sum(generated, Counts())
    both = pl.concat([h.table(), h.lost_work().drop("attempt")])
    for name in ("rollouts", "prompt_tokens", "response_tokens"):
        assert both[name].sum() == getattr(h.totals().paid, name)


@given(attempts)
def test_evaluations_and_pilots_of_a_step_have_one_canonical_attempt(attempts):
    seen = {}
    for step, code, attempt, *_ in history(attempts).fold.canonical():
        if COHORTS[code] not in TRAINING_COHORTS:
            assert seen.setdefault((step, code), attempt) == attempt


@given(attempts)
def test_the_tables_fit_their_schema(attempts):
    h = history(attempts)
    for frame in (h.table(), h.lost_work().drop("attempt")):
        assert dict(frame.schema) == {c.name: c.dtype() for c in tables.schema("ledger").columns}
    if not h.table().is_empty():
        assert tables.check(h.table(), "ledger", where="x").equals(h.table())


def test_steps_after_the_one_resumed_from_are_lost():
    h = history([(0, [one(1, 8), one(2, 9), one(3, 10)]), (1, [one(2, 11)])])
    assert rows(h.table()) == [(1, "trained", 8), (2, "trained", 11)]
    assert rows(h.lost_work()) == [(2, "trained", 9), (3, "trained", 10)]
    assert h.lost_work()["attempt"].to_list() == [1, 1]
    assert h.last_step == 2


def test_work_lost_once_does_not_come_back():
    h = history([(0, [one(1, 8), one(2, 9)]), (0, []), (0, [one(1, 10)])])
    assert rows(h.table()) == [(1, "trained", 10)]
    assert rows(h.lost_work()) == [(1, "trained", 8), (2, "trained", 9)]


def test_an_evaluation_repeated_at_a_step_taken_over_counts_once():
    start = [one(0, 1200, "eval"), one(1, 32)]
    h = history([(0, start), (0, [one(0, 1200, "eval")])])
    assert rows(h.table()) == [(0, "eval", 1200)]
    assert rows(h.lost_work()) == [(0, "eval", 1200), (1, "trained", 32)]


def test_a_copy_of_a_ledger_is_not_counted_again():
    early = history([(0, [one(1, 8)])], where="copy")
    late = history([(0, [one(1, 8), one(2, 9)]), (1, [one(2, 9)])], where="own")
    other = history([(0, [one(1, 8)])], run_id="other")
    assert drop_copies([early, late, other, late]) == [late, other]


def test_a_ledger_of_two_runs_is_refused():
    data = (
        frames.head() + frames.frame(0, frames.encode_attempt("a", 0)) + frames.frame(1, frames.encode_attempt("b", 0))
    )
    with pytest.raises(LedgerError, match="runs a and b"):
        History.decode(data, "x")


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"X", "record 1 is not one that this version knows"),
        (b"", "record 1 is not one that this version knows"),
        (b"E", "record 1 is not one that this version knows"),
        (frames.TIMED.pack(frames.TIMED_CHARGE, 1, 2.0) + b"12345", "record 1 is not one that this version knows"),
        (b"C" + frames.ENTRY.pack(1, 17, 1, 1, 1), "a charge of attempt 1 is not one that this version knows"),
        (b"C" + frames.ENTRY.pack(1, 0, -1, 1, 1), "a charge of attempt 1 is not one that this version knows"),
    ],
)
def test_a_whole_record_that_makes_no_sense_is_named(payload, problem):
    data = frames.head() + frames.frame(0, frames.encode_attempt("a", 0)) + frames.frame(1, payload)
    with pytest.raises(LedgerError, match=f"x: {problem}"):
        History.decode(data, "x")


def test_an_unknown_ancillary_record_is_left_out():
    contents = [
        frames.encode_attempt("a", 0),
        b"x",
        frames.encode_charge(1, {"trained": Counts(rollouts=1)}),
        b"zanything",
        frames.encode_charge(2, {"trained": Counts(rollouts=2)}),
    ]
    history = History.decode(
        frames.head() + b"".join(frames.frame(number, payload) for number, payload in enumerate(contents)), "x"
    )
    assert (history.totals().used.rollouts, history.records, history.last_step) == (3, 5, 2)
    assert history.origins == (None,)


def test_a_charge_before_any_attempt_is_named():
    data = frames.head() + frames.frame(0, frames.encode_charge(1, {"trained": Counts(rollouts=1)}))
    with pytest.raises(LedgerError, match="attempt must begin"):
        History.decode(data, "x")
