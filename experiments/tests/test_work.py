"""What is kept of cells: outcomes within a budget, and checkpoints under a disk limit."""

import os
from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout import tables

from experiments.running import work
from experiments.running.cells import Cell
from experiments.stages.training import collect

from .made import cell


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def finish(one: Cell, *, budget: int, diverged_at: int | None = None, cohorts: tuple[str, ...] = ("trained",)) -> Path:
    """A folder as a worker leaves it: steps of 8 rollouts, evaluated every 32; the cohorts share a step's rollouts."""
    folder, steps = work.folder_of(one), budget // 8
    ledger = [(one.run_id, step, cohort, 8 // len(cohorts), 4, 4) for step in range(1, steps + 1) for cohort in cohorts]
    ledger += [(one.run_id, step, "eval", 32, 4, 4) for step in range(4, steps + 1, 4)]
    columns = ["run_id", "step", "cohort", "rollouts", "prompt_tokens", "response_tokens"]
    tables.write(pl.DataFrame(ledger, schema=columns, orient="row"), "ledger", folder / "ledger.parquet")
    rows = [
        {"run_id": one.run_id, "step": step, "rollouts": 8 * step, "tokens": 4 * step, "rollouts_per_problem": 4,
         "problems_per_batch": 2, "seed": one.seed, "problem_set": "easy", "split": "validation", "questions": 8,
         "samples": 4, "avg_at_4": 0.25}
        for step in range(0, steps + 1, 4)
    ]  # fmt: skip
    tables.write(pl.DataFrame(rows), "evals", folder / "evals.parquet")
    rates = [{"run_id": one.run_id, "step": r["step"], "problem_id": "p", "successes": 1, "samples": 4} for r in rows]
    tables.write(pl.DataFrame(rates), "pass_rates", folder / "pass_rates.parquet")
    paid = {"rollouts": 8 * steps, "prompt_tokens": 0, "response_tokens": 0}
    step = steps if diverged_at is None else diverged_at - 1
    work.set_done(folder, work.Done(rollouts=budget, step=step, diverged_at=diverged_at, paid=paid, lost=paid))
    start = {"run_id": one.start_id, "step": 0, "cohort": "eval", "rollouts": 32, "prompt_tokens": 9,
             "response_tokens": 9}  # fmt: skip
    tables.write(pl.DataFrame([start]), "ledger", work.start_of(one) / "ledger.parquet")
    return folder


def test_a_longer_run_holds_the_shorter_one() -> None:
    folder = finish(cell(rollouts=192), budget=192)
    assert work.finished(cell(rollouts=96), folder)
    assert work.finished(cell(rollouts=192), folder)
    assert not work.finished(cell(rollouts=256), folder)
    found = work.outcome(cell(rollouts=96), folder)
    assert found.evals["rollouts"].to_list() == [0, 32, 64, 96]
    assert found.ledger.filter(pl.col("cohort") == "trained")["rollouts"].sum() == 96
    assert set(found.pass_rates["step"]) == {0, 4, 8, 12}
    assert found.step == 12


def test_a_run_that_diverged_is_finished_at_every_budget_and_diverged_only_within_it() -> None:
    folder = finish(cell(rollouts=192), budget=160, diverged_at=20)
    for budget, diverged in ((96, False), (160, True), (192, True), (4096, True)):
        one = cell(rollouts=budget)
        assert work.finished(one, folder)
        assert work.outcome(one, folder).diverged == diverged


def test_a_pilot_with_filtered_groups_is_one_row_a_step(tmp_path: Path) -> None:
    """`filter_zero_variance` gives a step two cohorts, which are both the pilot's."""
    pilot, swept = cell(purpose="pilot", seed=900), cell()
    folders = {
        pilot.run_id: finish(pilot, budget=96, cohorts=("trained", "filtered")), swept.run_id: finish(swept, budget=96),
    }  # fmt: skip
    collect([swept], folders, tmp_path / "out", pilot=[pilot])
    ledger = tables.read(tmp_path / "out" / "ledger.parquet", "ledger")
    spent = ledger.group_by("cohort").agg(pl.col("rollouts").sum()).sort("cohort").rows()
    # 3 evaluations of 32 each, and the first of each seed once.
    assert spent == [("eval", 2 * 96 + 2 * 32), ("pilot", 96), ("trained", 96)]


def test_checkpoints_are_kept_under_a_limit_and_the_oldest_go_first() -> None:
    cells = [cell(seed=seed) for seed in range(3)]
    for age, one in enumerate(cells):
        folder = finish(one, budget=96)
        kept = folder / "checkpoints" / "step-000000012"
        kept.mkdir(parents=True)
        (kept / "tensors.safetensors").write_bytes(b"\0" * 1000)
        os.utime(folder / "done.json", (age, age))
    assert work.prune(3e-6) == []
    assert work.prune(2e-6) == [cells[0].run_id]
    assert [work.has_checkpoint(work.folder_of(one)) for one in cells] == [False, True, True]
    assert work.prune(0.0, keep={cells[1].run_id}) == [cells[2].run_id]
    # What was found stays; only extending it means training it again.
    assert work.finished(cells[0], work.folder_of(cells[0]))
