"""Cells of a search joined over their seeds."""

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.rates.trials import Evaluation, Trial, below, tried

from .made import BASE, SCORES

EVALUATIONS = st.lists(
    st.builds(Evaluation, score=SCORES, standard_error=st.floats(0.0, 0.2)), min_size=1, max_size=5
)  # fmt: skip


def trial(rate: float, *scores: float, error: float = 0.01, diverged: bool = False) -> Trial:
    made = [Evaluation(score=score, standard_error=error) for score in scores]
    return Trial(learning_rate=rate, evaluations=made, diverged=diverged)


def test_a_trials_end_is_the_mean_of_its_last_two_evaluations() -> None:
    end = trial(1e-3, 0.9, 0.4, 0.6).end()
    assert end is not None
    assert end.score == pytest.approx(0.5)
    # Each was sampled by itself.
    assert end.standard_error == pytest.approx(0.01 / sqrt(2))
    assert trial(1e-3).end() is None
    assert trial(1e-3, 0.4).end() == Evaluation(score=0.4, standard_error=0.01)


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
    ends: list[list[Evaluation]], source: random.Random
) -> None:
    trials = [Trial(learning_rate=1e-3, evaluations=each) for each in ends]
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
