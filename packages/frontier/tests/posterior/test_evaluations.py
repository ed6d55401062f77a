"""Runs from an ``evals`` table."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import FrontierError
from isocompute.frontier.posterior.runs import Run, Setting, runs_of
from real_runs import labelled


def made(table: pl.DataFrame, **changed: object) -> list[Run]:
    asked: dict[str, object] = {"metric": "avg_at_4", "unit": "rollouts", "split": "validation", **changed}
    return runs_of(table, **asked)  # type: ignore[arg-type]


def test_each_run_is_one_record_sorted_by_compute(table: pl.DataFrame) -> None:
    runs = made(table)
    assert [r.name for r in runs] == ["n = 4, seed 0", "n = 4, seed 1", "n = 16, seed 0", "n = 16, seed 1"]
    assert [r.run_id for r in runs] == ["n4s0", "n4s1", "n16s0", "n16s1"]
    assert runs[0].cell == Setting(rollouts_per_problem=4, problems_per_batch=8)
    assert all((np.diff(r.compute) > 0).all() and len(r.compute) == 21 for r in runs)
    own = table.filter(pl.col("run_id") == "n16s1").sort("rollouts")
    np.testing.assert_array_equal(runs[3].reward, own["avg_at_4"].to_numpy())
    assert all(r.error_is_known and (r.trials == 1200).all() for r in runs)


@given(st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_rows_does_not_matter(random: object) -> None:
    rows = labelled().filter(pl.col("sweep") == "panel")
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for a, b in zip(made(rows), made(rows[order]), strict=True):
        assert (a.name, a.cell, a.run_id, a.seed) == (b.name, b.cell, b.run_id, b.seed)
        np.testing.assert_array_equal(a.reward, b.reward)
        np.testing.assert_array_equal(a.error, b.error)


def test_a_name_says_only_what_differs(table: pl.DataFrame) -> None:
    other = table.with_columns(problems_per_batch=pl.lit(32, dtype=pl.Int64), run_id=pl.col("run_id") + "b")
    rated = [t.with_columns(learning_rate=pl.lit(rate)) for t, rate in ((table, 1e-3), (other, 2e-3))]
    names = [r.name for r in made(pl.concat(rated).with_columns(recipe=pl.lit("plain")), group="recipe")]
    assert names[0] == "n = 4, B_p = 8, seed 0"
    assert all("recipe" not in name for name in names)


def test_runs_at_two_rates_are_of_two_cells(table: pl.DataFrame) -> None:
    other = table.with_columns(learning_rate=pl.lit(2e-3), run_id=pl.col("run_id") + "-fast")
    runs = made(pl.concat([table.with_columns(learning_rate=pl.lit(None, dtype=pl.Float64)), other]))
    assert [r.cell.learning_rate for r in runs[:4]] == [None, None, 2e-3, 2e-3]
    assert [r.name for r in runs[:4:2]] == ["n = 4, no learning rate, seed 0", "n = 4, learning rate 0.002, seed 0"]
    grouped = made(other, group="learning_rate")
    assert {r.cell.group for r in grouped} == {""}


def test_without_questions_only_ratios_of_errors_mean_something(table: pl.DataFrame) -> None:
    for bare in (table.drop("questions", "samples"), table.with_columns(samples=pl.lit(None, dtype=pl.Int64))):
        runs = made(bare)
        assert all(r.trials is None and not r.error_is_known for r in runs)
        assert all(0.003 < r.error[0] < 0.03 and (r.error == r.error[0]).all() for r in runs)


def test_pass_rates_count_as_more_responses_than_were_sampled(table: pl.DataFrame) -> None:
    rng = np.random.default_rng(0)
    rates = rng.beta(0.3, 0.5, 300)
    rows, shares = [], []
    for run_id, step in table.select("run_id", "step").iter_rows():
        successes = rng.binomial(4, rates)
        shares.append(successes.mean() / 4)
        rows += [
            {"run_id": run_id, "step": step, "problem_id": f"{i:03}", "successes": int(s), "samples": 4}
            for i, s in enumerate(successes)
        ]
    runs = made(table.with_columns(avg_at_4=pl.Series(shares)), pass_rates=pl.DataFrame(rows))
    assert all(r.trials is not None and (r.trials > 1300).all() and r.error_is_known for r in runs)
    np.testing.assert_allclose(runs[0].error_at(runs[0].reward), runs[0].error, rtol=0.02)


def test_a_reward_in_percent_is_read_and_one_that_is_no_number_is_not(table: pl.DataFrame) -> None:
    percent = table.with_columns(
        avg_at_4=pl.when(pl.col("run_id") == "n4s0").then(100 * pl.col("avg_at_4")).otherwise("avg_at_4")
    )
    assert made(percent)[0].reward.max() > 1
    assert all(np.isfinite(r.error).all() for r in made(percent))
    with pytest.raises(FrontierError, match=r"avg_at_4 .*n = 4.*seed 0"):
        made(table.with_columns(avg_at_4=pl.when(pl.col("run_id") == "n4s0").then(None).otherwise("avg_at_4")))
