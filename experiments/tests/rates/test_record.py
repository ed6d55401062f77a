"""``pilot.json`` is read as it was written."""

import json

from hypothesis import given
from hypothesis import strategies as st

from experiments.rates.record import Pilot, beats
from experiments.rates.trials import Evaluation, Tried

from .made import BASE, found, grids, line


def pilot(*searches: list[Tried], rule: str = "tuned") -> Pilot:
    made = tuple(found(4 * 4**i, grid) for i, grid in enumerate(searches))
    return Pilot(rule=rule, metric="avg_at_4", base=BASE, rollouts=4096, searches=made)


@given(st.lists(grids(), min_size=1, max_size=3))
def test_a_pilot_is_read_as_it_was_written(searches: list[list[Tried]]) -> None:
    written = pilot(*searches)
    assert Pilot.read(json.loads(json.dumps(written.document()))) == written


def test_the_rates_are_those_chosen() -> None:
    rates = pilot([line(1e-3, 0.5), line(2e-3, 0.6)], [line(1e-3, 0.7), line(2e-3, 0.6)]).rates()
    assert (rates.rule, rates.at(4, 8).learning_rate, rates.at(16, 8).learning_rate) == ("tuned", 2e-3, 1e-3)
    scaled = pilot([line(1e-3, 0.5)], rule="sqrt").rates()
    assert scaled.at(16, 8).learning_rate == 2e-3


def test_above_the_base_means_by_more_than_noise() -> None:
    for score, above in ((0.32, False), (0.34, True)):
        one = pilot([line(1e-3, score)])
        assert beats(one.searches[0], Evaluation(score=0.3, standard_error=0.01)) == above
        assert one.document()["searches"][0]["above_base"] == above
