"""The answer of a posterior that is read and not fitted: each number here decides a sentence.

``fixtures/`` holds some draws of the fits of two tables of docs/, rounded to two digits. Where the format of a saved
posterior changes, ``python packages/frontier/tests/answers/test_saved_answer.py`` makes them again; the digits then are
those of that machine.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from isocompute.frontier import Frontier, FrontierError
from isocompute.frontier.answers.fitted import Fitted, at_n, load_fitted, save
from isocompute.frontier.posterior.runs import Setting

FIXTURES = Path(__file__).parents[1] / "fixtures"
KEPT = {"trl": 100, "playbook-easy": 50}
"""Draws of each."""


@cache
def read(name: str) -> Fitted:
    """One of the fixtures."""
    return load_fitted(FIXTURES / name)


def lead(fitted: Fitted, budget: float) -> float:
    """P(best) of the chosen setting of two, of which n = 4 is chosen at every budget."""
    chosen = fitted.decide(budget, guess=True).chosen
    assert chosen.cell.rollouts_per_problem == 4
    return chosen.probability_best


def test_a_lead_is_carried_beyond_the_data_where_p_best_is_80_percent_there() -> None:
    trl = read("trl")
    assert 0.8 < lead(trl, 10_000) < 0.85
    assert 0.75 < lead(trl, 12_000) < 0.8
    assert trl.answer(5_000).beyond == (10_000, lead(trl, 10_000))
    assert trl.answer(6_000).beyond is None
    # Four times the budget is as far as it is carried.
    assert trl.answer(500).beyond == (2_000, lead(trl, 2_000))


def test_a_setting_is_not_known_where_its_interval_beyond_its_data_is_as_wide_as_its_gain() -> None:
    trl = read("trl")
    for budget in (500, 7_680, 15_000, 25_000, 30_000, 200_000):
        low, high = np.quantile(trl.posterior.reward(budget)[:, :, 0], [0.025, 0.975], axis=0)
        wide = [c.rollouts_per_problem for c, w in zip(trl.cells, (high - low) / trl.gained, strict=True) if w > 1]
        assert [c.rollouts_per_problem for c in trl.decide(budget).unknown] == wide
        assert wide == ([16] if budget >= 30_000 else [])
    # Within its data a setting is known however wide its interval is.
    timid = replace(trl)
    timid.__dict__["gained"] = trl.gained / 10
    assert timid.decide(7_680).unknown == ()
    with pytest.raises(FrontierError, match="n = 16"):
        timid.decide(7_700)


def test_what_was_best_earlier_is_said_of_a_quarter_of_the_budget() -> None:
    paper = read("playbook-easy")
    for budget in (4.1 * paper.path_start, 1e6, paper.largest):
        earlier = paper.answer(budget).earlier
        assert earlier is not None
        assert earlier.compute == budget / 4
    assert paper.answer(3.9 * paper.path_start).earlier is None


def test_of_settings_that_are_as_good_at_the_quarter_the_one_of_the_path_is_named() -> None:
    paper, another = read("playbook-easy"), 0
    for budget in (7e5, 2.8e6, 2.93e6, 3.2e6):
        answer = paper.answer(budget)
        near = [o.cell.rollouts_per_problem for o in paper.decide(budget / 4).near()]
        at, later = (answer.cells[answer.path.at(budget / k)].rollouts_per_problem for k in (4, 2))
        assert f"n* = {at if at in near else near[0]}, P(best)" in answer.lines()[2]
        another += at in near and at not in (near[0], later)
    assert another


@pytest.mark.parametrize(("n", "rate"), [(32, 2e-6), (2, 5e-7), (8, 1e-6)])
def test_an_n_that_was_not_run_has_a_rate_scaled_by_the_root_of_n(n: int, rate: float) -> None:
    run = Setting(rollouts_per_problem=8, problems_per_batch=16, learning_rate=1e-6)
    made = at_n(run, n)
    assert (made.rollouts_per_problem, made.problems_per_batch) == (n, 16)
    assert made.learning_rate == pytest.approx(rate)
    assert at_n(replace(run, learning_rate=None), n).learning_rate is None


def test_chains_that_do_not_agree_to_within_a_tenth_are_said_to() -> None:
    trl = read("trl")
    for r_hat, doubtful in ((1.09, False), (1.11, True)):
        said = replace(trl, posterior=replace(trl.posterior, split_r_hat=r_hat)).answer().lines()[-1]
        assert (f"R̂ {r_hat}" in said) == doubtful


def test_use_is_said_where_p_best_is_a_half_or_more() -> None:
    paper, said = read("playbook-easy"), set()
    for budget in (1e6, 2e6, 2.7e6, 2.8e6):
        sure = paper.decide(budget).chosen.probability_best >= 0.5
        assert (" use n = " in paper.answer(budget).lines()[1]) == sure
        said.add(sure)
    assert said == {True, False}


if __name__ == "__main__":
    for table, draws in KEPT.items():
        whole = Frontier.read(FIXTURES.parents[1] / "docs" / f"{table}.csv").fit()
        theta = whole.posterior.theta
        few = replace(whole.posterior, theta=theta[:: len(theta) // draws].round(2))
        save(replace(whole, posterior=few), FIXTURES / table)
