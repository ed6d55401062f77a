"""Dense logs in few points: unbiased, and no surer than they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.data.curves import Array
from isocompute.frontier.posterior.evaluations import Run
from isocompute.frontier.posterior.health import POINTS, between, binned
from isocompute.frontier.posterior.runs import Setting
from scipy.signal import lfilter


def truth(compute: Array) -> Array:
    return np.asarray(0.2 + 0.4 * compute / (compute + 60_000))


def log(rng: np.random.Generator, *, memory: float, drift: float, responses: int = 256, points: int = 10_000) -> Run:
    """A run evaluated at every step, whose reward wanders about a curve.

    Args:
        memory: Evaluations over which the wander forgets.
        drift: Its standard deviation.
    """
    compute = 64.0 * np.arange(points)
    kept = np.exp(-1 / memory)
    shocks = rng.normal(0, np.sqrt(1 - kept**2), points)
    shocks[0] /= np.sqrt(1 - kept**2)
    rate = np.clip(truth(compute) + drift * lfilter([1], [1, -kept], shocks), 0, 1)
    reward = rng.binomial(responses, rate) / responses
    return Run(
        name="n = 8, seed 0",
        run_id=None,
        cell=Setting(rollouts_per_problem=8, problems_per_batch=8),
        seed=0,
        compute=compute,
        reward=reward,
        error=np.sqrt(0.25 / responses) * np.ones(points),
        trials=np.full(points, float(responses)),
    )


def off(run: Run) -> tuple[Array, Array]:
    bins = binned(run)
    return (bins.reward - truth(bins.compute)) / bins.error, bins.error


def test_a_run_of_fifty_evaluations_is_left_alone() -> None:
    run = log(np.random.default_rng(0), memory=1, drift=0.0, points=POINTS)
    assert binned(run) is run


@given(st.integers(51, 2000), st.integers(5, 60))
@settings(max_examples=30, deadline=None)
def test_bins_keep_the_start_the_order_and_the_mean(points: int, most: int) -> None:
    run = log(np.random.default_rng(points), memory=1, drift=0.0, points=points)
    bins = binned(run, most)
    assert len(bins.compute) <= max(most, 5)
    assert (np.diff(bins.compute) > 0).all()
    assert (bins.compute[0], bins.reward[0]) == (0, run.reward[0])
    assert run.reward.min() <= bins.reward.min()
    assert bins.reward.max() <= run.reward.max()


def test_independent_evaluations_keep_their_error() -> None:
    scores = [off(log(np.random.default_rng(i), memory=0.01, drift=0.0)) for i in range(20)]
    assert 0.8 < np.sqrt(np.mean([np.mean(z**2) for z, _ in scores])) < 1.2
    # The last bin is of 1,700 evaluations of 256 responses.
    assert 0.0005 < np.median([error[-1] for _, error in scores]) < 0.004


@pytest.mark.parametrize("memory", [10, 100, 300])
def test_a_slow_drift_makes_bins_less_sure(memory: float) -> None:
    """Ten thousand evaluations say of the wander what a few dozen independent ones do."""
    scores = [off(log(np.random.default_rng(i), memory=memory, drift=0.02)) for i in range(20)]
    assert np.median([np.sqrt(np.mean(z**2)) for z, _ in scores]) < 2.0
    naive = np.sqrt(0.24 / 256 / 1700)
    assert np.median([error[-1] for _, error in scores]) > 4 * naive


def test_without_known_errors_the_scatter_says_them() -> None:
    run = replace(log(np.random.default_rng(3), memory=0.01, drift=0.0), trials=None, error_is_known=False)
    z, error = off(run)
    assert binned(run).trials is None
    assert 0.7 < np.sqrt(np.mean(z**2)) < 1.4
    assert error[-1] < 0.01


def test_a_rate_near_zero_is_not_pulled_to_its_lucky_evaluations() -> None:
    """Weighted by errors at the measured rewards, evaluations of 0.05 in 120 trials have the mean 0.042."""
    rng = np.random.default_rng(0)
    run = log(rng, memory=1, drift=0.0, points=4000)
    flat = replace(run, reward=rng.binomial(120, 0.05, 4000) / 120, trials=np.full(4000, 120.0))
    bins = binned(flat)
    assert np.average(bins.reward, weights=1 / bins.error**2) == pytest.approx(0.05, abs=0.0015)


@given(st.floats(0.0, 0.01), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_variance_between_is_that_put_in(added: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    variance = rng.uniform(1e-4, 1e-3, 4000)
    drawn = rng.normal(0, np.sqrt(variance + added))
    assert between(drawn, variance, np.ones(4000)) == pytest.approx(added, rel=0.12, abs=5e-5)
