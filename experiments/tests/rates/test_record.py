"""``pilot.json`` is read as it was written."""

import json
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.rates.record import Pilot, beats
from experiments.rates.trials import Tried

from . import made
from .made import BASE, found, grids, line


def pilot(*searches: list[Tried], rule: str = "tuned") -> Pilot:
    return made.pilot([found(4 * 4**i, grid) for i, grid in enumerate(searches)], rule=rule)


@given(st.lists(grids(), min_size=1, max_size=3))
def test_a_pilot_is_read_as_it_was_written(searches: list[list[Tried]]) -> None:
    written = pilot(*searches)
    assert Pilot.read(json.loads(json.dumps(written.document()))) == written


@pytest.mark.parametrize("rule", ["constant", "linear", "sqrt"])
def test_a_declared_rate_is_read_as_it_was_written(rule: str) -> None:
    written = made.declared(rule=rule)
    document = json.loads(json.dumps(written.document()))
    assert (document["searches"], document["rollouts"]) == ([], 0)
    assert document["declared"] == {"learning_rate": 1e-6, "batch_rollouts": 1024}
    assert Pilot.read(document) == written
    assert Pilot.read(document).rates().at(8, 128).learning_rate == 1e-6
    assert "declared" not in pilot([line(1e-3, 0.5)]).document()


def test_the_rates_are_those_chosen() -> None:
    rates = pilot([line(1e-3, 0.5), line(2e-3, 0.6)], [line(1e-3, 0.7), line(2e-3, 0.6)]).rates()
    assert (rates.rule, rates.at(4, 8).learning_rate, rates.at(16, 8).learning_rate) == ("tuned", 2e-3, 1e-3)
    scaled = pilot([line(1e-3, 0.5)], rule="sqrt").rates()
    assert scaled.at(16, 8).learning_rate == 2e-3


def test_above_the_base_means_by_more_than_noise() -> None:
    # One rate: 1.96 standard errors of 0.0141.
    for score, above in ((0.327, False), (0.329, True)):
        one = pilot([line(1e-3, score)])
        assert beats(one.searches[0], one) == above
        assert one.document()["searches"][0]["above_base"] == above


def test_the_best_of_many_rates_needs_more_to_be_above_the_base() -> None:
    """Of ten rates one is 2.5 standard errors above the base in one search of 16 without any effect."""
    score = BASE.score + 2.5 * sqrt(2) * 0.01
    alone = pilot([line(1e-3, score)])
    among = pilot([line(1e-3, score), *(line(i * 1e-3, 0.3) for i in range(2, 6))], [line(1e-3, 0.3)] * 5)
    assert beats(alone.searches[0], alone)
    assert not beats(among.searches[0], among)
    # The normal quantile at 1 − 0.025/10 is 2.807.
    for errors, above in ((2.80, False), (2.82, True)):
        grid = [line(1e-3, BASE.score + errors * sqrt(2) * 0.01), *(line(i * 1e-3, 0.3) for i in range(2, 11))]
        assert beats(pilot(grid).searches[0], pilot(grid)) == above


def test_with_several_seeds_their_noise_counts_and_a_large_gain_is_still_seen() -> None:
    """Four rates of two seeds: t at 1 − 0.025/4 with 4 degrees of freedom is 4.315, where 4 normal errors would do."""
    for errors, above in ((4.2, False), (4.4, True), (30.0, True)):
        best = line(1e-3, BASE.score + errors * sqrt(2) * 0.01, seeds=2)
        several = pilot([best, *(line(i * 1e-3, 0.3, seeds=2) for i in (2, 3, 4))])
        assert beats(several.searches[0], several) == above
    # Seeds that differ at other rates make one that agrees by luck no surer.
    noisy = pilot([line(1e-3, 0.4, seeds=2), *(line(i * 1e-3, 0.3, error=0.05, seeds=2) for i in (2, 3, 4))])
    assert not beats(noisy.searches[0], noisy)
