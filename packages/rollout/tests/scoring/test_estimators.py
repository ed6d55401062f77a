from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.evaluation import avg_at_k, best_at_k, wilson_interval, worst_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_estimators_are_means_over_all_draws_without_replacement(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = list(combinations(right, k))
    args = ([sum(right)], [len(right)], k)
    assert avg_at_k(*args)[0] == pytest.approx(np.mean([np.mean(d) for d in draws]))
    assert best_at_k(*args)[0] == pytest.approx(np.mean([any(d) for d in draws]))
    assert worst_at_k(*args)[0] == pytest.approx(np.mean([all(d) for d in draws]))


def test_k_beyond_the_samples_is_refused() -> None:
    with pytest.raises(RolloutError, match="k is 5"):
        best_at_k([1], [4], 5)


@given(st.integers(1, 10_000), st.data())
def test_wilsons_interval_holds_the_rates_from_which_a_proportion_is_two_errors_away(
    trials: int, data: st.DataObject
) -> None:
    rate = data.draw(st.integers(0, trials)) / trials
    lowest, highest = wilson_interval(rate, trials)
    assert 0 <= lowest <= rate <= highest <= 1
    for end in (lowest, highest):
        # The score test's own equation, which the interval solves for p: |rate - p| = 1.96 sqrt(p (1 - p) / trials).
        assert abs(rate - end) == pytest.approx(1.959964 * (end * (1 - end) / trials) ** 0.5, abs=1e-6)
    assert wilson_interval(1 - rate, trials) == pytest.approx((1 - highest, 1 - lowest))


def test_wilsons_interval_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for right, trials in ((0, 10), (3, 10), (10, 10), (0, 4096)):
        found = stats.binomtest(right, trials).proportion_ci(method="wilson")
        assert wilson_interval(right / trials, trials) == pytest.approx((found.low, found.high))
