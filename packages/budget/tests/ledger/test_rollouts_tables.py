from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, BudgetError, Counts, History, Ledger, Limits, Meter, counts_by_cohort

ROLLOUTS = pl.DataFrame({"cohort": ["trained", "eval"], "prompt_ids": [[1, 2], [3]], "response_ids": [[4, 5, 6], []]})


BAD_TABLES = [
    (ROLLOUTS.drop("cohort"), r"lack the column cohort \(they have prompt_ids, response_ids\)"),
    (ROLLOUTS.select("cohort", "response_ids"), r"lack the column prompt_ids \(they have cohort, response_ids\)"),
    (ROLLOUTS.select("cohort"), r"lack the columns prompt_ids, response_ids \(they have cohort\)"),
    (ROLLOUTS.with_columns(prompt_ids=pl.lit(3)), "column prompt_ids of the rollouts is Int32, not lists"),
    (ROLLOUTS.with_columns(cohort=pl.Series(["trained", None])), "row 2 of the rollouts has no cohort"),
    (ROLLOUTS.with_columns(response_ids=pl.Series([None, [1]])), "row 1 of the rollouts has no response_ids"),
    (
        ROLLOUTS.with_columns(cohort=pl.Series(["trained", "wasted"])),
        "row 2 of the rollouts: 'wasted' is not a cohort; the cohorts are trained, filtered, stale",
    ),
    (ROLLOUTS.lazy(), "must be counts by cohort or a rollouts table"),
    ([Counts(rollouts=1)], "must be counts by cohort or a rollouts table"),
]


@st.composite
def rollouts_tables(draw):
    """A rollouts table, and its rows as cohort, prompt length and response length."""
    lengths = st.integers(0, 7)
    rows = draw(st.lists(st.tuples(st.sampled_from(COHORTS), lengths, lengths), max_size=40))
    columns = {
        "cohort": [cohort for cohort, _, _ in rows],
        "prompt_ids": [[1] * prompt for _, prompt, _ in rows],
        "response_ids": [[2] * response for _, _, response in rows],
        "reward": [0.5] * len(rows),
    }
    schema = {"cohort": pl.String, "prompt_ids": pl.List(pl.Int32), "response_ids": pl.List(pl.Int32)}
    return pl.DataFrame(columns, schema={**schema, "reward": pl.Float32}), rows


@given(rollouts_tables())
def test_a_rollouts_table_is_counted_as_by_hand(case):
    table, rows = case
    by_hand = {}
    for cohort, prompt, response in rows:
        one = Counts(rollouts=1, prompt_tokens=prompt, response_tokens=response)
        by_hand[cohort] = by_hand.get(cohort, Counts()) + one
    found = counts_by_cohort(table)
    assert found == by_hand
    assert list(found) == [cohort for cohort in COHORTS if cohort in by_hand]


def test_cohorts_may_be_categories():
    table = ROLLOUTS.with_columns(pl.col("cohort").cast(pl.Categorical))
    assert counts_by_cohort(table) == {
        "trained": Counts(rollouts=1, prompt_tokens=2, response_tokens=3),
        "eval": Counts(rollouts=1, prompt_tokens=1, response_tokens=0),
    }


@pytest.mark.parametrize(("table", "said"), BAD_TABLES)
def test_what_cannot_be_counted_is_refused_and_charges_nothing(tmp_path, table, said):
    with Ledger.open(tmp_path / "a.ledger", run_id="a") as ledger:
        meter = Meter(ledger, Limits(rollouts=8))
        meter.reserve(1, 2, rank=0)
        before = ledger.path.stat().st_size
        for charge in (ledger.charge, meter.charge, partial(meter.charge, rank=0)):
            with pytest.raises(BudgetError, match=said):
                charge(1, table)
        assert ledger.path.stat().st_size == before
        assert (meter.used, meter.reserved) == (Counts(), 2)


@pytest.mark.slow
@given(rollouts_tables())
def test_a_rollouts_table_is_charged_as_its_counts_are(case):
    table, _ = case
    contents = []
    for charged in (table, counts_by_cohort(table)):
        with TemporaryDirectory() as folder, Ledger.open(Path(folder) / "a.ledger", run_id="a") as ledger:
            meter = Meter(ledger, Limits(rollouts=100))
            meter.charge(1, charged, device_seconds=2.5)
            meter.charge(2, charged)
            meter.sync()
            history = ledger.history()
            contents.append((history.charges, history.times, history.limits))
    assert contents[0] == contents[1]


@pytest.mark.parametrize("nothing", [{}, pl.DataFrame(), pl.DataFrame(schema={"cohort": pl.String})])
def test_a_table_without_rows_says_as_no_counts_do_that_the_step_was_reached(tmp_path, nothing):
    with Ledger.open(tmp_path / "a.ledger", run_id="a") as ledger:
        Meter(ledger, Limits(rollouts=8)).charge(3, nothing)
        assert ledger.used == Counts()
    assert History.read(tmp_path / "a.ledger").last_step == 3
