import numpy as np
import polars as pl
from isocompute.frontier import FitConfig, fit
from isocompute.frontier.answers.frontier import FrontierPoint


def point(*shares: float) -> FrontierPoint:
    return FrontierPoint(compute=1.0, reward=0.5, reward_low=0.4, reward_high=0.6, carried=False, shares=shares)


def test_the_best_curve_of_a_point_is_the_first_of_those_best_most_often() -> None:
    assert (point(0.2, 0.4, 0.4).best, point(0.2, 0.4, 0.4).probability) == (1, 0.4)


def test_the_likely_curves_are_as_few_as_make_up_95_percent() -> None:
    assert point(0.94, 0.04, 0.02).likely() == [0, 1]
    assert point(0.95, 0.03, 0.02).likely() == [0]


def test_the_arrays_of_a_fit_are_those_of_its_points(table: pl.DataFrame) -> None:
    fits = fit(table, FitConfig(form="exp", bootstrap=20))
    first = fits.frontier[0]
    assert fits.compute[0] == first.compute == fits.support[0]
    assert fits.envelope[:, 0].tolist() == [first.reward, first.reward_low, first.reward_high]
    assert fits.probability.shape == (2, len(fits.frontier))
    assert np.allclose(fits.probability.sum(axis=0), 1)
    assert fits.carried.tolist() == [p.carried for p in fits.frontier]


def test_the_table_of_the_frontier_has_one_row_per_point(table: pl.DataFrame) -> None:
    fits = fit(table, FitConfig(form="exp", bootstrap=20))
    rows = fits.frontier_table()
    cell = fits.best_at(fits.frontier[-1].compute)
    assert rows["compute"].to_list() == [p.compute for p in fits.frontier]
    assert rows["n"][-1] == cell.rollouts_per_problem
    assert rows["update_steps"][-1] == cell.compute / (cell.rollouts_per_problem * cell.problems_per_batch)
