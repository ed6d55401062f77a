"""Ledgers as they are read: what survived + what was lost = what was paid, of one run and of several."""

import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from isocompute.budget import BudgetError, Counts, History, Ledger, LedgerError, account
from isocompute.budget.contract import tables


def run(path, run_id, steps, **options):
    with Ledger.open(path, run_id=run_id, **options) as ledger:
        for step in steps:
            ledger.charge(step, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)})
        ledger.charge(max(steps), {"eval": Counts(rollouts=100)})
    return path


@pytest.fixture
def sweep(tmp_path):
    """Two runs, one of which was killed after step 3 and resumed from step 1."""
    run(tmp_path / "sweep" / "a.ledger", "a", [1, 2, 3])
    run(tmp_path / "sweep" / "a.ledger", "a", [2, 3], resumed_from=1)
    run(tmp_path / "sweep" / "b" / "b.ledger", "b", [1, 2])
    return tmp_path / "sweep"


def test_canonical_and_lost_make_paid_by_every_group(sweep, tmp_path):
    total = account([sweep])
    for group in ("cohort", "phase", "step", "run"):
        sums = total.by(group)
        assert (sums["rollouts"] + sums["lost_rollouts"] == sums["paid_rollouts"]).all()
        assert sums["rollouts"].sum() == 5 * 32 + 200
        assert sums["paid_rollouts"].sum() == 7 * 32 + 300
        assert sums["paid_response_tokens"].sum() == 7 * 480
    assert total.by("run")["run_id"].to_list() == ["a", "b"]
    assert total.by("run")["lost_rollouts"].to_list() == [64 + 100, 0]
    with pytest.raises(BudgetError, match="'week'"):
        total.by("week")
    # A step that lost everything is shown.
    path = run(tmp_path / "c.ledger", "c", [1, 2, 3])
    run(path, "c", [2], resumed_from=1)
    third = account([path]).by("step").row(by_predicate=pl.col("step") == 3, named=True)
    assert (third["rollouts"], third["lost_rollouts"], third["paid_rollouts"]) == (0, 132, 132)


def test_copies_and_exported_tables_of_the_same_runs_count_once(sweep, tmp_path):
    once = account([sweep])
    table = tables.write(once.ledger, "ledger", tmp_path / "ledger.parquet")
    copy = shutil.copy(sweep / "a.ledger", tmp_path / "copy.ledger")
    again = account([sweep, sweep / "a.ledger", copy, table])
    assert again.ledger.equals(once.ledger)
    assert again.lost_work.equals(once.lost_work)
    assert again.tables == (str(table),)


def test_two_runs_that_charged_the_same_are_no_copies(tmp_path):
    paths = [run(tmp_path / name / "a.ledger", "a", [1, 2]) for name in ("here", "there")]
    with pytest.raises(LedgerError, match="run a and differ"):
        account(paths)


def test_a_copy_that_went_on_by_itself_is_none(tmp_path):
    path, copy = tmp_path / "a.ledger", tmp_path / "copy.ledger"
    with Ledger.open(path, run_id="a") as ledger:
        ledger.charge(1, {"trained": Counts(rollouts=32)})
        shutil.copy(path, copy)
        run(copy, "a", [2], resumed_from=1)
        assert account([path, copy]).by("run")["rollouts"].item() == 2 * 32 + 100
        ledger.charge(2, {"trained": Counts(rollouts=32)})
        with pytest.raises(LedgerError, match="run a and differ"):
            account([path, copy])


def test_anybody_can_read_it_with_sqlite(sweep):
    history = History.read(sweep / "a.ledger")
    with closing(sqlite3.connect(sweep / "a.ledger")) as sql:
        assert sql.execute("SELECT * FROM ledger").fetchall() == history.table().rows()
        assert sql.execute("SELECT * FROM lost_work").fetchall() == history.lost_work().rows()
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert sql.execute("SELECT resumed_from, charges FROM attempts").fetchall() == [(0, 4), (1, 3)]


def test_a_folder_with_a_damaged_ledger_or_without_charges_is_not_summed(sweep, tmp_path):
    (sweep / "b" / "b.ledger").write_bytes(b"xsqlite" + (sweep / "b" / "b.ledger").read_bytes()[7:])
    with pytest.raises(LedgerError, match=r"b\.ledger: not a ledger"):
        account([sweep])
    Ledger.open(tmp_path / "empty.ledger", run_id="a").close()
    with pytest.raises(LedgerError, match="nothing was charged yet"):
        account([tmp_path / "empty.ledger"])
