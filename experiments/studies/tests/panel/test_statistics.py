"""Intervals over units, the vertex, and the rules of the plan, against cases whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier.answers.forecast import holm
from scipy import stats

from experiments.studies.panel.statistics import Estimate, Rule, Verdict, clopper_pearson, over_units, slope, vertex

BOUNDS = (1.0, 5.0)
SHIFT = Rule(claimed="above", least=0.5)
FALL = Rule(claimed="below", least=0.005)


def test_of_one_setting_the_interval_is_that_of_a_t_test() -> None:
    values = [0.3, 0.9, 1.4]
    found = over_units({("needle", base): value for base, value in enumerate(values)})
    assert found.interval == pytest.approx(stats.ttest_1samp(values, 0).confidence_interval(0.95))
    assert (found.units, found.freedom) == (3, 2)


def test_fewer_than_two_units_have_no_mean() -> None:
    for values in ({}, {("hard", 0): 3.0}):
        with pytest.raises(ValueError, match="two or more do"):
            over_units(values)


def test_where_settings_and_bases_vary_their_variances_add() -> None:
    # Mean squares by hand: settings 2·var(1, 3) = 4, bases 2·var(1.5, 2.5) = 1, residuals 0.
    table = {("easy", 0): 0.5, ("easy", 1): 1.5, ("hard", 0): 2.5, ("hard", 1): 3.5}
    found = over_units(table)
    assert found.error == pytest.approx(np.sqrt(5 / 4))
    assert found.freedom == pytest.approx(25 / (16 + 1))


def test_where_only_residuals_vary_they_are_all_of_the_variance() -> None:
    table = {("easy", 0): 1.0, ("easy", 1): -1.0, ("hard", 0): -1.0, ("hard", 1): 1.0}
    found = over_units(table)
    assert (found.error, found.freedom) == (pytest.approx(1.0), 1)


def test_a_table_with_gaps_takes_units_as_independent() -> None:
    values = {("easy", 0): 0.5, ("easy", 1): 1.5, ("hard", 0): 2.5}
    found = over_units(values)
    assert found.error == pytest.approx(stats.sem(list(values.values())))


def test_satterthwaite_covers_as_it_says_with_the_panels_four_settings_and_three_bases() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(600):
        table = rng.normal(0, 1.0, (4, 1)) + rng.normal(0, 0.7, (1, 3)) + rng.normal(0, 0.5, (4, 3))
        low, high = over_units({(str(i), j): table[i, j] for i in range(4) for j in range(3)}).interval or (0, 0)
        inside += low <= 0 <= high
    assert 0.93 <= inside / 600 <= 0.98


@pytest.mark.parametrize(
    ("rule", "value", "error", "verdict"),
    [
        (SHIFT, 1.0, 0.2, Verdict.SUPPORTED),
        (SHIFT, 0.4, 0.1, Verdict.UNDECIDED),
        (SHIFT, 0.4, 0.01, Verdict.CONTRADICTED),
        (SHIFT, -1.0, 0.2, Verdict.CONTRADICTED),
        (SHIFT, 1.0, 0.8, Verdict.UNDECIDED),
        (FALL, -0.01, 0.002, Verdict.SUPPORTED),
        (FALL, -0.001, 0.001, Verdict.CONTRADICTED),
        (Rule(claimed="inside", bounds=(0.25, 0.75)), 0.5, 0.05, Verdict.SUPPORTED),
        (Rule(claimed="inside", bounds=(0.25, 0.75)), 1.0, 0.05, Verdict.CONTRADICTED),
        (Rule(claimed="inside", bounds=(0.25, 0.75)), 0.7, 0.05, Verdict.UNDECIDED),
        (Rule(claimed="equal", least=0.02), 0.001, 0.004, Verdict.SUPPORTED),
        (Rule(claimed="equal", least=0.02), 0.03, 0.005, Verdict.CONTRADICTED),
        (Rule(claimed="equal", least=0.02), 0.015, 0.005, Verdict.UNDECIDED),
        (Rule(claimed="above", bounds=(0.8,)), 0.9, 0.02, Verdict.SUPPORTED),
        (Rule(claimed="above", bounds=(0.8,)), 0.6, 0.02, Verdict.CONTRADICTED),
    ],
)
def test_each_rule_decides_by_its_interval_and_its_least_effect(
    rule: Rule, value: float, error: float, verdict: Verdict
) -> None:
    assert rule.of(Estimate(value=value, error=error, freedom=11, units=12))[0] is verdict


@given(st.floats(-3, 3), st.floats(0.01, 2), st.integers(1, 30))
def test_supported_is_an_interval_on_the_claimed_side_and_an_effect_that_counts(
    value: float, error: float, freedom: int
) -> None:
    own = Estimate(value=value, error=error, freedom=freedom, units=freedom + 1)
    low, high = own.interval or (0, 0)
    verdict = SHIFT.of(own)[0]
    assert (verdict is Verdict.SUPPORTED) == (low >= 0 and value >= 0.5)
    assert (verdict is Verdict.CONTRADICTED) == (high <= 0.5 and verdict is not Verdict.SUPPORTED)


def test_with_no_effect_a_claim_is_supported_in_a_fortieth_of_panels() -> None:
    rng = np.random.default_rng(1)
    supported = 0
    for _ in range(1000):
        units = {("one", base): value for base, value in enumerate(rng.normal(0, 5.0, 12))}
        supported += SHIFT.of(over_units(units))[0] is Verdict.SUPPORTED
    assert supported / 1000 < 0.035


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 1.0}) == {"a": 0.04, "c": 0.09, "b": 0.09, "d": 1.0}


def test_shares_have_the_exact_interval() -> None:
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert clopper_pearson(3, 10) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    assert clopper_pearson(10, 10)[1] == 1.0


def test_the_vertex_is_the_top_of_a_known_sweep_and_bounded_by_the_grid() -> None:
    at = np.arange(1.0, 6.0)
    tops = np.array([[3.3], [2.0], [7.0], [-4.0]])
    assert vertex(at, 0.5 - 0.01 * (at - tops) ** 2, BOUNDS) == pytest.approx([3.3, 2.0, 5.0, 1.0])


def test_where_the_middle_is_lowest_the_vertex_is_the_better_end() -> None:
    at = np.arange(1.0, 6.0)
    rewards = np.array([(at - 2) ** 2, (at - 4) ** 2])
    assert vertex(at, rewards, BOUNDS).tolist() == [5.0, 1.0]


def test_without_the_last_n_the_vertex_of_a_parabola_stays_where_it_is() -> None:
    at = np.arange(1.0, 5.0)
    assert vertex(at, -((at - 4.6)[None] ** 2), BOUNDS) == pytest.approx([4.6])


def test_a_slope_beside_other_columns_is_found_with_an_interval_that_holds_it() -> None:
    rng = np.random.default_rng(2)
    group_sizes = np.repeat(np.arange(1.0, 6.0), 30)
    reward = rng.uniform(0.1, 0.8, 150)
    runs = [str(k // 10) for k in range(150)]
    target = 0.3 + 0.007 * group_sizes + 0.9 * reward - 0.4 * reward**2 + rng.normal(0, 0.002, 150)
    value, low, high = slope([group_sizes, reward, reward**2], target, runs)
    assert low < 0.007 < high
    assert value == pytest.approx(0.007, abs=5e-4)
    with pytest.raises(ValueError, match="3 runs cannot give 3 coefficients"):
        slope([group_sizes, reward], target, [str(k % 3) for k in range(150)])
