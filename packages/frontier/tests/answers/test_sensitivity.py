import polars as pl
import pytest
from isocompute.frontier import FitConfig, FrontierError, fit, sensitivity, smallest_stable

EXP = FitConfig(form="exp", bootstrap=60)


def test_the_best_has_no_regret_and_the_order_turns_at_the_crossing(table: pl.DataFrame) -> None:
    fits = fit(table, EXP)
    for compute, best in ((2000, 4), (20000, 16)):
        found = sensitivity(fits, compute=compute)
        assert found.sort("regret")["rollouts_per_problem"][0] == best
        assert found["regret"].min() == 0
        assert (found["standing"] == "measured").all()
    assert (sensitivity(fits, compute=50_000)["standing"] == "extrapolated").all()
    with pytest.raises(FrontierError, match="beyond 4 times what any curve was measured at"):
        sensitivity(fits, compute=1e6)
    with pytest.raises(FrontierError, match="above 0"):
        sensitivity(fits, compute=0)


def with_sizes(table: pl.DataFrame) -> pl.DataFrame:
    """B_p = 8 as it is, 16 the same, 2 clearly lower."""
    parts = [
        table.with_columns(problems_per_batch=pl.lit(size), avg_at_4=pl.col("avg_at_4") - lower)
        for size, lower in ((2, 0.1), (8, 0.0), (16, 0.0))
    ]
    return pl.concat(parts)


def test_the_smallest_stable_size_is_the_first_that_is_as_good_as_any(table: pl.DataFrame) -> None:
    fits = fit(with_sizes(table), EXP)
    assert smallest_stable(fits, rollouts_per_problem=4) == 8
    with pytest.raises(FrontierError, match="no curve of n = 32"):
        smallest_stable(fits, rollouts_per_problem=32)


def test_a_size_that_is_only_not_known_to_be_worse_is_not_stable(table: pl.DataFrame) -> None:
    # Seeds that differ by 0.2: nothing is known of B_p = 2, 8 and 16 but that the intervals overlap.
    noisy = with_sizes(table).with_columns(
        avg_at_4=(pl.col("avg_at_4") + 0.1 * pl.col("seed") * (pl.col("rollouts") / 20480)).clip(0, 1)
    )
    sure, unsure = fit(with_sizes(table), EXP), fit(noisy, EXP)
    assert smallest_stable(sure, rollouts_per_problem=4, tolerance=0.05) == 8
    assert smallest_stable(unsure, rollouts_per_problem=4, tolerance=0.001) in (8, 16)
    assert smallest_stable(sure, rollouts_per_problem=4, tolerance=0.0) in (8, 16)
    assert smallest_stable(sure, rollouts_per_problem=4, tolerance=0.5) == 2


def test_a_setting_takes_the_curves_of_one_size_or_one_batch(table: pl.DataFrame) -> None:
    several = with_sizes(table)
    fixed_size = fit(several, FitConfig(form="exp", bootstrap=20, problems_per_batch=8))
    assert {(c.curve.problems_per_batch, c.curve.rollouts_per_problem) for c in fixed_size.curves} == {(8, 4), (8, 16)}
    fixed_batch = fit(several, FitConfig(form="exp", bootstrap=20, batch_rollouts=32))
    assert {(c.curve.problems_per_batch, c.curve.rollouts_per_problem) for c in fixed_batch.curves} == {(2, 16), (8, 4)}
    with pytest.raises(FrontierError, match=r"no curve has B_p = 3 and B = any"):
        fit(several, FitConfig(form="exp", bootstrap=20, problems_per_batch=3))
