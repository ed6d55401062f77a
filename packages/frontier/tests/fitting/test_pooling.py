"""How often a curve is best: no winner among equals, and no doubt of a clear one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.fitting.pooling import best_shares


def drawn(point: np.ndarray, error: float, *, degrees: float = 5.0, seed: int = 0) -> np.ndarray:
    """Refits of points with Student's t errors that share their scale, shape ``(refits, curves, 1)``."""
    rng = np.random.default_rng(seed)
    scale = error * np.sqrt(degrees / rng.chisquare(degrees, 400))
    return point[None, :, None] + scale[:, None, None] * rng.standard_normal((400, len(point), 1))


def shares(point: np.ndarray, error: float, *, degrees: float = 5.0, seed: int = 0) -> np.ndarray:
    within = np.ones((len(point), 1), dtype=bool)
    refits = drawn(point, error, degrees=degrees, seed=seed)
    return best_shares(point[:, None], refits, within, degrees)[:, 0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 0.9), min_size=1, max_size=6), st.floats(1e-4, 0.1))
def test_shares_are_of_all_refits_and_follow_the_curves(rewards: list[float], error: float) -> None:
    point = np.array(rewards)
    refits, within = drawn(point, error), np.ones((len(point), 1), dtype=bool)
    found = best_shares(point[:, None], refits, within, 5.0)[:, 0]
    assert found.sum() == pytest.approx(1.0)
    # Curves in another order have the same shares; and what lifts all of them alike changes nothing.
    turned = best_shares(point[::-1, None], refits[:, ::-1], within, 5.0)[::-1, 0]
    lifted = best_shares(point[:, None] + 0.05, refits + 0.05, within, 5.0)[:, 0]
    assert turned == pytest.approx(found, abs=0.01)
    assert lifted == pytest.approx(found, abs=0.01)


def test_a_lead_of_many_errors_stays_certain() -> None:
    assert shares(np.array([0.5, 0.6, 0.55]), 0.005)[1] > 0.98


def test_equal_curves_have_no_winner_more_often_than_it_says() -> None:
    rng = np.random.default_rng(1)
    plain = pooled = 0
    for seed in range(300):
        # Two seeds of three n: three degrees of freedom, and what is seen is one draw of nothing.
        scale = 0.02 * np.sqrt(rng.chisquare(3) / 3)
        point = 0.5 + 0.02 * rng.standard_normal(3)
        refits = drawn(point, scale, degrees=3, seed=seed)
        plain += np.bincount(refits[:, :, 0].argmax(axis=1), minlength=3).max() >= 380
        pooled += best_shares(point[:, None], refits, np.ones((3, 1), dtype=bool), 3)[:, 0].max() >= 0.95
    # At 5 % there would be 15, and more than 27 once in a thousand.
    assert pooled <= 15
    assert pooled < plain


def test_a_curve_without_data_there_is_never_the_best() -> None:
    point = np.array([0.9, 0.5])
    within = np.array([[False], [True]])
    assert best_shares(point[:, None], drawn(point, 0.01), within, 5.0)[:, 0].tolist() == [0.0, 1.0]
