"""What pilots found: the rates that follow."""

from experiments.rates.record import Pilot
from experiments.rates.trials import Tried

from . import made
from .made import found, line


def pilot(*searches: list[Tried], rule: str = "tuned") -> Pilot:
    return made.pilot([found(4 * 4**i, grid) for i, grid in enumerate(searches)], rule=rule)


def test_the_rates_are_those_chosen() -> None:
    rates = pilot([line(1e-3, 0.5), line(2e-3, 0.6)], [line(1e-3, 0.7), line(2e-3, 0.6)]).rates()
    assert (rates.rule, rates.at(4, 8), rates.at(16, 8)) == ("tuned", 2e-3, 1e-3)
    scaled = pilot([line(1e-3, 0.5)], rule="sqrt").rates()
    assert scaled.at(16, 8) == 2e-3
