"""The page on the bandit says what is computed; ``nox -s bandit`` compares all of it, with the longest runs too."""

from pathlib import Path

import pytest

from experiments.studies.bandit import page, progress

pytestmark = pytest.mark.slow("every number of the page")

PAGE = (Path(__file__).parents[4] / "docs" / "bandit.md").read_text()


def test_the_table_of_the_gradient_is_what_is_computed() -> None:
    assert page.gradients() in PAGE


def test_the_limits_of_small_groups_are_those_of_the_page() -> None:
    assert page.limits((2, 4, 8)) in PAGE


def test_the_fits_and_rates_of_noisy_rewards_are_those_of_the_page() -> None:
    assert page.noise() in PAGE
    text = " ".join(PAGE.split())
    for piece in page.noise_statements():
        assert piece in text


def test_with_one_learning_rate_the_two_terms_of_the_law_describe_the_chain() -> None:
    law = progress.law_of([progress.learnt(n, "none", progress.RATE) for n in (2, 4, 8, 16)])
    assert 0.9 < law.per_step < 1.05
    assert 1.9 < law.per_rollout < 2.2
    assert law.largest_error < 0.1


def test_with_learning_rates_that_noise_allows_they_do_not() -> None:
    law = progress.law_of(progress.with_noise())
    assert law.per_step < 0
    assert law.largest_error > 0.25
