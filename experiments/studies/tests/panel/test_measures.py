"""The numbers of a unit, of made-up sweeps whose best n and rate are known."""

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from experiments.studies.panel import runs
from experiments.studies.panel.measures import Posteriors
from experiments.studies.panel.study import Unit, unit_of
from experiments.studies.panel.whole import Whole, read

pytestmark = pytest.mark.slow("many fits")

GROUP_SIZES, BUDGET, EARLY, QUESTIONS = (2, 4, 8, 16, 32), 65536, 8192, 300
TOP, ROSE = 3.0, 1.0
"""log2 of the best n at C_max, and by how many octaves it has risen since C_max/8."""
GRID = [0, *(2**k for k in range(10, 17)), *(3 * 2**k for k in range(9, 15))]


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
        run = {
            "run_id": f"n{n}x{factor}",
            "rollouts_per_problem": n,
            "problems_per_batch": 8,
            "seed": 0,
            "learning_rate": 1e-4 * factor * n**0.5,
            "kind": "trunk",
        }
        for compute in sorted(GRID):
            at = {**run, "step": compute // (8 * n), "rollouts": compute}
            rate = 0.02 if dead and compute > EARLY else reward(n, factor, compute)
            share = int(rng.binomial(QUESTIONS * 4, rate)) / (QUESTIONS * 4)
            evals.append(
                {
                    **at,
                    "tokens": 10 * compute,
                    "problem_set": "needle",
                    "split": "validation",
                    "questions": QUESTIONS,
                    "samples": 4,
                    "avg_at_4": share,
                    "best_at_4": share + 0.2 + 0.01 * octave,
                    "worst_at_4": 0.5 * share**2 - 0.01 * octave,
                    "factor": factor,
                }
            )
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


def test_the_vertex_of_a_posterior_is_the_best_n_and_its_shift_is_seen(own: Posteriors) -> None:
    late, early = (own.vertex(own.cells(1.0), budget) for budget in (BUDGET, EARLY))
    assert late.mean() == pytest.approx(TOP, abs=0.4)
    assert early.mean() < late.mean() - 0.2
    assert own.vertex(own.cells(1.0), BUDGET, since=EARLY).mean() == pytest.approx(TOP, abs=0.4)
    assert [cell.learning_rate for cell in own.tuned] == pytest.approx([1e-4 * n**0.5 for n in GROUP_SIZES])


def test_the_best_rate_grows_as_the_root_of_the_batch(own: Posteriors) -> None:
    rates = own.fit.best_rates(BUDGET)
    assert rates is not None
    assert rates.exponent_interval[0] < 0.5 < rates.exponent_interval[1]


def test_a_setting_whose_runs_all_failed_counts_with_what_they_ended_at(own: Posteriors, made: Whole) -> None:
    assert own.cells(2.0)[-1] not in own.fit.cells
    drawn = own.vertex(own.cells(2.0), BUDGET)
    assert drawn.mean() < TOP + 0.5
    counted = {(row["n"], row["factor"]): row for row in runs.failures(made, own.fit)}
    assert counted[32, 2.0] == {"n": 32, "factor": 2.0, "runs": 1, "below the base": 1, "collapsed": 1}
    assert sum(row["collapsed"] for row in counted.values()) == 1


def test_slopes_beside_the_reward_are_those_that_were_put_in(own: Posteriors, made: Whole) -> None:
    for metric, expected in (("best_at_4", 0.01), ("worst_at_4", -0.01)):
        assert runs.at_equal_reward(made, own.fit, metric)[0] == pytest.approx(expected, abs=1e-3)
    assert runs.rare_way(made, own.fit)[0] == pytest.approx(0.03)
    value, low, high = runs.polarised(made, own.fit)
    assert low <= -0.02 <= high
    assert value < 0


def test_what_a_quarter_prescribes_is_judged_by_the_whole(own: Posteriors) -> None:
    regret, against = own.prescribed((8, 16))
    assert regret["prescribed"] < 0.1
    assert min(regret.values()) >= 0
    assert against.mean() == pytest.approx(regret["prescribed"] - regret["n = 8"], abs=1e-9)


def test_without_cells_of_equal_batches_nothing_is_said_of_them(own: Posteriors, made: Whole) -> None:
    assert own.equal_batches() is None
    own_rows = (pl.col("rollouts_per_problem") == 16) & (pl.col("factor") == 1.0)
    small, large = pl.lit(4, pl.Int64), pl.lit(32, pl.Int64)
    wide = made.evals.filter(own_rows).with_columns(
        run_id=pl.lit("wide"), rollouts_per_problem=small, problems_per_batch=large, kind=pl.lit("equal batch")
    )
    more = replace(made, evals=pl.concat([made.evals, wide]))
    drawn = Posteriors(whole=more).equal_batches()
    assert drawn is not None
    assert np.quantile(drawn, 0.025) < 0 < np.quantile(drawn, 0.975)


def test_the_cells_of_a_committed_unit_are_told_apart() -> None:
    whole = read(unit_of("hard-0"))
    runs_of = whole.evals.group_by("kind").agg(pl.col("run_id").n_unique(), pl.col("factor").n_unique())
    assert {kind: count for kind, count, _ in runs_of.iter_rows()} == {
        "trunk": 15,
        "seed": 5,
        "branch": 10,
        "equal batch": 2,
    }
    assert set(whole.trunks["factor"]) == {0.5, 1.0, 2.0}
    assert (whole.budget, whole.problems) == (65536, 256)
    assert set(whole.training["rollouts"]) == {1024, 4096, 16384, 65536}
