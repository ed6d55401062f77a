"""Shares of groups with signal."""

import random
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget.planning.signal import share_alike, share_counted, share_spread, spread_of


@pytest.mark.parametrize(("mean", "spread", "n"), [(0.3, 2.0, 2), (0.3, 2.0, 16), (0.05, 0.5, 64), (0.8, 20.0, 8)])
def test_the_share_over_a_spread_is_the_mean_of_its_problems_and_less_than_of_problems_alike(mean, spread, n):
    rng = random.Random(0)
    drawn = [share_alike(rng.betavariate(mean * spread, (1 - mean) * spread), n) for _ in range(8_000)]
    assert share_spread(mean, n, spread) == pytest.approx(sum(drawn) / len(drawn), abs=0.01)
    assert share_spread(mean, n, spread) < share_alike(mean, n)


@given(st.floats(0, 1), st.integers(2, 12), st.integers(2, 12))
def test_a_share_from_samples_is_right_on_average_up_to_their_number_and_beyond_it_no_more(rate, samples, n):
    chance = [comb(samples, k) * rate**k * (1 - rate) ** (samples - k) for k in range(samples + 1)]
    average = sum(p * share_counted(k, samples, n) for k, p in enumerate(chance))
    if n <= samples:
        assert average == pytest.approx(share_alike(rate, n), abs=1e-12)
    else:
        assert average <= share_alike(rate, n) + 1e-12


@settings(max_examples=30)
@given(st.floats(0.05, 0.95), st.integers(2, 64), st.floats(0.1, 100))
def test_the_spread_that_explains_a_share_gives_it(mean, n, spread):
    share = share_spread(mean, n, spread)
    assert share_spread(mean, n, spread_of(mean, n, share)) == pytest.approx(share, abs=1e-9)


def test_groups_of_two_at_a_pass_rate_of_18_percent():
    # 76.7 % without variance were measured in the thread CoursIA#10603, of problems that are not all alike.
    assert spread_of(0.18, 2, 1 - 0.767) == pytest.approx(3.74, abs=0.01)
