"""How often runs fail."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.posterior.decision import failure_rates


def rates(failed: list[int], runs: list[int], rate: list[float] | None = None) -> np.ndarray:
    at = np.zeros((len(runs), 2))
    at[:, 1] = rate or 0.0
    return failure_rates(np.array(failed), np.array(runs), at)


def test_a_setting_that_failed_is_expected_to_fail_more_often_than_its_siblings() -> None:
    mean = rates([1, 0, 0, 0, 0], [4] * 5)
    assert 0.06 < mean[0] < 0.25
    assert (mean[1:] < mean[0] - 0.03).all()


def test_many_runs_of_settings_that_differ_keep_their_own_rates() -> None:
    mean = rates([30, 0], [40, 40])
    assert abs(mean[0] - 0.75) < 0.05
    assert mean[1] < 0.05


def test_a_setting_without_a_run_has_about_the_rate_of_the_others() -> None:
    mean = rates([5, 5, 5, 5, 0], [20, 20, 20, 20, 0])
    assert abs(mean[4] - 0.25) < 0.06


def test_where_twice_the_rate_fails_always_the_rate_itself_is_little_suspected() -> None:
    # Two n at three rates, of which the highest failed.
    mean = rates([0, 0, 1, 0, 0, 1], [1, 2, 1, 1, 2, 1], rate=[-1, 0, 1] * 2)
    assert mean[2] > 0.4
    assert mean[1] < 0.2
    assert mean[0] < mean[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-2, 2)), min_size=1, max_size=6))
def test_rates_lie_within_0_and_1_and_do_not_depend_on_the_order(counts: list[tuple[int, int, float]]) -> None:
    failed, runs = [min(a, b) for a, b, _ in counts], [b for _, b, _ in counts]
    rate = [r for *_, r in counts]
    found = rates(failed, runs, rate)
    assert ((found > 0) & (found < 1)).all()
    np.testing.assert_allclose(rates(failed[::-1], runs[::-1], rate[::-1])[::-1], found, atol=1e-8)
