"""The noise between seeds, pooled over rates."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.rates.noise import seed_noise

from .made import line


def test_one_seed_says_nothing_of_others() -> None:
    noise = seed_noise([line(1e-3, 0.5), line(2e-3, 0.6)])
    assert (noise.deviation, noise.freedom) == (0.0, 0)
    assert noise.error(line(1e-3, 0.5, error=0.03)) == 0.03
    assert noise.errors_needed(1) == pytest.approx(stats.norm.ppf(0.975))


def test_the_deviation_is_pooled_over_stable_rates_with_several_seeds() -> None:
    """Variances of one seed 2·0.01² (one degree of freedom) and 4·0.02² (three)."""
    noise = seed_noise([
        line(1e-3, 0.5, error=0.01, seeds=2), line(2e-3, 0.6, error=0.02, seeds=4), line(3e-3, 0.4),
        line(4e-3, 0.1, error=0.5, seeds=2, collapsed=1), line(5e-3, 0.2, error=0.5, seeds=2, diverged=1),
        line(6e-3, None, seeds=2, diverged=2),
    ])  # fmt: skip
    assert noise.freedom == 4
    assert noise.deviation == pytest.approx(sqrt((1 * 2 * 0.01**2 + 3 * 4 * 0.02**2) / 4))
    assert noise.error(line(1e-3, 0.5, error=0.001, seeds=2)) == pytest.approx(noise.deviation / sqrt(2))
    assert noise.errors_needed(1) == pytest.approx(stats.t.ppf(0.975, 4))


@given(st.floats(0.0, 0.2), st.integers(2, 6), st.integers(1, 6))
def test_rates_of_equal_errors_have_that_error(error: float, seeds: int, rates: int) -> None:
    grid = [line((i + 1) * 1e-3, 0.5, error=error, seeds=seeds) for i in range(rates)]
    assert seed_noise(grid).error(grid[0]) == pytest.approx(error)


@given(st.integers(1, 50), st.integers(0, 20))
def test_more_comparisons_and_fewer_seeds_need_more(comparisons: int, freedom: int) -> None:
    noise = seed_noise([line((i + 1) * 1e-3, 0.5, seeds=2) for i in range(freedom)])
    more = seed_noise([line((i + 1) * 1e-3, 0.5, seeds=2) for i in range(freedom + 1)])
    assert noise.errors_needed(comparisons) < noise.errors_needed(comparisons + 1)
    if freedom:
        assert more.errors_needed(comparisons) < noise.errors_needed(comparisons)
