"""Curves: errors of a metric against enumeration and simulation, records, and the isotonic companion."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier.data.curves import (
    binomial_errors,
    isotonic,
    kind_of,
    records,
    response_variance,
    smoothed,
    trials_of,
    values_of,
)


@given(st.integers(1, 6), st.data())
def test_a_question_contributes_the_mean_over_all_choices_of_k(samples: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, samples))
    right = data.draw(st.lists(st.booleans(), min_size=samples, max_size=samples))
    chosen = list(combinations(right, k))
    successes = np.array([sum(right)])
    assert values_of(f"best_at_{k}", successes, samples)[0] == pytest.approx(np.mean([any(c) for c in chosen]))
    assert values_of(f"worst_at_{k}", successes, samples)[0] == pytest.approx(np.mean([all(c) for c in chosen]))
    assert values_of(f"avg_at_{k}", successes, samples)[0] == pytest.approx(np.mean(right))


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "samples"), list(product(["avg_at_4", "best_at_4", "worst_at_4"], [4, 8])))
@pytest.mark.parametrize("shape", [(2.0, 3.0), (0.3, 0.3)])
def test_the_variance_is_that_of_sampling_responses_again(
    metric: str, samples: int, shape: tuple[float, float]
) -> None:
    rng = np.random.default_rng(0)
    truth = rng.beta(*shape, 2000)
    again = values_of(metric, rng.binomial(samples, truth, (200, 2000)), samples)
    seen = rng.binomial(samples, truth, (20, 2000)) / samples
    assert response_variance(metric, seen, samples).mean() == pytest.approx(again.var(axis=0).mean(), rel=0.1)


def test_a_mean_of_0_or_1_has_an_error_too() -> None:
    for rate in (0.0, 1.0):
        assert (response_variance("avg_at_4", np.full((1, 300), rate), 4) > 0).all()
        assert (binomial_errors(np.array([rate]), np.array([1200.0])) > 0).all()


def test_only_an_average_counts_every_sample_as_a_trial() -> None:
    questions, samples = np.array([300]), np.array([4])
    assert trials_of("avg_at_4", questions, samples) == (1200, True)
    for metric in ("best_at_4", "worst_at_4", "majority"):
        assert trials_of(metric, questions, samples) == (300, False)


@pytest.mark.parametrize("name", ["avg_at_0", "avg_at_four", "best_at_4_biased", "reward"])
def test_other_names_are_not_metrics_of_pass_rates(name: str) -> None:
    assert kind_of(name) is None


REWARDS = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


@given(REWARDS, st.sampled_from([0.0, 0.005, 0.2]))
def test_records_rise_from_the_first_point_to_the_highest_bin_by_one_of_each(reward: np.ndarray, width: float) -> None:
    found = records(np.arange(len(reward), dtype=float), reward, bin_width=width)
    levels = np.floor(reward / width + 1e-9) if width else reward
    assert found[0] == 0
    assert (np.diff(levels[found]) > 0).all()
    assert levels[found].max() == levels.max()


def test_smoothing_is_a_centred_mean_shorter_at_the_ends() -> None:
    assert smoothed(np.array([0.0, 3.0, 6.0, 3.0]), 3).tolist() == [1.5, 3.0, 4.0, 4.5]
    # A single high evaluation is a record raw, and none once smoothed.
    reward = np.array([0.1, 0.1, 0.9, 0.1, 0.2, 0.3, 0.4])
    assert 2 in records(np.arange(7.0), reward)
    assert len(records(np.arange(7.0), smoothed(reward, 3))) < 5


def test_equal_compute_gets_one_isotonic_value() -> None:
    assert isotonic(np.array([1.0, 1.0, 2.0]), np.array([0.2, 0.4, 0.9])).tolist() == pytest.approx([0.3, 0.3, 0.9])
