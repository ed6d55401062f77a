import numpy as np
import polars as pl
from isocompute.frontier import FitConfig, Flag, fit
from isocompute.frontier.fitting.saturation import comparable, isotonic_n, saturation

GRID = np.geomspace(1e3, 1e6, 121)
EVERYWHERE = np.ones((2, 121), dtype=bool)


def best_of(point: np.ndarray) -> np.ndarray:
    """Index of the best curve at each compute."""
    return point.argmax(axis=0)


def rewards(crossing: float) -> np.ndarray:
    """n = 4 ahead up to some compute, n = 16 from there."""
    return np.stack([np.full(121, 0.5), 0.5 + 0.1 * np.log10(GRID / crossing)])


def test_n_star_levels_off_where_the_last_n_takes_over() -> None:
    draws = np.stack([rewards(c) for c in np.geomspace(8e3, 1.25e4, 50)])
    found = saturation(GRID, best_of(rewards(1e4)), draws, EVERYWHERE, np.array([4.0, 16.0]))
    assert found.rollouts_per_problem == 16
    assert found.compute is not None
    assert 1e4 <= found.compute <= 1.1e4
    assert found.interval is not None
    assert found.interval[0] < 1e4 < found.interval[1]
    assert found.flags == (Flag.AT_LARGEST_N,)


def test_growth_in_the_last_doubling_is_flagged() -> None:
    draws = np.stack([rewards(c) for c in np.geomspace(6e5, 7e5, 50)])
    found = saturation(GRID, best_of(rewards(6.5e5)), draws, EVERYWHERE, np.array([4.0, 16.0]))
    assert Flag.STILL_GROWING in found.flags
    assert "has grown to 16" in found.summary("rollouts")


def test_a_larger_n_that_never_wins_is_saturation_below_it() -> None:
    point = np.concatenate([rewards(1e4), np.full((1, 121), 0.1)])
    within = np.ones((3, 121), dtype=bool)
    found = saturation(GRID, best_of(point), np.stack([point] * 20), within, np.array([4.0, 16.0, 64.0]))
    assert (found.rollouts_per_problem, found.flags) == (16, ())


def test_one_n_that_leads_everywhere_never_grew() -> None:
    point = np.stack([np.full(121, 0.5), np.full(121, 0.4)])
    found = saturation(GRID, best_of(point), np.stack([point] * 20), EVERYWHERE, np.array([4.0, 16.0]))
    assert (found.compute, found.interval, found.rollouts_per_problem) == (None, None, 4)


def test_what_lies_beyond_the_end_of_a_long_curve_does_not_count() -> None:
    within = EVERYWHERE.copy()
    within[1, 110:] = False
    assert comparable(GRID, within).tolist() == [True] * 110 + [False] * 11
    # A curve that stops early on does not end the comparison of the others.
    within[1, 20:] = False
    assert comparable(GRID, within).all()
    draws = np.stack([rewards(1e4)] * 20)
    within[1] = GRID < 8e5
    found = saturation(GRID, best_of(rewards(1e4)), draws, within, np.array([4.0, 16.0]))
    assert found.rollouts_per_problem == 16


def test_the_companion_of_n_star_never_falls() -> None:
    n = np.array([4.0, 16.0, 4.0, 64.0])
    assert isotonic_n(np.arange(1.0, 5.0), n).tolist() == [4.0, 8.0, 8.0, 64.0]


def test_a_fit_says_it_in_words_and_in_fits_json(table: pl.DataFrame) -> None:
    found = fit(table, FitConfig(form="exp", bootstrap=40))
    assert found.saturation is not None
    assert found.saturation.rollouts_per_problem == 16
    assert Flag.AT_LARGEST_N in found.saturation.flags
    assert "n* levels off at 16" in found.summary()
