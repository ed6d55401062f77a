"""Cells of a search joined over their seeds."""

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout.scoring.evaluation import wilson_interval

from experiments.running.design import Evaluation, Trial, below, sampled, tried

from .made import BASE, SCORES

EVALUATIONS = st.dictionaries(
    st.integers(1, 100), st.builds(Evaluation, score=SCORES, standard_error=st.floats(0.0, 0.2)), min_size=1, max_size=5
)


def trial(rate: float, *scores: float, error: float = 0.01, diverged: bool = False, every: int = 100) -> Trial:
    """A cell of 100 rollouts, evaluated at its end, or from its first ``every`` rollouts on."""
    made = {every * (i + 1): Evaluation(score=score, standard_error=error) for i, score in enumerate(scores)}
    return Trial(learning_rate=rate, budget=100, evaluations=made, diverged=diverged)


def test_a_trials_end_is_the_mean_of_the_evaluations_in_the_last_quarter_of_its_budget() -> None:
    # At 10, 20, … 100 rollouts, of which 80, 90 and 100 are later than 75.
    end = trial(1e-3, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.4, 0.5, 0.6, every=10).end()
    assert end is not None
    assert end.score == pytest.approx(0.5)
    # Each was sampled by itself.
    assert end.standard_error == pytest.approx(0.01 / sqrt(3))


def test_an_evaluation_half_way_or_at_three_quarters_is_no_end() -> None:
    for every, scores in ((50, (0.1, 0.6)), (25, (0.1, 0.1, 0.1, 0.6))):
        assert trial(1e-3, *scores, every=every).end() == Evaluation(score=0.6, standard_error=0.01)


def test_a_trial_that_ended_early_has_its_last_evaluation_or_none() -> None:
    assert trial(1e-3, 0.6, 0.4, every=10, diverged=True).end() == Evaluation(score=0.4, standard_error=0.01)
    assert trial(1e-3, diverged=True).end() is None


@pytest.mark.slow
@given(EVALUATIONS)
def test_no_evaluation_before_the_last_quarter_matters_beside_one_in_it(evaluations: dict[int, Evaluation]) -> None:
    last = Evaluation(score=0.5, standard_error=0.01)
    early = {at: each for at, each in evaluations.items() if at <= 75}
    assert Trial(learning_rate=1e-3, budget=100, evaluations={**early, 100: last}).end() == last


def test_the_binomial_error_counts_responses_or_the_questions_of_a_best_one() -> None:
    mean_of_all = sampled(0.2, questions=100, samples=4, metric="avg_at_4")
    assert mean_of_all.standard_error == pytest.approx(sqrt(0.2 * 0.8 / 400))
    best = sampled(0.2, questions=100, samples=4, metric="best_at_4")
    assert best.standard_error == pytest.approx(sqrt(0.2 * 0.8 / 100))


def test_rates_are_joined_over_seeds_lowest_first() -> None:
    low, high = tried([trial(2e-3, 0.5), trial(1e-3, 0.4), trial(1e-3, 0.6)], BASE)
    assert (low.learning_rate, low.score, low.seeds) == (1e-3, 0.5, 2)
    assert (high.learning_rate, high.score, high.seeds) == (2e-3, 0.5, 1)
    # Two seeds that differ by 0.2 say more than the sampling of each: sd 0.141 over the root of 2.
    assert low.standard_error == pytest.approx(0.1)
    assert high.standard_error == pytest.approx(0.01)


def test_seeds_that_agree_by_luck_are_no_surer_than_sampling() -> None:
    (same,) = tried([trial(1e-3, 0.5), trial(1e-3, 0.5)], BASE)
    assert same.standard_error == pytest.approx(0.01 / sqrt(2))


def test_an_end_below_the_base_by_more_than_its_noise_is_a_collapse() -> None:
    noise = 2 * sqrt(2) * 0.01
    (dip,) = tried([trial(1e-3, BASE.score - 0.9 * noise)], BASE)
    (fall,) = tried([trial(1e-3, BASE.score - 1.1 * noise)], BASE)
    assert (dip.collapsed, dip.stable) == (0, True)
    assert (fall.collapsed, fall.stable) == (1, False)
    # One of two seeds is enough, whatever their mean.
    (half,) = tried([trial(1e-3, 0.9), trial(1e-3, 0.1)], BASE)
    assert half.score is not None
    assert half.score > BASE.score
    assert (half.collapsed, half.stable) == (1, False)


def test_a_seed_that_diverged_makes_a_rate_unstable_with_or_without_a_score() -> None:
    late, early = tried([trial(1e-3, 0.5, diverged=True), trial(2e-3, diverged=True), trial(2e-3, 0.5)], BASE)
    assert (late.score, late.diverged, late.stable) == (0.5, 1, False)
    assert (early.score, early.diverged, early.stable) == (None, 1, False)


@given(st.lists(EVALUATIONS, min_size=1, max_size=4), st.randoms())
def test_the_order_of_cells_does_not_matter_and_a_mean_lies_between_its_ends(
    ends: list[dict[int, Evaluation]], source: random.Random
) -> None:
    trials = [Trial(learning_rate=1e-3, budget=100, evaluations=each) for each in ends]
    (joined,) = tried(trials, BASE)
    source.shuffle(trials)
    assert tried(trials, BASE) == (joined,)
    scores = [end.score for t in trials if (end := t.end())]
    assert joined.score is not None
    assert min(scores) - 1e-12 <= joined.score <= max(scores) + 1e-12
    assert 0 <= joined.collapsed <= joined.seeds == len(ends)


@given(st.builds(Evaluation, score=SCORES, standard_error=st.floats(0, 0.2)))
def test_nothing_is_below_itself_and_no_two_are_below_each_other(one: Evaluation) -> None:
    assert not below(one, one)
    assert not (below(one, BASE) and below(BASE, one))


def test_a_score_of_0_or_1_has_the_error_of_its_wilson_interval() -> None:
    for score in (0.0, 1.0):
        found = sampled(score, questions=64, samples=4, metric="avg_at_4")
        lowest, highest = wilson_interval(score, 256)
        assert found.standard_error == pytest.approx((highest - lowest) / (2 * 1.959964), rel=1e-6)
        # One response more or less changes little.
        near = sampled(abs(score - 1 / 256), questions=64, samples=4, metric="avg_at_4")
        assert 0.4 * near.standard_error < found.standard_error < near.standard_error
