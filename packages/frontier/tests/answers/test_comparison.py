"""Prescriptions against fixed n."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FrontierError, compare
from scipy import stats


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


def test_seeds_that_disagree_and_one_seed_alone_leave_it_unresolved() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.60, (16, 0): 0.60, (16, 1): 0.55}
    assert compare(runs(scores), prescribed=16, baselines=[4])[0].verdict == "unresolved"
    found = compare(runs({(4, 0): 0.1, (16, 0): 0.9}), prescribed=16, baselines=[4])[0]
    assert found.verdict == "unresolved"
    assert "over 1 seed, unresolved" in found.summary()


def test_many_baselines_do_not_make_a_winner() -> None:
    # Alone, each would be won at 5 %; of four, the best p of 0.02 is 0.08.
    rng = np.random.default_rng(0)
    scores = {(n, s): float(rng.normal(0.5, 0.01)) for n in (4, 8, 16, 32) for s in range(4)}
    scores |= {(64, s): 0.5 + 0.0115 + 0.002 * s for s in range(4)}
    alone = [compare(runs(scores), prescribed=64, baselines=[n])[0] for n in (4, 8, 16, 32)]
    together = compare(runs(scores), prescribed=64, baselines=[4, 8, 16, 32])
    for one, adjusted in zip(alone, together, strict=True):
        assert one.p_value is not None
        assert adjusted.p_value is not None
        expected = stats.ttest_1samp(one.differences, 0.0).pvalue
        assert one.p_value == pytest.approx(expected)
        assert adjusted.p_value >= one.p_value
        assert adjusted.comparisons == 4
    # Holm: the smallest times four, the next times three, and never falling.
    smallest = min(a.p_value for a in alone if a.p_value is not None)
    assert min(a.p_value for a in together if a.p_value is not None) == pytest.approx(min(4 * smallest, 1.0))


@pytest.mark.slow
def test_of_equal_n_few_are_said_to_have_won() -> None:
    rng = np.random.default_rng(1)
    won = lost = 0
    for _ in range(150):
        seeds = rng.normal(0, 0.02, 3)
        scores = {(n, s): 0.5 + seeds[s] + rng.normal(0, 0.01) for n in (4, 8, 16, 32, 64, 128) for s in range(3)}
        verdicts = [c.verdict for c in compare(runs(scores), prescribed=4, baselines=[8, 16, 32, 64, 128])]
        won += "won" in verdicts
        lost += "lost" in verdicts
    # 5 % of either or the other: 7 or 8, and more than 17 once in a thousand.
    assert won + lost <= 17


def test_runs_of_unequal_budgets_are_refused() -> None:
    uneven = pl.concat([runs({(4, 0): 0.1}), runs({(16, 0): 0.1}, rollouts=200)])
    with pytest.raises(FrontierError, match="equal budgets"):
        compare(uneven, prescribed=16, baselines=[4])
