"""The family of curves: what it contains, and its derivatives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier.posterior.model import rise

positions = st.floats(-8, 8)
tails = st.floats(0.03, 4.0)


def share(position: float, tail: float) -> float:
    return float(rise(np.array(position), np.array(tail)).share)


@given(positions)
def test_a_tail_of_one_is_the_sigmoid_in_the_logarithm_of_compute(position: float) -> None:
    assert share(position, 1.0) == pytest.approx(1 / (1 + np.exp(-position)), abs=1e-12)


@given(positions)
def test_no_tail_is_the_exponential(position: float) -> None:
    assert share(position, 1e-7) == pytest.approx(1 - 0.5 ** np.exp(position), abs=1e-5)


@given(st.floats(0.05, 2.0), st.floats(0.01, 100.0))
def test_it_is_the_power_law_with_the_inverse_exponent(tail: float, compute: float) -> None:
    scale = 1 / (2**tail - 1)
    assert share(np.log(compute), tail) == pytest.approx(1 - (1 + compute / scale) ** (-1 / tail), abs=1e-9)


@given(tails)
def test_half_of_the_gain_is_made_at_the_half_compute(tail: float) -> None:
    assert share(0.0, tail) == pytest.approx(0.5, abs=1e-12)


@given(positions, tails)
def test_its_derivatives_are_those_of_differences(position: float, tail: float) -> None:
    exact, step = rise(np.array(position), np.array(tail)), 1e-5
    by_position = (share(position + step, tail) - share(position - step, tail)) / (2 * step)
    by_tail = (share(position, tail + step) - share(position, tail - step)) / (2 * step)
    assert float(exact.by_position) == pytest.approx(by_position, abs=1e-8)
    assert float(exact.by_tail) == pytest.approx(by_tail, abs=1e-8)


def test_nothing_is_made_before_training_and_all_in_the_end() -> None:
    assert share(-np.inf, 0.7) == 0.0
    assert share(400.0, 0.7) == pytest.approx(1.0)
