"""Prescriptions against fixed n."""

import polars as pl
import pytest
from isocompute.frontier import FrontierError, compare


def runs(scores: dict[tuple[int, int], float], rollouts: int = 100) -> pl.DataFrame:
    return pl.DataFrame(
        [{"rollouts_per_problem": n, "seed": s, "rollouts": rollouts, "avg_at_4": v} for (n, s), v in scores.items()]
    )


def test_seeds_that_both_n_have_are_compared_with_an_interval_where_there_are_two() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.51, (16, 0): 0.60, (16, 1): 0.612, (16, 2): 0.9, (8, 2): 0.8}
    four, eight, none = compare(runs(scores), prescribed=16, baselines=[4, 8, 2])
    # mean 0.101, half width t(0.975, 1) · 0.001 = 12.706 · 0.001
    assert four.interval == pytest.approx((0.101 - 0.0127062, 0.101 + 0.0127062), abs=1e-6)
    assert (eight.mean, eight.interval) == (pytest.approx(0.1), None)
    assert (none.mean, none.differences) == (None, ())


def test_runs_of_unequal_budgets_are_refused() -> None:
    uneven = pl.concat([runs({(4, 0): 0.1}), runs({(16, 0): 0.1}, rollouts=200)])
    with pytest.raises(FrontierError, match="equal budgets"):
        compare(uneven, prescribed=16, baselines=[4])
