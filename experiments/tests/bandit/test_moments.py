import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.bandit.estimator import Estimator
from experiments.bandit.moments import closed_form, compositions, enumerated, multinomial
from experiments.bandit.problem import Bandit
from experiments.errors import ExperimentError

PROBABILITIES = st.floats(0, 1, allow_subnormal=False)
PROBLEMS = st.integers(2, 3).flatmap(
    lambda answers: st.tuples(
        st.tuples(*[PROBABILITIES] * answers), st.lists(st.floats(-3, 3), min_size=answers, max_size=answers)
    )
)
THREE = (Bandit(rewards=(1.0, 0.0, 0.0)), np.array([0.5, 0.0, -1.0]))


@given(st.integers(1, 7), st.integers(1, 5))
def test_counts_are_all_the_ways_to_divide_the_responses_and_their_probabilities_add_up(total: int, parts: int) -> None:
    counts = compositions(total, parts)
    assert (counts.sum(axis=1) == total).all()
    assert (counts >= 0).all()
    assert len({tuple(row) for row in counts.tolist()}) == len(counts)
    chances = np.arange(1, parts + 1) / sum(range(1, parts + 1))
    assert multinomial(counts, chances).sum() == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(PROBLEMS, st.integers(2, 6), st.sampled_from(["none", "group"]))
def test_the_closed_form_equals_the_enumeration(
    problem: tuple[tuple[float, ...], list[float]], n: int, baseline: str
) -> None:
    bandit, logits = Bandit(rewards=problem[0]), np.array(problem[1])
    estimator = Estimator(rollouts_per_problem=n, baseline=baseline)
    one, other = enumerated(bandit, logits, estimator), closed_form(bandit, logits, estimator)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-12)


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
    slope = [float(bandit.value(logits + s) - bandit.value(logits - s)) / 2e-6 for s in step]
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
    variance = {n: closed_form(bandit, logits, Estimator(rollouts_per_problem=n)).variance for n in (64, 128)}
    assert variance[64] / variance[128] == pytest.approx(4.0, rel=0.05)


def test_at_even_odds_of_two_answers_with_noise_it_falls_as_one_nth() -> None:
    bandit, logits = Bandit(rewards=(0.75, 0.25)), np.zeros(2)
    variance = {n: closed_form(bandit, logits, Estimator(rollouts_per_problem=n)).variance for n in (64, 128)}
    assert variance[64] / variance[128] == pytest.approx(2.0, rel=0.05)


def test_dividing_by_the_deviation_lengthens_the_mean_gradient_of_a_nearly_solved_problem_by_the_root_of_n() -> None:
    bandit, logits = Bandit(rewards=(1.0, 0.0)), np.array([12.0, 0.0])
    for n in (4, 16):
        plain = enumerated(bandit, logits, Estimator(rollouts_per_problem=n)).mean[0]
        scaled = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, scale="group")).mean[0]
        assert scaled / plain == pytest.approx(np.sqrt(n), rel=1e-3)


def test_what_cannot_be_enumerated_or_has_no_closed_form_is_refused() -> None:
    bandit, logits = Bandit(rewards=(0.5, 0.5, 0.5)), np.zeros(3)
    with pytest.raises(ExperimentError, match="at most 1,000,000 are enumerated"):
        enumerated(bandit, logits, Estimator(rollouts_per_problem=64))
    with pytest.raises(ExperimentError, match="needs scale: none"):
        closed_form(bandit, logits, Estimator(rollouts_per_problem=4, scale="group"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts_per_problem": 1}, "must be 2 or more"),
        ({"rollouts_per_problem": 0, "baseline": "none"}, "must be 1 or more"),
        ({"rollouts_per_problem": 4, "baseline": "none", "scale": "group"}, "needs baseline: group"),
        ({"rollouts_per_problem": 4, "scale": "batch"}, "must be one of none, group"),
    ],
)
def test_an_estimator_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Estimator(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rewards", "message"), [((1.0,), "2 or more"), ((1.0, 1.5), "from 0 to 1")])
def test_a_problem_that_cannot_be_is_refused(rewards: tuple[float, ...], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Bandit(rewards=rewards)
