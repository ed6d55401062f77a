import polars as pl
import pytest
from isocompute.frontier import FrontierError, compare


def runs(scores: dict[tuple[int, int], float], rollouts: int = 100) -> pl.DataFrame:
    return pl.DataFrame(
        [{"rollouts_per_problem": n, "seed": s, "rollouts": rollouts, "avg_at_4": v} for (n, s), v in scores.items()]
    )


def test_a_clear_difference_is_won_and_its_mirror_lost() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.51, (16, 0): 0.60, (16, 1): 0.612}
    (won,) = compare(runs(scores), prescribed=16, baselines=[4])
    (lost,) = compare(runs(scores), prescribed=4, baselines=[16])
    assert (won.verdict, lost.verdict) == ("won", "lost")
    # mean 0.101, half width t(0.975, 1) · 0.001 = 12.706 · 0.001
    assert won.interval == pytest.approx((0.101 - 0.0127062, 0.101 + 0.0127062), abs=1e-6)


def test_seeds_that_disagree_leave_it_unresolved() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.60, (16, 0): 0.60, (16, 1): 0.55}
    assert compare(runs(scores), prescribed=16, baselines=[4])[0].verdict == "unresolved"


def test_one_pair_is_unresolved() -> None:
    assert compare(runs({(4, 0): 0.1, (16, 0): 0.9}), prescribed=16, baselines=[4])[0].verdict == "unresolved"


def test_runs_of_unequal_budgets_are_refused() -> None:
    uneven = pl.concat([runs({(4, 0): 0.1}), runs({(16, 0): 0.1}, rollouts=200)])
    with pytest.raises(FrontierError, match="equal budgets"):
        compare(uneven, prescribed=16, baselines=[4])
