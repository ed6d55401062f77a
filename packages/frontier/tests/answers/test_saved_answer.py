"""The answer of a posterior that is read and not fitted: each number here decides a sentence.

``fixtures/`` holds some draws of the fits of two tables of docs/ and of a made-up one, rounded to two digits. Where the
format of a saved posterior changes, ``python -m tests.answers.test_saved_answer`` in packages/frontier makes them
again; the digits then are those of that machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier, FrontierError
from isocompute.frontier.answers.answer import as_run, rounded
from isocompute.frontier.answers.fitted import Fitted, at_n
from isocompute.frontier.answers.next import plan, plan_lines
from isocompute.frontier.posterior.decision import Ending, Misfit
from isocompute.frontier.posterior.health import Failures
from isocompute.frontier.posterior.runs import Setting

from ..conftest import quick

FIXTURES = Path(__file__).parents[1] / "fixtures"
DOCS = FIXTURES.parents[1] / "docs"
KEPT = {"trl": 100, "playbook-easy": 50, "sudden": 50}
"""Draws of each."""


@cache
def read(name: str) -> Fit:
    """One of the fixtures."""
    return Frontier.load(FIXTURES / name)


def sudden() -> pl.DataFrame:
    """A table of curves that hardly move until they rise within a doubling of compute, later and higher at larger n."""
    rng, rows = np.random.default_rng(0), []
    compute = 2**18 * np.arange(17)
    for k, seed in np.ndindex(7, 2):
        usual = {"rollouts_per_problem": 4 * 2**k, "problems_per_batch": 32, "seed": seed, "problem_set": "x"}
        usual |= {"run_id": f"{k}-{seed}", "split": "validation", "questions": 300, "samples": 4}
        with np.errstate(divide="ignore"):
            risen = 1 / (1 + (0.6 * 1.6**k * 2**20 / compute) ** 8)
        right = 0.08 + 0.02 * (compute > 0) + (0.24 + 0.03 * k + 0.01 * rng.standard_normal()) * risen
        measured = rng.binomial(1200, right) / 1200
        rows += [{**usual, "rollouts": int(c), "avg_at_4": r} for c, r in zip(compute, measured, strict=True)]
    return pl.DataFrame(rows)


def told(rewards: np.ndarray, *, made: float = 1.0, last: Sequence[float] = (1, 1), **others: object) -> Fitted:
    """A fit of n = 16 and 4 with the same draws, shape ``(100, 2)``, at every budget; none had gained more than 0.1.

    Args:
        made: Share of its gain that n = 4 has made by its last evaluation.
        last: Compute of the last evaluations, in that of the largest.
    """
    posterior = replace(read("trl").posterior)
    vars(posterior)["share"] = lambda _: np.reshape([1.0, made], (1, 2, 1))
    fitted = replace(read("trl"), posterior=posterior)
    vars(fitted).update(others, gained=np.full(2, 0.1), last=fitted.largest * np.array(last))
    vars(fitted)["healthy"] = lambda compute: np.repeat(rewards[:, :, None], compute.shape[-1], axis=2)
    return fitted


def leading(count: int, width: float = 0.0) -> np.ndarray:
    """A hundred draws, in so many of which n = 16 leads by 0.1; n = 4 is as wide as given."""
    each = np.arange(100)
    return 0.5 + np.stack([np.where(each < count, 0.1, -0.1), np.where(each % 2, width, -width) / 2], axis=1)


def test_a_lead_is_carried_beyond_the_data_where_p_best_is_80_percent_in_every_part_of_the_draws() -> None:
    budget, lead = read("trl").largest, told(leading(80))
    assert lead.answer(budget).beyond == (4 * budget, 0.8)
    # It leads in 94 % of all, and in 76 % of one of four parts.
    uneven = leading(100)
    uneven[:24:4, 0] = 0.4
    assert told(uneven).answer(budget).beyond is told(leading(79)).answer(budget).beyond is None
    # Coverage was counted to four times the data, and a batch more.
    assert lead.answer(2.05 * budget).beyond == (4.1 * budget, 0.8)
    assert lead.answer(2.2 * budget).beyond is None
    assert told(leading(100, 0.16), made=0.4).answer(budget).beyond is None


def test_an_n_is_unknown_beyond_its_data_where_it_is_wider_than_any_gain_and_its_runs_end_early() -> None:
    for width, made, last, factor, known in (
        (0.14, 0.45, (1, 1), 2, True),
        (0.16, 0.45, (1, 1), 2, False),
        (0.16, 0.55, (1, 1), 2, True),
        (0.16, 0.55, (1, 1 / 1.4), 2, True),
        (0.16, 0.55, (1, 1 / 1.6), 2, False),
        (0.16, 0.45, (1, 1), 1.04, True),
        (0.16, 0.45, (1, 1), 1.06, False),
        # A batch of 64 rollouts is 13 % of the compute.
        (0.16, 0.45, (1 / 16, 1 / 16), 1.13, True),
        (0.16, 0.45, (1 / 16, 1 / 16), 1.14, False),
    ):
        # In the second it is the better one in half of the draws.
        for lead, said in ((0.0, " of the n that are known "), (0.1, "too little is known here of n = 4")):
            fitted = told(leading(100, width) - [lead, 0], made=made, last=last)
            answer = fitted.answer(factor * fitted.largest)
            assert answer.decision.unknown == (() if known else (fitted.cells[1],))
            assert (said in answer.lines()[1]) != known


def test_a_budget_that_nothing_can_be_said_of_is_refused_but_not_what_to_run_before_deciding_there() -> None:
    wide = told(np.where(np.arange(100)[:, None] % 2, [0.4, 0.41], 0.6))
    far = 1.06 * wide.largest
    assert wide.decide(1.04 * wide.largest).unknown == ()
    with pytest.raises(FrontierError, match=r"n = 16 may be 0\.40 to 0\.60, where no n had gained more than 0\.10"):
        wide.decide(far)
    assert "extend" in {action.kind for action in plan(wide, far).actions}
    for budget, unit, said in ((0, None, "must be above 0"), (far, "gpu_hours", "fit with --timings")):
        with pytest.raises(FrontierError, match=said):
            wide.decide(budget, unit=unit)


def test_headline_and_words_say_which_n_how_sure_that_is_and_what_the_next_one_costs() -> None:
    for leads, factor, *said in (
        # Of a hundred draws the other one is 0.1 better in ten, and 0.1 worse in the others.
        (90, 1, "Use 16 rollouts per problem × 4 problems per batch: 90 % likely", "cost 0.07 avg_at_4 (95 %: −0.09"),
        (90, 1, "At 7.68k rollouts use n = 16, ", "   P(best) 90 %"),
        (99, 1, "   P(best) >95 %"),
        (77, 1, "Undecided between n = 4, B_p = 16 and n = 16, B_p = 4: 25 % and 75 % likely", "cost 0.05 avg_at_4"),
        (77, 1, "7.68k rollouts undecided between n = 4, B_p = 16 and n = 16, B_p = 4; the least expected "),
        (90, 4.1, ", 4.1 times beyond the data, use n = 16,"),
        (90, 4.3, "4 problems per batch if no curve turns", ", 4.3 times beyond the data, and if no curve turns"),
    ):
        fitted = told(leading(leads))
        answer = fitted.answer(factor * fitted.largest)
        text = f"{answer.headline()}\n{answer.lines()[1]}"
        assert all(part in text for part in said)
    trained = replace(fitted, of_training=True).answer()
    assert trained.headline().startswith("By rewards of training: ")
    assert trained.lines()[1].startswith("By rewards of training: at 7.68k ")


def test_of_one_n_nothing_is_said_of_others_but_what_its_rates_lose() -> None:
    answer = told(leading(90)).answer()
    alone = replace(answer, decision=replace(answer.decision, options=answer.decision.options[:1])).lines()
    assert "nothing is compared, for one n was run: n = 16," in alone[1]
    assert not any("P(best) " in line or line.startswith(("n*: ", "Beyond: ")) for line in alone)
    only = answer.decision.chosen
    slower = replace(only, cell=replace(only.cell, learning_rate=2e-5), loss=0.03)
    rates = replace(answer, decision=replace(answer.decision, options=(only, slower))).lines()
    assert rates[2] == "  no other n was run; at 2e-05 it gets 0.030 less"


def test_next_says_stop_where_no_run_is_expected_to_gain_and_what_runs_cost_where_timings_are_known() -> None:
    sure = told(leading(100))
    opened = plan(sure, sure.largest)
    known = replace(opened, actions=tuple(a for a in opened.actions if a.kind != "open"))
    assert known.done
    assert plan_lines(known, "rollouts")[0].startswith("Stop: n = 16, B_p = 4, which would be chosen now, ")
    # Half of the draws have the other one 0.1 higher.
    torn = plan(told(leading(50)), sure.largest)
    assert not torn.done
    assert torn.regret == pytest.approx(0.05, abs=0.01)
    with pytest.raises(FrontierError, match="--timings"):
        plan_lines(torn, "rollouts", price=2.0)
    # A rollout of n = 4 takes three times as long, and the budget in hours buys fewer of them.
    hours = replace(told(leading(50)), hours_per_rollout=(1e-3, 3e-3))
    vars(hours).update({name: vars(told(leading(50)))[name] for name in ("gained", "last", "healthy")})
    timed = plan(hours, sure.largest)
    costs = {a.cell.rollouts_per_problem: a.hours / a.rollouts for a in timed.actions if a.hours and a.kind == "seed"}
    assert costs == {16: pytest.approx(1e-3), 4: pytest.approx(3e-3)}
    assert timed.same_hours is not None
    assert timed.same_hours.compute == pytest.approx(sure.largest * costs[timed.chosen.rollouts_per_problem])
    assert "GPU-hours" in plan_lines(timed, "rollouts", price=2.0)[-1]


def test_a_misfit_of_an_n_that_could_be_best_leaves_the_measured_ends_as_the_answer() -> None:
    sixteen, four = read("trl").cells
    astray = (Misfit(cell=four, evidence="an evaluation lies 0.30 above its curve"),)
    for leads, top, doubtful in ((99, 0.3, False), (97, 0.3, True), (99, 0.7, True)):
        tops = ((four, top), (sixteen, 0.25))
        ends = tuple(Ending(cell=c, reward=r, interval=(0.2, r), compute=1.0) for c, r in tops)
        answer = told(leading(leads), misfits=astray, endings=ends).answer()
        lines, document = answer.lines(), answer.as_dict()
        assert ("the curves do not fit n = 4, B_p = 16 (an evaluation lies 0.30" in lines[1]) == doubtful
        assert (f"n = 4, B_p = 16 at rate 0.0005: {top:.3f} (95 %: 0.200–{top:.3f}); n = 16" in lines[1]) == doubtful
        assert any(line.startswith("n*: ") for line in lines) != doubtful
        assert answer.headline().startswith("Undecided: the curves do not fit n = ") == doubtful
        assert (document["standing"] == "misfit") == (document["rollouts_per_problem"] is None) == doubtful


def test_what_was_best_earlier_is_said_of_a_quarter_of_the_budget() -> None:
    paper = read("playbook-easy")
    for budget in (4.1 * paper.path_start, 1e6, paper.largest):
        assert getattr(paper.answer(budget).earlier, "compute", None) == budget / 4
    assert paper.answer(3.9 * paper.path_start).earlier is None


def test_the_path_is_the_answer_at_every_budget() -> None:
    paper = read("playbook-easy")
    path = paper.path()
    assert [paper.decide(float(c)).chosen.cell for c in path.compute] == [paper.settings[k] for k in path.chosen]


def test_the_distance_from_the_data_is_said_and_64_times_is_the_farthest() -> None:
    paper = read("playbook-easy")
    assert " beyond the data" not in paper.answer(4e6).lines()[1]
    assert "64M rollouts, 16 times beyond the data, " in paper.answer(64e6).lines()[1]
    assert paper.answer(63.9 * paper.largest).beyond is None
    for budget, said in ((1e9, r"is 25\d times the "), (68 * paper.largest, "nothing is said beyond 64 times")):
        with pytest.raises(FrontierError, match=said):
            paper.answer(budget)


def test_the_least_budget_is_one_step_of_every_setting_or_a_64th_of_the_first_evaluation() -> None:
    trl, playbook = read("trl"), read("playbook-easy")
    tokens = 64 * max(trl.tokens_per_rollout)
    for fitted, unit, least in ((trl, "rollouts", 64), (playbook, "rollouts", 16_384), (trl, "tokens", tokens)):
        assert (fitted.answer(least, unit=unit).as_dict()["update_steps"] or 0) > 0
        with pytest.raises(FrontierError, match=f"the least is {least:,.10g}, one step of n = "):
            fitted.answer(0.99 * least, unit=unit)
    other = replace(trl, unit="tokens")
    assert "before the first evaluation at 256" in other.answer(4.01).lines()[1]
    with pytest.raises(FrontierError, match="the least is 4, a 64th"):
        other.answer(3.99)


@pytest.mark.parametrize("kind", ["saved", pytest.param("fitted", marks=pytest.mark.slow("a fit"))])
def test_where_rewards_rise_suddenly_what_was_measured_best_is_chosen_and_not_carried_on(kind: str) -> None:
    fitted = read("sudden") if kind == "saved" else quick(sudden())
    first, answer, later = fitted.endings[0], fitted.answer(), fitted.answer(4 * fitted.largest)
    (end,) = (e for e in fitted.endings if e.cell == answer.decision.chosen.cell)
    assert first.cell.rollouts_per_problem == 32
    assert end.interval[1] >= first.interval[0]
    assert answer.decision.chosen.reward == pytest.approx(end.reward, abs=0.03)
    assert answer.misfits == ()
    # Larger n are better beyond the data, and hardly begin to rise in them.
    assert later.decision.probability_of(first.cell) < 0.5
    assert "undecided" in later.lines()[1]
    assert answer.beyond is later.beyond is None


def test_an_n_without_a_run_that_failed_is_as_safe_as_expected_and_one_with_is_not_known() -> None:
    trl = read("trl")
    assert np.ptp(trl.failing, axis=0).tolist() == [0, 0]
    failures = {c: Failures(failed=k, runs=3, reward=0.2) for c, k in zip(trl.cells, (1, 0), strict=True)}
    risky = replace(trl, prepared=replace(trl.prepared, failures=failures))
    assert np.ptp(risky.failing[:, 0]) > 0.1 > 0 == np.ptp(risky.failing[:, 1])
    at = np.array([trl.largest])
    healthy, whole = risky.healthy(at)[:, 0, 0], risky.whole(at)[:, 0, 0]
    np.testing.assert_allclose(healthy - whole, risky.failing[:, 0] * np.maximum(healthy - 0.2, 0))


def test_an_n_whose_runs_all_failed_is_in_the_decision() -> None:
    trl = read("trl")
    lost = replace(trl.cells[0], rollouts_per_problem=64)
    failures = {**trl.prepared.failures, lost: Failures(failed=2, runs=2, reward=0.1)}
    fitted = replace(trl, prepared=replace(trl.prepared, failures=failures))
    (option,) = (o for o in fitted.decide(fitted.largest).options if o.cell == lost)
    assert option.failure > 0.3
    assert option.loss > 0.1
    assert "no run came through of n = 64" in "\n".join(fitted.answer().lines())
    assert plan(fitted, fitted.largest, tell=(16, 64)).pair == (trl.cells[0], lost)


def test_a_probability_is_said_to_five_points_and_a_rate_as_it_ran() -> None:
    shares = [0.0, 0.024, 0.026, 0.774, 0.776, 0.974, 0.976]
    assert [rounded(share) for share in shares] == ["<5 %", "<5 %", "5 %", "75 %", "80 %", "95 %", ">95 %"]
    assert as_run(1.25e-4) == "0.000125"


def test_an_n_that_was_not_run_has_a_rate_scaled_by_the_root_of_n() -> None:
    run = Setting(rollouts_per_problem=8, problems_per_batch=16, learning_rate=1e-6)
    for n, rate in ((32, 2e-6), (2, 5e-7), (8, 1e-6)):
        assert at_n(run, n) == replace(run, rollouts_per_problem=n, learning_rate=pytest.approx(rate))
    assert at_n(replace(run, learning_rate=None), 32).learning_rate is None


def test_chains_that_do_not_agree_to_within_a_tenth_are_said_to() -> None:
    trl = read("trl")
    for r_hat, doubtful in ((1.09, False), (1.11, True)):
        said = replace(trl, posterior=replace(trl.posterior, split_r_hat=r_hat)).answer().lines()[-1]
        assert (f"R̂ {r_hat}" in said) == doubtful


if __name__ == "__main__":
    for table, draws in KEPT.items():
        whole = (Frontier(sudden()) if table == "sudden" else Frontier.read(DOCS / f"{table}.csv")).fit()
        theta = whole.posterior.theta
        few = replace(whole.posterior, theta=theta[np.linspace(0, len(theta) - 1, draws, dtype=int)].round(2))
        replace(whole, posterior=few).save(FIXTURES / table)
