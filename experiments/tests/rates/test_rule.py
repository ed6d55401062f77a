"""Which learning rate a cell has."""

from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.running.design import Rates

SIZES = st.integers(1, 2048)
RATE = st.floats(1e-7, 1e-1)


def rates(rule: str, *points: tuple[int, int, float]) -> Rates:
    return Rates(rule=rule, found={(n, size): rate for n, size, rate in points})


@given(SIZES, SIZES, SIZES, SIZES, RATE)
def test_a_rule_scales_with_the_batch_and_gives_the_anchor_at_its_own(
    n: int, size: int, other: int, more: int, rate: float
) -> None:
    ratio = other * more / (n * size)
    for rule, factor in (("constant", 1.0), ("linear", ratio), ("sqrt", sqrt(ratio))):
        anchored = rates(rule, (n, size, rate))
        assert anchored.at(n, size) == rate
        assert anchored.at(other, more) == pytest.approx(rate * factor)


@given(SIZES, SIZES, SIZES, SIZES, RATE)
def test_a_declared_rate_scales_as_one_that_was_searched_at_that_batch(
    n: int, size: int, other: int, more: int, rate: float
) -> None:
    for rule in ("constant", "linear", "sqrt"):
        declared = Rates(rule=rule, found={(n * size, 1): rate})
        assert declared.at(other, more) == rates(rule, (n, size, rate)).at(other, more)


def test_what_was_tuned_is_given_exactly() -> None:
    tuned = rates("tuned", (4, 8, 1.25e-4), (16, 8, 2.5e-4), (64, 8, 5e-4))
    for n, rate in ((4, 1.25e-4), (16, 2.5e-4), (64, 5e-4)):
        assert tuned.at(n, 8) == rate


def test_between_two_tuned_n_the_rate_is_interpolated_in_log_n() -> None:
    between = rates("tuned", (4, 8, 1e-4), (16, 8, 4e-4)).at(8, 8)
    # Half-way in log n: the geometric mean.
    assert between == pytest.approx(2e-4)


def test_beyond_the_tuned_n_the_nearest_ones_rate_is_held() -> None:
    tuned = rates("tuned", (4, 8, 1e-4), (16, 8, 4e-4))
    for n, rate in ((2, 1e-4), (256, 4e-4)):
        assert tuned.at(n, 8) == rate


def test_each_b_p_has_its_own_rates_and_another_b_p_those_of_the_nearest() -> None:
    tuned = rates("tuned", (4, 8, 1e-4), (4, 32, 3e-4))
    assert [tuned.at(4, size) for size in (4, 8, 15, 17, 32, 64)] == [1e-4, 1e-4, 1e-4, 3e-4, 3e-4, 3e-4]


@given(st.dictionaries(SIZES, RATE, min_size=1, max_size=5), SIZES)
def test_a_tuned_rate_never_leaves_those_of_its_neighbours(points: dict[int, float], n: int) -> None:
    tuned = rates("tuned", *((each, 8, rate) for each, rate in points.items()))
    rate = tuned.at(n, 8)
    near = [points[max(k for k in points if k <= n)]] if any(k <= n for k in points) else []
    near += [points[min(k for k in points if k >= n)]] if any(k >= n for k in points) else []
    assert min(near) <= rate <= max(near)


@given(RATE, RATE, st.integers(5, 63))
def test_interpolation_is_linear_in_the_logarithms(low: float, high: float, n: int) -> None:
    rate = rates("tuned", (4, 8, low), (64, 8, high)).at(n, 8)
    share = log(n / 4) / log(16)
    assert rate == pytest.approx(exp(log(low) + share * (log(high) - log(low))))
