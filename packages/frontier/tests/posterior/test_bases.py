"""Several base models are draws: each has its own start and gain, and the answer is for another one like them."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier

pytestmark = pytest.mark.slow("many fits")

GAINS = {2: 0.30, 8: 0.38, 32: 0.34}


def sweep(starts: dict[str, float], *, tilts: dict[str, float] | None = None) -> pl.DataFrame:
    """One run per n of several base models, whose gains are tilted by a share per octave."""
    rng, parts = np.random.default_rng(1), []
    compute = np.arange(0, 13) * 1024
    for base, start in starts.items():
        for n, gain in GAINS.items():
            tilt = 1 + (tilts or {}).get(base, 0.0) * (np.log2(n) - 3)
            reward = start + gain * tilt * (1 - np.exp(-compute / 4e3))
            parts.append(
                pl.DataFrame(
                    {
                        "rollouts": compute,
                        "avg_at_4": rng.binomial(1200, reward) / 1200,
                        "base_model": base,
                        "rollouts_per_problem": n,
                        "run_id": f"{base}-{n}",
                    }
                )
            )
    fixed = {
        "problem_set": "hard",
        "split": "validation",
        "questions": 300,
        "samples": 4,
        "seed": 0,
        "problems_per_batch": 8,
    }
    return pl.concat(parts).with_columns(**{name: pl.lit(value) for name, value in fixed.items()})


@pytest.fixture(scope="module")
def three() -> Fit:
    return Frontier(sweep({"a": 0.10, "b": 0.20, "c": 0.30})).fit()


def test_settings_are_shared_and_each_base_model_has_its_own_curves(three: Fit) -> None:
    assert [c.rollouts_per_problem for c in three.cells] == [2, 8, 32]
    for k, start in enumerate((0.10, 0.20, 0.30)):
        own = three.posterior.reward(12_288.0, base=k)[:, :, 0]
        low, high = np.quantile(own, [0.005, 0.995], axis=0)
        truth = start + np.array(list(GAINS.values())) * (1 - np.exp(-12_288 / 4e3))
        assert ((low < truth) & (truth < high)).all()


def test_the_answer_is_for_another_base_model_and_says_of_how_many(three: Fit) -> None:
    lines = three.answer().lines()
    assert lines[0].startswith("3 base models; 3 values of n × 3 runs × 12 evaluations")
    assert "one base model" not in lines[-1]
    assert three.best(12_288).cell.rollouts_per_problem == 8
    new, own = (np.ptp(np.quantile(three.posterior.reward(12_288.0, base=b)[:, 1, 0], [0.05, 0.95])) for b in (None, 0))
    assert new > 2 * own


def test_base_models_that_disagree_leave_the_choice_open(three: Fit) -> None:
    apart = sweep({"a": 0.10, "b": 0.20, "c": 0.30}, tilts={"a": 0.15, "b": -0.15, "c": 0.05})
    assert three.best(12_288).probability_best > Frontier(apart).fit().best(12_288).probability_best + 0.1


def test_a_setting_that_one_base_model_lacks_is_still_learned_from_the_others() -> None:
    table = sweep({"a": 0.10, "b": 0.20, "c": 0.30})
    fitted = Frontier(table.filter((pl.col("base_model") != "c") | (pl.col("rollouts_per_problem") != 8))).fit()
    assert fitted.best(12_288).cell.rollouts_per_problem == 8


def test_runs_are_judged_beside_those_of_their_own_base_model(three: Fit) -> None:
    # Starts of 0.1 and 0.3 are no other scale and no bad start.
    assert all(len(h.findings) == 1 and not h.failed for h in three.prepared.health)


def test_problem_sets_are_draws_where_that_is_asked_for() -> None:
    few = sweep({"a": 0.10, "b": 0.20}).filter(pl.col("rollouts_per_problem") < 32, pl.col("rollouts") <= 6144)
    table = few.with_columns(problem_set=pl.lit("set-") + pl.col("base_model"))
    fitted = Frontier(table, population=("base_model", "problem_set")).fit()
    assert fitted.prepared.runs.bases == ("a, set-a", "b, set-b")
