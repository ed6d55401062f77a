"""Which curves can be told apart, by bands that hold for all pairs and all compute at once."""

import numpy as np
from isocompute.frontier.fitting.crossovers import crossovers
from isocompute.frontier.fitting.differences import differences

GRID = np.geomspace(1e3, 1e5, 60)
EVERYWHERE = np.ones((2, 60), dtype=bool)
CROSSING = np.stack([np.full(60, 0.5), 0.5 + 0.05 * np.log10(GRID / 1e4)])


def noisy(point: np.ndarray, sd: float, *, refits: int = 400, seed: int = 0) -> np.ndarray:
    """Refits whose curves move up and down as a whole."""
    return point + sd * np.random.default_rng(seed).standard_normal((refits, len(point), 1))


def test_curves_that_cross_are_told_apart_on_either_side() -> None:
    (found,) = differences(CROSSING, noisy(CROSSING, 0.005), EVERYWHERE)
    assert found.told_apart
    assert found.sign[0] == -1
    assert found.sign[-1] == 1
    assert found.sign[30] == 0


def test_nothing_is_said_where_one_has_no_data() -> None:
    within = EVERYWHERE.copy()
    within[1, 40:] = False
    (found,) = differences(CROSSING, noisy(CROSSING, 0.005), within)
    assert (found.sign[40:] == 0).all()
    within[1] = False
    assert differences(CROSSING, noisy(CROSSING, 0.005), within) == []


def test_of_many_equal_curves_few_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    said = 0
    for seed in range(200):
        point = 0.5 + 0.01 * rng.standard_normal((6, 1)) + np.zeros((6, 60))
        refits = noisy(point, 0.01, seed=seed)
        said += any(d.told_apart for d in differences(point, refits, np.ones((6, 60), dtype=bool)))
    # At 5 % there would be 10, and more than 20 once in a thousand.
    assert said <= 20


def cross(sd: float, *, shift: float = 0.0) -> object:
    point = CROSSING + np.array([[0.0], [shift]])
    draws = noisy(point, sd)
    apart = differences(point, draws, EVERYWHERE)
    return crossovers(GRID, point, draws, EVERYWHERE, apart, [4, 16], ["n = 4", "n = 16"])


def test_an_interval_of_where_they_cross_is_open_where_refits_do_not() -> None:
    (sharp,) = cross(0.005)
    assert sharp.interval[0] < 1e4 < sharp.interval[1]
    assert sharp.stated
    (blurred,) = cross(0.2)
    assert blurred.interval == (None, None)
    assert not blurred.stated
    # Ahead from the start in many refits, never behind at the end.
    (early,) = cross(0.015, shift=0.03)
    assert early.interval[0] is None
    assert early.interval[1] is not None
    assert "below" in early.summary("rollouts")


def test_half_of_the_refits_that_never_cross_are_not_left_out() -> None:
    # What crosses in three refits of four, and always at 10,000, has no closed interval.
    refits = np.concatenate([np.repeat(CROSSING[None], 300, axis=0), np.repeat(CROSSING[None] - 1, 100, axis=0)])
    refits[300:, 0] += 1
    apart = differences(CROSSING, refits, EVERYWHERE)
    (found,) = crossovers(GRID, CROSSING, refits, EVERYWHERE, apart, [4, 16], ["n = 4", "n = 16"])
    assert found.interval is not None
    assert found.interval[1] is None
