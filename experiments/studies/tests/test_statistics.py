"""Numbers of units: intervals over units, the vertex, the rules of the plan, and measures of made-up sweeps."""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.studies.panel import runs
from experiments.studies.panel.measures import AS_PINNED, SQRT, Posteriors, readings
from experiments.studies.panel.statistics import Estimate, Rule, Verdict, over_units, slope, vertex
from experiments.studies.panel.study import Unit, unit_of
from experiments.studies.panel.whole import Whole, read

FITS = pytest.mark.skipif("ISOCOMPUTE_FITS" not in os.environ, reason="fits: python3 -m nox -s studies")
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


GROUP_SIZES, BUDGET, EARLY, QUESTIONS = (2, 4, 8, 16, 32), 65536, 8192, 300
TOP, ROSE = 3.0, 1.0
"""log2 of the best n at C_max, and by how many octaves it has risen since C_max/8."""
GRID = [0, *(2**k for k in range(10, 17)), *(3 * 2**k for k in range(9, 15))]


ASKED = {"problem_set": "needle", "split": "validation", "questions": QUESTIONS, "samples": 4}


def reward(n: int, factor: float, compute: float) -> float:
    """A curve whose parabola in log2 n has its top at TOP at C_max, and ROSE octaves lower at C_max/8."""
    top = TOP + ROSE * np.log2(max(compute, 1) / BUDGET) / 3
    height = 0.55 - 0.04 * (np.log2(n) - top) ** 2 - 0.08 * np.log2(factor) ** 2
    return float(0.07 + height * (1 - np.exp(-compute / 25000)))


