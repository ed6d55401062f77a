from math import comb, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.bandit.law import fitted, largest_learning_rate, lundberg_exponent
from experiments.studies.bandit.problem import Bandit


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_law_that_holds_is_found(a: float, b: float) -> None:
    n, t = (grid.reshape(-1) for grid in np.meshgrid([2.0, 4.0, 32.0], [10.0, 100.0, 1000.0]))
    law = fitted(n, t, a / (n * t) + b / t)
    assert law.per_rollout == pytest.approx(a, rel=1e-6)
    assert law.per_step == pytest.approx(b, rel=1e-6)
    assert law.largest_error < 1e-8


def test_the_largest_error_says_that_a_law_does_not_hold() -> None:
    n, t = np.array([2.0, 2.0, 8.0, 8.0]), np.array([10.0, 1000.0, 10.0, 1000.0])
    assert fitted(n, t, 1 / np.sqrt(t)).largest_error > 0.5


CHANCES = st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).filter(lambda pair: pair[0] > pair[1] + 0.01)


@given(CHANCES)
def test_the_largest_rate_of_two_responses_has_a_closed_form(rewards: tuple[float, float]) -> None:
    # X is 1, 0 or -1, so that exp(theta) = P(X = 1)/P(X = -1); the bound is 2 theta.
    right, wrong = rewards
    theta = log(right * (1 - wrong) / (wrong * (1 - right)))
    assert lundberg_exponent(Bandit(rewards=rewards), 2) == pytest.approx(theta, rel=1e-9)
    assert largest_learning_rate(Bandit(rewards=rewards), 2) == pytest.approx(2 * theta, rel=1e-9)


@given(CHANCES, st.integers(2, 40))
def test_the_exponent_is_the_root_over_all_rewards_of_a_group(rewards: tuple[float, float], n: int) -> None:
    theta = lundberg_exponent(Bandit(rewards=rewards), n)
    (right, wrong), k = rewards, np.arange(n)
    chances = np.array([comb(n - 1, int(i)) for i in k], dtype=float) * wrong**k * (1 - wrong) ** (n - 1 - k)
    others = k / (n - 1)
    mean = (chances * (right * np.exp(-theta * (1 - others)) + (1 - right) * np.exp(theta * others))).sum()
    assert theta > 0
    assert mean == pytest.approx(1, rel=1e-9)


def test_the_largest_rate_grows_about_in_proportion_to_the_group() -> None:
    noisy = Bandit(rewards=(0.75, 0.25))
    assert 1.9 < largest_learning_rate(noisy, 32) / largest_learning_rate(noisy, 16) < 2.2


@pytest.mark.parametrize("rewards", [(1.0, 0.0), (1.0, 0.25), (0.75, 0.0)])
@pytest.mark.parametrize("n", [2, 8])
def test_no_rate_is_too_large_where_a_right_response_is_never_paid_less_than_wrong_ones(
    rewards: tuple[float, float], n: int
) -> None:
    assert largest_learning_rate(Bandit(rewards=rewards), n) == inf
