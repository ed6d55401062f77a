import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.bandit.moments import enumerated
from experiments.studies.bandit.problem import Bandit, Estimator, policy

PROBABILITIES = st.floats(0, 1, allow_subnormal=False)
PROBLEMS = st.integers(2, 3).flatmap(
    lambda answers: st.tuples(
        st.tuples(*[PROBABILITIES] * answers), st.lists(st.floats(-3, 3), min_size=answers, max_size=answers)
    )
)
THREE = (Bandit(rewards=(1.0, 0.0, 0.0)), np.array([0.5, 0.0, -1.0]))


@settings(max_examples=60, deadline=None)
@given(PROBLEMS, st.integers(2, 6))
def test_the_mean_is_the_exact_gradient_and_a_group_baseline_takes_one_nth_of_it(
    problem: tuple[tuple[float, ...], list[float]], n: int
) -> None:
    bandit, logits = Bandit(rewards=problem[0]), np.array(problem[1])
    exact = bandit.gradient(logits)
    plain = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, baseline="none"))
    grouped = enumerated(bandit, logits, Estimator(rollouts_per_problem=n))
    np.testing.assert_allclose(plain.mean, exact, atol=1e-12)
    np.testing.assert_allclose(grouped.mean, (n - 1) / n * exact, atol=1e-12)


def test_the_exact_gradient_is_the_slope_of_the_expected_reward() -> None:
    bandit, logits = Bandit(rewards=(0.9, 0.2, 0.5)), np.array([0.3, -0.7, 1.1])
    step = 1e-6 * np.eye(3)
    slope = [float((policy(logits + s) - policy(logits - s)) @ np.asarray(bandit.rewards)) / 2e-6 for s in step]
    np.testing.assert_allclose(bandit.gradient(logits), slope, atol=1e-9)


def test_without_a_baseline_the_variance_is_that_of_one_response_divided_by_n() -> None:
    bandit, logits = THREE
    one = enumerated(bandit, logits, Estimator(rollouts_per_problem=1, baseline="none")).variance
    for n in (2, 4, 8):
        several = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, baseline="none")).variance
        assert several * n == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("scale", ["none", "group"])
def test_with_a_group_baseline_the_variance_falls_as_one_nth(scale: str) -> None:
    bandit, logits = THREE
    variance = {
        n: enumerated(bandit, logits, Estimator(rollouts_per_problem=n, scale=scale)).variance for n in (32, 64)
    }
    assert variance[32] / variance[64] == pytest.approx(2.0, rel=0.05)


def test_at_even_odds_of_two_answers_without_noise_it_falls_as_one_nth_squared() -> None:
    bandit, logits = Bandit(rewards=(1.0, 0.0)), np.zeros(2)
    variance = {n: enumerated(bandit, logits, Estimator(rollouts_per_problem=n)).variance for n in (32, 64)}
    assert variance[32] / variance[64] == pytest.approx(4.0, rel=0.1)


def test_at_even_odds_of_two_answers_with_noise_it_falls_as_one_nth() -> None:
    bandit, logits = Bandit(rewards=(0.75, 0.25)), np.zeros(2)
    variance = {n: enumerated(bandit, logits, Estimator(rollouts_per_problem=n)).variance for n in (32, 64)}
    assert variance[32] / variance[64] == pytest.approx(2.0, rel=0.1)


def test_dividing_by_the_deviation_lengthens_the_mean_gradient_of_a_nearly_solved_problem_by_the_root_of_n() -> None:
    bandit, logits = Bandit(rewards=(1.0, 0.0)), np.array([12.0, 0.0])
    for n in (4, 16):
        plain = enumerated(bandit, logits, Estimator(rollouts_per_problem=n)).mean[0]
        scaled = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, scale="group")).mean[0]
        assert scaled / plain == pytest.approx(np.sqrt(n), rel=1e-3)