@pytest.fixture(scope="module")
def made() -> Whole:
    rng = np.random.default_rng(0)
    evals, training, lengths = [], [], []
    for n, factor in product(GROUP_SIZES, (0.5, 1.0, 2.0)):
        octave, dead = np.log2(n), (n, factor) == (32, 2.0)
        own = {"run_id": f"n{n}x{factor}", "rollouts_per_problem": n, "learning_rate": 1e-4 * factor * n**0.5}
        run = {**own, "problems_per_batch": 8, "seed": 0, "kind": "trunk"}
        for compute in sorted(GRID):
            at = {**run, "step": compute // (8 * n), "rollouts": compute}
            rate = 0.02 if dead and compute > EARLY else reward(n, factor, compute)
            share = int(rng.binomial(QUESTIONS * 4, rate)) / (QUESTIONS * 4)
            scores = {"avg_at_4": share, "best_at_4": share + 0.2 + 0.01 * octave}
            scores["worst_at_4"] = 0.5 * share**2 - 0.01 * octave
            evals.append({**at, "tokens": 10 * compute, "factor": factor, **ASKED, **scores})
            lengths.append({"run_id": run["run_id"], "step": at["step"], "length": 4 + 0.03 * octave})
            if compute in (4096, BUDGET):
                never = rng.random(256) < 0.3 - 0.02 * octave
                counts = np.where(never, 0, rng.binomial(16, min(0.99, 1.2 * rate), 256))
                training += [
                    {**at, "problem_id": str(k), "successes": int(c), "samples": 16} for k, c in enumerate(counts)
                ]
    return Whole(
        unit=Unit(task="needle", problem_set="needle", base_seed=0),
        group_sizes=GROUP_SIZES,
        problems_per_batch=8,
        problems=256,
        budget=BUDGET,
        evals=pl.DataFrame(evals),
        training=pl.DataFrame(training),
        lengths=pl.DataFrame(lengths),
        probe={},
    )


@pytest.fixture(scope="module")
def own(made: Whole) -> Posteriors:
    return Posteriors(whole=made)


@FITS
@pytest.mark.slow
def test_the_vertex_of_a_posterior_is_the_best_n_and_its_shift_is_seen(own: Posteriors) -> None:
    late, early = (own.vertex(SQRT, budget) for budget in (BUDGET, EARLY))
    assert late.mean() == pytest.approx(TOP, abs=0.4)
    assert early.mean() < late.mean() - 0.2
    assert own.vertex(SQRT, BUDGET, since=EARLY).mean() == pytest.approx(TOP, abs=0.4)
    # However it is read: less an n, of the highest n or of the last evaluations alone.
    for reading in readings(SQRT).values():
        assert own.vertex(reading, BUDGET).mean() == pytest.approx(TOP, abs=0.6)
    assert [cell.learning_rate for cell in own.tuned] == pytest.approx([1e-4 * n**0.5 for n in GROUP_SIZES])
    # The best rate grows as the root of the batch.
    low, high = own.fit.best_rates(BUDGET).exponent_interval  # type: ignore[union-attr]
    assert low < 0.5 < high


@FITS
@pytest.mark.slow
def test_a_setting_whose_runs_all_failed_is_not_certain_to_fail_again(own: Posteriors, made: Whole) -> None:
    cells = own.cells(2.0)
    assert cells[-1] not in own.fit.cells
    low, high = np.quantile(own.rewards(cells, BUDGET, "expected")[:, -1], [0.025, 0.975])
    assert high - low > 0.1
    assert own.rewards(cells, BUDGET, "healthy")[:, -1].mean() > own.rewards(cells, BUDGET, "measured")[0, -1] + 0.2
    assert own.vertex(replace(SQRT, factors=(2.0,)), BUDGET).mean() < TOP + 0.5
    counted = {(row["n"], row["factor"]): row for row in runs.failures(made, own.fit)}
    assert counted[32, 2.0] == {"n": 32, "factor": 2.0, "runs": 1, "failed": 1}
    assert sum(row["failed"] for row in counted.values()) == 1


@FITS
@pytest.mark.slow
def test_slopes_beside_the_reward_are_those_that_were_put_in(own: Posteriors, made: Whole) -> None:
    for metric, expected in (("best_at_4", 0.01), ("worst_at_4", -0.01)):
        found = runs.filtered(made, own.fit, runs.at_equal_reward, metric)
        assert found[AS_PINNED][0] == pytest.approx(expected, abs=1e-3)
        assert found["edges: no n = 2"][0] == pytest.approx(expected, abs=2e-3)
    assert runs.filtered(made, own.fit, runs.rare_way, "length")[AS_PINNED][0] == pytest.approx(0.03)
    value, low, high = runs.filtered(made, own.fit, runs.polarised, "share")[AS_PINNED]
    assert low <= -0.02 <= high
    assert value < 0


@FITS
@pytest.mark.slow
def test_what_a_quarter_prescribes_is_judged_by_the_whole(own: Posteriors) -> None:
    regret, against = own.prescribed((8, 16))
    assert regret["prescribed"] < 0.1
    assert min(regret.values()) >= 0
    assert against["n = 8"].mean() == pytest.approx(regret["prescribed"] - regret["n = 8"], abs=1e-9)
    assert against["n = 8 × 2"].mean() < against["n = 8 × 1"].mean()


@FITS
@pytest.mark.slow
def test_without_cells_of_equal_batches_nothing_is_said_of_them(own: Posteriors, made: Whole) -> None:
    assert own.equal_batches() is None
    own_rows = (pl.col("rollouts_per_problem") == 16) & (pl.col("factor") == 1.0)
    small, large = pl.lit(4, pl.Int64), pl.lit(32, pl.Int64)
    wide = made.evals.filter(own_rows).with_columns(
        run_id=pl.lit("wide"), rollouts_per_problem=small, problems_per_batch=large, kind=pl.lit("equal batch")
    )
    plain = made.evals.filter(pl.col("factor") == 1.0)
    drawn = Posteriors(whole=replace(made, evals=pl.concat([plain, wide]))).equal_batches()
    assert drawn is not None
    assert np.quantile(drawn, 0.025) < 0 < np.quantile(drawn, 0.975)


@pytest.mark.slow
def test_the_cells_of_a_committed_unit_are_told_apart() -> None:
    whole = read(unit_of("hard-0"))
    runs_of = whole.evals.group_by("kind").agg(pl.col("run_id").n_unique(), pl.col("factor").n_unique())
    counted = {kind: count for kind, count, _ in runs_of.iter_rows()}
    assert counted == {"trunk": 15, "seed": 5, "branch": 10, "equal batch": 2}
    assert set(whole.trunks["factor"]) == {0.5, 1.0, 2.0}
    assert (whole.budget, whole.problems) == (65536, 256)
    assert set(whole.training["rollouts"]) == {1024, 4096, 16384, 65536}
