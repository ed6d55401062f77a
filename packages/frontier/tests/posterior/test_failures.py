"""How often runs fail."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.posterior.failures import failure_rates


def rates(failed: list[int], runs: list[int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    return failure_rates(np.array(failed), np.array(runs), draws=20_000, rng=rng)


def test_a_setting_that_failed_is_expected_to_fail_more_often_than_its_siblings() -> None:
    mean = rates([1, 0, 0, 0, 0], [4] * 5).mean(axis=0)
    assert 0.06 < mean[0] < 0.25
    assert (mean[1:] < mean[0] - 0.03).all()


def test_the_rates_are_those_of_the_beta_distribution_when_settings_have_little_in_common() -> None:
    mean = rates([30, 0], [40, 40]).mean(axis=0)
    assert abs(mean[0] - 0.75) < 0.05
    assert mean[1] < 0.04


def test_a_setting_without_a_run_has_the_rate_of_the_others() -> None:
    mean = rates([5, 5, 5, 0], [20, 20, 20, 0]).mean(axis=0)
    assert abs(mean[3] - 0.25) < 0.05


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6))
def test_rates_lie_within_0_and_1(counts: list[tuple[int, int]]) -> None:
    drawn = rates([min(a, b) for a, b in counts], [b for _, b in counts])
    assert ((drawn >= 0) & (drawn <= 1)).all()
