"""Which rate is chosen, where a grid goes on, and the rates that follow."""

from math import isclose

import pytest
from hypothesis import given

from experiments.errors import ExperimentError
from experiments.running.design import Tried, extension

from .made import found, grids, line, pilot

RATES = (1e-4, 2e-4, 4e-4, 8e-4)


def grid(*scores: float | None) -> list[Tried]:
    """Scores at doubling rates; None is a rate that diverged."""
    return [line(r, s, diverged=int(s is None)) for r, s in zip(RATES, scores, strict=False)]


def test_the_highest_mean_is_chosen_and_equal_ones_give_the_lowest_rate() -> None:
    assert found(4, grid(0.4, 0.6, 0.5)).chosen.learning_rate == 2e-4
    assert found(4, grid(0.6, 0.6, 0.5)).chosen.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("scores", "edge"),
    [
        ((0.5, 0.6, 0.4), None),
        ((0.6, 0.5, 0.4), "lowest"),
        ((0.4, 0.5, 0.6), "highest"),
        ((0.5,), "both"),
        ((0.4, 0.6, None), None),
    ],
)
def test_the_edge_of_the_grid_is_said_and_a_rate_that_diverged_beyond_is_no_edge(
    scores: tuple[float | None, ...], edge: str | None
) -> None:
    assert found(4, grid(*scores)).edge == edge


def test_what_collapsed_or_diverged_is_chosen_last() -> None:
    lines = [line(1e-4, 0.31), line(2e-4, 0.9, collapsed=1), line(4e-4, 0.8, diverged=1)]
    assert found(4, lines).chosen.learning_rate == 1e-4
    collapsed = [line(1e-4, 0.1, collapsed=1), line(2e-4, 0.2, collapsed=1), line(4e-4, 0.9, diverged=1)]
    chosen = found(4, collapsed).chosen
    assert (chosen.learning_rate, chosen.stable) == (2e-4, False)


def test_where_every_rate_diverged_there_is_none_to_choose() -> None:
    with pytest.raises(ExperimentError, match=r"n = 4, B_p = 8 diverged \(0.0001, 0.0002\): give lower ones"):
        found(4, grid(None, None))


def test_a_grid_goes_on_by_one_step_beyond_its_best_edge() -> None:
    assert extension(grid(0.4, 0.5, 0.6)) == 8e-4
    assert extension(grid(0.6, 0.5, 0.4)) == 5e-5
    assert extension(grid(0.5, 0.6, 0.4)) is None
    # The steps of a grid need not be equal: the one at the edge is repeated.
    assert extension([line(1e-4, 0.5), line(2e-4, 0.5), line(1e-3, 0.6)]) == 5e-3


def test_a_grid_without_a_stable_rate_goes_on_below() -> None:
    assert extension(grid(None, None)) == 5e-5
    assert extension([line(1e-4, 0.1, collapsed=1), line(2e-4, 0.2, collapsed=1)]) == 5e-5


def test_one_rate_has_no_step() -> None:
    assert extension(grid(0.5)) is None


def test_a_step_of_a_round_grid_is_round() -> None:
    assert extension([line(2.5e-4, 0.1), line(5e-4, 0.5)]) == 1e-3


@given(grids())
def test_no_rate_as_good_is_passed_over(lines: list[Tried]) -> None:
    result = found(4, lines)
    stable = [each for each in lines if each.stable]
    assert result.chosen.stable == bool(stable)
    for each in stable:
        assert each.score is not None
        assert result.chosen.score is not None
        assert each.score <= result.chosen.score
        if each.score == result.chosen.score:
            assert each.learning_rate >= result.chosen.learning_rate


@given(grids(least=2))
def test_a_grid_goes_on_exactly_where_its_best_stable_rate_is_an_edge_or_there_is_none(lines: list[Tried]) -> None:
    further, rates = extension(lines), [each.learning_rate for each in lines]
    result = found(4, lines)
    assert (further is None) == (result.chosen.stable and result.edge is None)
    if further is not None:
        assert further not in rates
        below, above = rates[0] ** 2 / rates[1], rates[-1] ** 2 / rates[-2]
        assert isclose(further, below) or isclose(further, above)


def test_the_rates_of_a_pilot_are_those_chosen() -> None:
    four, sixteen = found(4, [line(1e-3, 0.5), line(2e-3, 0.6)]), found(16, [line(1e-3, 0.7), line(2e-3, 0.6)])
    rates = pilot([four, sixteen]).rates()
    assert (rates.rule, rates.at(4, 8), rates.at(16, 8)) == ("tuned", 2e-3, 1e-3)
    scaled = pilot([found(4, [line(1e-3, 0.5)])], rule="sqrt").rates()
    assert scaled.at(16, 8) == 2e-3
