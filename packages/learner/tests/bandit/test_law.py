from math import inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.bandit.estimator import Estimator
from isocompute.learner.bandit.law import fitted, largest_learning_rate, limit
from isocompute.learner.bandit.problem import Bandit
from isocompute.learner.errors import LearnerError


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_law_that_holds_is_found(a: float, b: float) -> None:
    n, t = (grid.reshape(-1) for grid in np.meshgrid([2.0, 4.0, 32.0], [10.0, 100.0, 1000.0]))
    law = fitted(n, t, a / (n * t) + b / t)
    assert law.per_rollout == pytest.approx(a, rel=1e-6)
    assert law.per_step == pytest.approx(b, rel=1e-6)
    assert law.largest_error < 1e-8
    np.testing.assert_allclose(law.at(n, t), a / (n * t) + b / t, rtol=1e-8)


def test_the_largest_error_says_that_a_law_does_not_hold() -> None:
    n, t = np.array([2.0, 2.0, 8.0, 8.0]), np.array([10.0, 1000.0, 10.0, 1000.0])
    assert fitted(n, t, 1 / np.sqrt(t)).largest_error > 0.5


def test_one_group_size_cannot_tell_the_two_terms_apart() -> None:
    with pytest.raises(LearnerError, match="needs two or more"):
        fitted(np.array([4.0, 4.0]), np.array([1.0, 2.0]), np.array([1.0, 0.5]))


def test_the_limit_needs_a_group_baseline() -> None:
    with pytest.raises(LearnerError, match="baseline: group"):
        limit(Estimator(rollouts_per_problem=4, baseline="none"), learning_rate=1.0)


def test_the_largest_rate_of_two_responses_has_a_closed_form() -> None:
    # E[exp(-theta X)] = 1 with X = 1, 0, -1 at probabilities 9/16, 6/16, 1/16 has the root exp(theta) = 9.
    assert largest_learning_rate(Bandit(rewards=(0.75, 0.25)), 2) == pytest.approx(2 * log(9), rel=1e-9)


def test_the_largest_rate_grows_about_in_proportion_to_the_group_and_is_unbounded_without_noise() -> None:
    noisy = Bandit(rewards=(0.75, 0.25))
    assert 1.9 < largest_learning_rate(noisy, 32) / largest_learning_rate(noisy, 16) < 2.2
    assert largest_learning_rate(Bandit(rewards=(1.0, 0.0)), 8) == inf
