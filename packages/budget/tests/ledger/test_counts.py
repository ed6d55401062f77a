"""Counts, of numbers and of rollouts tables, and the limits that they are held against."""

import polars as pl
import pytest
from isocompute.budget import BudgetError, Counts, Ledger, Limits, Meter, counts_by_cohort
from isocompute.budget.ledger.limits import Standing

ROLLOUTS = pl.DataFrame({"cohort": ["trained", "eval"], "prompt_ids": [[1, 2], [3]], "response_ids": [[4, 5, 6], []]})


@pytest.mark.parametrize(
    ("made", "numbers", "said"),
    [
        *[(Counts, {"response_tokens": value}, "response_tokens is") for value in (-1, 1.5, "3", None, True, 2**63)],
        (Limits, {"rollouts": 0}, "limit on rollouts is 0"),
        (Limits, {"rollouts": 2.5}, r"limit on rollouts is 2\.5"),
        (Limits, {"device_seconds": 0}, "the limit on device_seconds is 0; it must be a finite number above 0"),
        (Limits, {"money": float("nan"), "price_per_device_hour": 1.0}, "the limit on money is nan"),
        (Limits, {"money": 5.0}, "needs price_per_device_hour"),
        (Limits, {"price_per_device_hour": -1.0}, r"price_per_device_hour is -1\.0"),
        (Limits, {"rollouts": 1, "counted": "spent"}, r"'spent'.*'paid' or 'used'"),
    ],
)
def test_counts_and_limits_that_cannot_be_are_refused_by_name(made, numbers, said):
    with pytest.raises(BudgetError, match=said):
        made(**numbers)


def test_a_step_that_generates_nothing_is_refused_only_by_time_and_money():
    def admitted(limits, rollouts):
        used = Counts(rollouts=9, response_tokens=9)
        return bool(Standing(limits=limits, used=used, device_seconds=9.0).admission(2, rollouts))

    assert admitted(Limits(rollouts=8, response_tokens=8), 0)
    assert not admitted(Limits(rollouts=8), 1)
    assert not admitted(Limits(device_seconds=9.0), 0)


def test_a_rollouts_table_is_counted_by_cohort_in_their_order():
    trained, evaluated = Counts(rollouts=2, prompt_tokens=4, response_tokens=6), Counts(rollouts=1, prompt_tokens=1)
    table = pl.concat([ROLLOUTS.reverse(), ROLLOUTS.head(1)])
    for cohorts in (pl.String, pl.Categorical):
        counted = counts_by_cohort(table.with_columns(pl.col("cohort").cast(cohorts)))
        assert list(counted.items()) == [("trained", trained), ("eval", evaluated)]
    assert counts_by_cohort(table.clear()) == {}


def test_a_rollouts_table_is_charged_as_its_counts_are(tmp_path):
    histories = []
    for name, charged in (("table", ROLLOUTS), ("counts", counts_by_cohort(ROLLOUTS))):
        with Ledger.open(tmp_path / name, run_id="a") as ledger:
            meter = Meter(ledger, Limits(rollouts=100))
            meter.charge(1, charged, device_seconds=2.5)
            meter.charge(2, charged)
            histories.append(ledger.history())
    assert histories[0].table().equals(histories[1].table())
    assert histories[0].times == histories[1].times


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (ROLLOUTS.drop("cohort"), r"lack the column cohort \(they have prompt_ids, response_ids\)"),
        (ROLLOUTS.select("cohort"), r"lack the columns prompt_ids, response_ids \(they have cohort\)"),
        (ROLLOUTS.with_columns(prompt_ids=pl.lit(3)), "column prompt_ids of the rollouts is Int32, not lists"),
        (ROLLOUTS.with_columns(cohort=pl.Series(["trained", None])), "row 2 of the rollouts has no cohort"),
        (ROLLOUTS.with_columns(response_ids=pl.Series([None, [1]])), "row 1 of the rollouts has no response_ids"),
        (ROLLOUTS.with_columns(cohort=pl.Series(["trained", "wasted"])), "row 2 of the rollouts: 'wasted' is not a"),
        (ROLLOUTS.lazy(), "must be counts by cohort or a rollouts table"),
        ([Counts(rollouts=1)], "must be counts by cohort or a rollouts table"),
    ],
)
def test_what_cannot_be_counted_is_refused_and_charges_nothing(tmp_path, table, said):
    with Ledger.open(tmp_path / "a.ledger", run_id="a") as ledger:
        meter = Meter(ledger, Limits(rollouts=8))
        before = ledger.history()
        for charge in (ledger.charge, meter.charge):
            with pytest.raises(BudgetError, match=said):
                charge(1, table)
        assert ledger.history() == before
        assert meter.used == Counts()
