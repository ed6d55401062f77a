"""Noise and spikes, from how evaluations lie about their neighbours."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.data.curves import Array
from isocompute.frontier.posterior.evaluations import Run
from isocompute.frontier.posterior.health import excess, local_median, spikes
from isocompute.frontier.posterior.runs import Setting


def rising(rng: np.random.Generator, points: int = 20, trials: float = 1200.0) -> Run:
    compute = 1024.0 * np.arange(points)
    rate = 0.3 + 0.5 * (1 - np.exp(-compute / 6000))
    reward = rng.binomial(int(trials), rate) / trials
    return Run(
        name="n = 8, seed 0",
        run_id=None,
        cell=Setting(rollouts_per_problem=8, problems_per_batch=8),
        seed=0,
        compute=compute,
        reward=reward,
        error=np.sqrt(rate * (1 - rate) / trials),
        trials=np.full(points, trials),
    )


def with_zeros(run: Run, where: list[int]) -> Run:
    reward = run.reward.copy()
    reward[where] = 0.0
    return replace(run, reward=reward)


def test_normal_noise_has_almost_no_spikes() -> None:
    found = [int(spikes(rising(np.random.default_rng(i)), 1.0).sum()) for i in range(100)]
    assert sum(found) <= 2


@given(st.sets(st.integers(3, 18), min_size=1, max_size=3), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_zeros_are_found_and_what_lies_between_them_is_not(where: set[int], seed: int) -> None:
    # Three in a row are no single evaluations.
    if len(where) == 3 and max(where) - min(where) == 2:
        where = {min(where), max(where)}
    run = with_zeros(rising(np.random.default_rng(seed)), sorted(where))
    found = np.flatnonzero(spikes(run, 1.0))
    assert where <= set(found.tolist())
    assert len(found) <= len(where) + 1


def test_a_last_evaluation_that_alone_lost_the_gain_is_a_spike_and_two_are_not() -> None:
    run = rising(np.random.default_rng(0))
    np.testing.assert_array_equal(np.flatnonzero(spikes(with_zeros(run, [19]), 1.0)), [19])
    assert not spikes(with_zeros(run, [18, 19]), 1.0).any()


@pytest.mark.parametrize("kappa", [1.0, 2.0, 4.0])
def test_noise_beyond_sampling_is_measured_and_few_bad_evaluations_do_not_count(kappa: float) -> None:
    runs = []
    for i in range(20):
        rng = np.random.default_rng(i)
        run = rising(rng)
        off: Array = rng.normal(0, np.sqrt(kappa**2 - 1), 20) * run.error
        runs.append(with_zeros(replace(run, reward=np.clip(run.reward + off, 0, 1)), [7] if i % 3 else []))
    assert excess(runs) == pytest.approx(kappa, rel=0.25)


def test_a_median_of_neighbours_hides_a_single_zero() -> None:
    np.testing.assert_array_equal(local_median(np.array([0.4, 0.0, 0.5, 0.6])), [0.4, 0.4, 0.5, 0.5])
    np.testing.assert_array_equal(local_median(np.array([0.4, 0.1])), [0.4, 0.1])
