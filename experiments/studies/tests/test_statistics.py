"""Numbers of units: intervals over units, the vertex, the rules of the plan, and measures of made-up sweeps."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.studies.panel.statistics import Estimate, Rule, Verdict, over_units, slope, vertex
from experiments.studies.panel.study import unit_of
from experiments.studies.panel.whole import read

BOUNDS = (1.0, 5.0)
SHIFT = Rule(claimed="above", least=0.5)
FALL = Rule(claimed="below", least=0.005)
INSIDE, EQUAL = Rule(claimed="inside", bounds=(0.25, 0.75)), Rule(claimed="equal", least=0.02)
BOUNDED = Rule(claimed="above", bounds=(0.8,))


def test_of_one_setting_the_interval_is_that_of_a_t_test() -> None:
    values = [0.3, 0.9, 1.4]
    found = over_units({("needle", base): value for base, value in enumerate(values)})
    assert found.interval == pytest.approx(stats.ttest_1samp(values, 0).confidence_interval(0.95))
    assert (found.units, found.freedom) == (3, 2)


def test_where_settings_and_bases_vary_their_variances_add() -> None:
    # Mean squares by hand: settings 2·var(1, 3) = 4, bases 2·var(1.5, 2.5) = 1, residuals 0.
    found = over_units({("easy", 0): 0.5, ("easy", 1): 1.5, ("hard", 0): 2.5, ("hard", 1): 3.5})
    assert (found.error, found.freedom) == (pytest.approx(np.sqrt(5 / 4)), pytest.approx(25 / (16 + 1)))
    # Where only residuals vary they are all of the variance.
    found = over_units({("easy", 0): 1.0, ("easy", 1): -1.0, ("hard", 0): -1.0, ("hard", 1): 1.0})
    assert (found.error, found.freedom) == (pytest.approx(1.0), 1)
    # A table with gaps takes units as independent, and fewer than two have no mean.
    values = {("easy", 0): 0.5, ("easy", 1): 1.5, ("hard", 0): 2.5}
    assert over_units(values).error == pytest.approx(stats.sem(list(values.values())))
    for few in ({}, {("hard", 0): 3.0}):
        with pytest.raises(ValueError, match="two or more do"):
            over_units(few)


@pytest.mark.parametrize(
    ("rule", "value", "error", "verdict"),
    [
        (FALL, -0.01, 0.002, Verdict.SUPPORTED),
        (INSIDE, 0.5, 0.05, Verdict.SUPPORTED),
        (EQUAL, 0.001, 0.004, Verdict.SUPPORTED),
        (BOUNDED, 0.9, 0.02, Verdict.SUPPORTED),
        (INSIDE, 0.7, 0.05, Verdict.UNDECIDED),
        (EQUAL, 0.015, 0.005, Verdict.UNDECIDED),
        (FALL, -0.001, 0.001, Verdict.CONTRADICTED),
        (INSIDE, 1.0, 0.05, Verdict.CONTRADICTED),
        (EQUAL, 0.03, 0.005, Verdict.CONTRADICTED),
        (BOUNDED, 0.6, 0.02, Verdict.CONTRADICTED),
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


def test_the_vertex_is_the_top_of_a_known_sweep_and_bounded_by_the_grid() -> None:
    at = np.arange(1.0, 6.0)
    tops = np.array([[3.3], [2.0], [7.0], [-4.0]])
    assert vertex(at, 0.5 - 0.01 * (at - tops) ** 2, BOUNDS) == pytest.approx([3.3, 2.0, 5.0, 1.0])
    # Where the middle is lowest it is the better end; without the last n that of a parabola stays where it is.
    assert vertex(at, np.array([(at - 2) ** 2, (at - 4) ** 2]), BOUNDS).tolist() == [5.0, 1.0]
    assert vertex(at[:4], -((at[:4] - 4.6)[None] ** 2), BOUNDS) == pytest.approx([4.6])


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


@pytest.mark.slow
def test_the_cells_of_a_committed_unit_are_told_apart() -> None:
    whole = read(unit_of("hard-0"))
    runs_of = whole.evals.group_by("kind").agg(pl.col("run_id").n_unique(), pl.col("factor").n_unique())
    counted = {kind: count for kind, count, _ in runs_of.iter_rows()}
    assert counted == {"trunk": 15, "seed": 5, "branch": 10, "equal batch": 2}
    assert set(whole.trunks["factor"]) == {0.5, 1.0, 2.0}
    assert (whole.budget, whole.problems) == (65536, 256)
    assert set(whole.training["rollouts"]) == {1024, 4096, 16384, 65536}
