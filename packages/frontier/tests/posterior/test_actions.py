"""What to run next."""

import numpy as np
import pytest
from isocompute.frontier.posterior.decision import seeds_to_tell, value_of
from scipy.stats import norm

RNG = np.random.default_rng


def test_the_value_of_a_measurement_is_the_known_one_for_normal_rewards() -> None:
    drawn = RNG(0).normal([0.0, 0.0], [0.1, 1e-9], size=(40_000, 2))
    noise = 0.1
    value = value_of(drawn, drawn[:, 0], np.full(40_000, noise), rng=RNG(1))
    # The mean after the measurement has the deviation σ²/√(σ² + noise²), and its positive part σ̃·φ(0).
    assert value == pytest.approx(0.1**2 / np.hypot(0.1, noise) * norm.pdf(0), rel=0.03)


def test_nothing_is_worth_measuring_that_cannot_change_the_choice() -> None:
    drawn = RNG(0).normal([0.5, 0.1], [0.01, 0.01], size=(10_000, 2))
    assert value_of(drawn, drawn[:, 1], np.full(10_000, 0.01), rng=RNG(1)) == pytest.approx(0, abs=1e-4)


def test_the_seeds_that_tell_two_settings_apart_do() -> None:
    difference, deviation = 0.03, 0.03
    count = seeds_to_tell(difference, deviation)
    assert count is not None
    rng = RNG(0)
    means = rng.normal([0, difference], deviation / np.sqrt(count), size=(20_000, 2))
    told = np.abs(means[:, 1] - means[:, 0]) > 1.96 * deviation * np.sqrt(2 / count)
    assert 0.79 < told.mean() < 0.83


def test_no_number_of_seeds_tells_equal_settings_apart() -> None:
    assert seeds_to_tell(0.0, 0.05) is None
    assert seeds_to_tell(1e-6, 0.05) is None


def test_nobody_is_told_to_run_more_than_25_seeds() -> None:
    # 2·(2.80·σ/d)² seeds: 24.7 and 25.3.
    assert seeds_to_tell(1.0, 1.255) == 25
    assert seeds_to_tell(1.0, 1.27) is None
