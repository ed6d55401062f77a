"""A sweep fitted as one: what it says at a budget, before and after it was saved."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier, FrontierError
from isocompute.frontier.answers.answer import left_out_of
from isocompute.frontier.answers.next import plan, plan_lines, rates_to_open
from isocompute.frontier.posterior.runs import Setting

from ..conftest import TRUTH, evals, quick

pytestmark = pytest.mark.slow("many fits")


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return quick(evals(seeds=3, between=0.005))


def test_the_better_n_is_chosen_at_each_end(fitted: Fit) -> None:
    assert fitted.best(1_500).cell.rollouts_per_problem == 4
    table = fitted.regret(20_480)
    assert table["rollouts_per_problem"].to_list() == [16, 4]
    assert table["regret"].is_sorted()


def test_a_run_that_died_does_not_change_the_choice_and_is_named() -> None:
    table = evals(seeds=3, between=0.005)
    dead = pl.when((pl.col("run_id") == "n16s1") & (pl.col("rollouts") > 0)).then(0.02).otherwise(pl.col("avg_at_4"))
    broken = quick(table.with_columns(avg_at_4=dead))
    assert broken.best(20_480).cell.rollouts_per_problem == 16
    lines = broken.answer().lines()
    assert "n = 16, seed 1" in lines[0]
    assert "1 of 3 did" in "\n".join(lines)


def test_a_budget_in_tokens_buys_as_many_rollouts_as_responses_are_long(fitted: Fit) -> None:
    # Ten tokens each.
    tokens, rollouts = fitted.decide(204_800, unit="tokens"), fitted.decide(20_480)
    assert tokens.chosen.reward == pytest.approx(rollouts.chosen.reward)


def test_what_an_n_reaches_is_predicted_with_its_interval_whether_it_was_run_or_not(fitted: Fit) -> None:
    start, asymptote, tau = TRUTH[16]
    own = fitted.predict([5_000, 20_480], n=16)
    truth = start + (asymptote - start) * (1 - np.exp(-own["compute"].to_numpy() / tau))
    assert ((own["low"].to_numpy() < truth) & (truth < own["high"].to_numpy())).all()
    between = fitted.predict(20_480, n=8)
    assert (between["high"] - between["low"])[0] > (own["high"] - own["low"])[1]


def test_a_run_is_forecast_with_its_own_seed() -> None:
    table = evals(seeds=3, between=0.05, noise=0.005)
    half = quick(table.filter((pl.col("run_id") != "n16s0") | (pl.col("rollouts") <= 10_240)))
    later = table.filter(pl.col("run_id") == "n16s0", pl.col("rollouts") > 10_240)
    found = half.forecast("n16s0", later["rollouts"].to_list())
    inside = (found["low"] - 0.01 < later["avg_at_4"]) & (later["avg_at_4"] < found["high"] + 0.01)
    assert inside.mean() > 0.9
    # The other seeds of n = 16 end elsewhere: this one is told from them.
    mean = half.predict(20_480, n=16)
    assert (found["high"] - found["low"])[-1] < 1.5 * (mean["high"] - mean["low"])[0]
    with pytest.raises(FrontierError, match=r"'n9' .* n = 4, seed 0"):
        half.forecast("n9", 1e4)


def test_rates_seeds_and_rewards_that_limit_the_answer_are_named() -> None:
    fitted = quick(evals(seeds=1, points=10).with_columns(split=pl.lit("train")))
    caveats = fitted.answer().lines()[-1]
    assert "one seed: that seeds differ by 6 % of the gain is assumed" in caveats
    assert "these rewards are of training" in caveats
    runs = fitted.prepared.runs
    for rates, said in (
        ((1e-4, 1e-4), "other learning rates than the one of all runs"),
        ((1e-4, 2e-4), "each n at one, scaled by √B"),
        ((1e-4, 1e-3), "they change together, from 0.0001 at n = 4 to 0.001 at n = 16"),
    ):
        cells = tuple(replace(cell, learning_rate=rate) for cell, rate in zip(runs.cells, rates, strict=True))
        rated = replace(fitted.prepared, runs=replace(runs, cells=cells))
        assert any(said in missing for missing in left_out_of(rated, fitted.posterior, caveats=()))


def test_a_damaged_posterior_is_refused_in_one_sentence(fitted: Fit, tmp_path: Path) -> None:
    with pytest.raises(FrontierError, match=r"holds no posterior\.json"):
        Frontier.load(tmp_path)
    fitted.save(tmp_path)
    pl.DataFrame({"x0": [0.0]}).write_parquet(tmp_path / "draws.parquet")
    path = tmp_path / "posterior.json"
    text = path.read_text()
    other = text.replace('"falling"', '"rising anew"')
    for written, said in ((text, r"\(1 columns"), (other, "priors lack falling"), ("[" * 100_000, "recursion")):
        path.write_text(written)
        with pytest.raises(FrontierError, match=rf"damaged .*{said}"):
            Frontier.load(tmp_path)


def test_what_to_run_next_is_ranked_by_its_value_per_rollout(fitted: Fit) -> None:
    found = plan(fitted, 60_000)
    assert [a.rate for a in found.actions] == sorted((a.rate for a in found.actions), reverse=True)
    kinds = {a.kind for a in found.actions}
    assert kinds == {"extend", "seed", "open"}
    # n = 4 lags by 0.15: nothing is learned by going on with it.
    of_the_loser = [a for a in found.actions if a.cell.rollouts_per_problem == 4 and a.kind != "open"]
    assert all(a.value < 0.001 for a in of_the_loser)
    assert [c.rollouts_per_problem for c in found.dominated] == [4]
    assert found.done == (found.actions[0].value < 0.001)
    assert "60k rollouts" in plan_lines(found, "rollouts")[1]


def test_a_rate_next_to_the_chosen_one_is_opened_at_an_edge_of_the_rates_that_were_run() -> None:
    def cell(rate: float | None, n: int = 8) -> Setting:
        return Setting(rollouts_per_problem=n, problems_per_batch=8, learning_rate=rate)

    run = (cell(1e-4), cell(4e-4), cell(1e-3, n=16))
    assert rates_to_open(run, run[0]) == (cell(2.5e-5),)
    assert rates_to_open(run, run[1]) == (cell(1.6e-3),)
    assert rates_to_open(run, run[2]) == (cell(5e-4, n=16), cell(2e-3, n=16))
    assert rates_to_open((*run, cell(1.6e-3)), run[1]) == ()
    assert rates_to_open((cell(None),), cell(None)) == ()


def test_next_says_how_many_seeds_tell_two_n_apart(fitted: Fit) -> None:
    by_default, given = plan(fitted, 20_480), plan(fitted, 20_480, tell=(4, 16))
    assert [c.rollouts_per_problem for c in given.pair or ()] == [4, 16]
    assert given.difference == by_default.difference == pytest.approx(0.1, abs=0.02)
    # Seeds differ by 0.005.
    assert given.seeds == by_default.seeds in (1, 2)
    last = rf"  about {given.seeds} seeds? of each tell n = 4 from n = 16, should they differ by 0\.[01]\d\d reward"
    assert re.fullmatch(last, plan_lines(given, "rollouts")[-1])
    assert "  25 seeds of each would not tell n = 4 from" in plan_lines(replace(given, seeds=None), "rollouts")[-1]
    for unknown in ((4, 5), (4, 4)):
        with pytest.raises(FrontierError, match=r"different n of 4, 16"):
            plan(fitted, 20_480, tell=unknown)


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_data_frames_of_other_libraries_are_fitted_and_nothing_else_is(library: str) -> None:
    pytest.importorskip(library)
    table = evals(seeds=1)
    other = table.to_pandas() if library == "pandas" else table.to_arrow()
    assert Frontier(other).evals.equals(table)
    with pytest.raises(FrontierError, match=r"a str .*Frontier\.read"):
        Frontier("runs/")
