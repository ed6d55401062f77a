from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Flag, fit
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.noise import effective_points
from isocompute.frontier.fitting.point import fit_form
from isocompute.frontier.fitting.profile import profile_asymptote
from scipy import stats
from scipy.optimize import curve_fit

COMPUTE = np.linspace(5e4, 4e6, 60)
ERROR = np.full(60, 0.014)
ASYMPTOTES = {4: 0.45, 16: 0.60}
"""Of the runs of the fixture `table`."""


def test_it_is_the_interval_of_least_squares_where_the_curve_is_well_seen() -> None:
    truth = Parameters(form="exp", start=0.4, gain=0.2, scale=4e5, shape=1.0)
    reward = truth(COMPUTE) + np.random.default_rng(0).normal(0, 0.014, 60)
    best = fit_form("exp", COMPUTE, reward, ERROR, None)
    low, high = profile_asymptote(best, COMPUTE, reward, ERROR, None, independent_points=60.0).interval
    _, covariance = curve_fit(lambda c, a, d, t: a - d * np.exp(-c / t), COMPUTE, reward, p0=(0.6, 0.2, 4e5))
    half = stats.t.ppf(0.975, 57) * np.sqrt(covariance[0, 0])
    assert high - low == pytest.approx(2 * half, rel=0.1)
    assert (low + high) / 2 == pytest.approx(best.parameters.asymptote, abs=half / 4)


def test_a_run_that_ends_before_the_bend_leaves_the_asymptote_open() -> None:
    truth = Parameters(form="hill", start=0.3, gain=0.4, scale=3e7, shape=1.0)
    reward = truth(COMPUTE)
    best = fit_form("hill", COMPUTE, reward, ERROR, None)
    noisy = replace(best, parameters=truth)
    found = profile_asymptote(
        noisy, COMPUTE, reward + np.where(np.arange(60) % 2, 0.01, -0.01), ERROR, None, independent_points=60.0
    )
    assert found.open_above
    assert found.interval[1] == pytest.approx(1.0)


@pytest.mark.parametrize("form", ["exp", "hill", "power"])
def test_autocorrelation_is_worth_fewer_points_and_a_wider_interval(form: str) -> None:
    truth = Parameters(form="exp", start=0.4, gain=0.2, scale=4e5, shape=1.0)
    reward = truth(COMPUTE) + np.random.default_rng(1).normal(0, 0.014, 60)
    best = fit_form(form, COMPUTE, reward, ERROR, None)
    plain = profile_asymptote(best, COMPUTE, reward, ERROR, None, independent_points=effective_points(60, 1, 0.0))
    tied = profile_asymptote(best, COMPUTE, reward, ERROR, None, independent_points=effective_points(60, 1, 0.5))
    assert plain.effective_points == 60
    assert tied.effective_points == pytest.approx(20)
    assert tied.interval[0] < plain.interval[0] < best.parameters.asymptote < plain.interval[1] < tied.interval[1]


def test_seeds_that_differ_widen_it() -> None:
    truth = Parameters(form="exp", start=0.4, gain=0.2, scale=4e5, shape=1.0)
    reward = truth(COMPUTE)
    best = fit_form("exp", COMPUTE, reward, ERROR, None)
    found = profile_asymptote(best, COMPUTE, reward, ERROR, None, independent_points=60.0, between_seeds=0.043)
    assert found.interval == pytest.approx((0.6 - 0.043, 0.6 + 0.043), abs=1e-3)


def test_every_fit_carries_it_and_an_open_one_is_flagged(table: pl.DataFrame) -> None:
    for c in fit(table, FitConfig(form="exp", bootstrap=40)).fitted:
        assert c.profile is not None
        low, high = c.profile.interval
        assert low < ASYMPTOTES[c.curve.rollouts_per_problem] + 0.02
        assert high > ASYMPTOTES[c.curve.rollouts_per_problem] - 0.02
        assert not c.profile.open_above
    early = fit(table.filter(pl.col("rollouts") <= 6 * 1024), FitConfig(form="hill", bootstrap=40))
    for c in early.fitted:
        assert c.profile is not None
        if c.profile.open_above:
            assert Flag.ASYMPTOTE_NOT_IDENTIFIED in c.flags
    assert any(c.profile is not None and c.profile.open_above for c in early.fitted)
