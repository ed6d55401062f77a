"""Decisions by expected regret, failure rates, and the value of what could be run next."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.posterior.decision import Decision, decide, failure_rates, seeds_to_tell, value_of
from isocompute.frontier.posterior.runs import Setting
from scipy.stats import norm

CELLS = tuple(Setting(rollouts_per_problem=n, problems_per_batch=8) for n in (8, 16, 32))
NEVER = np.zeros(3)


def draws(means: list[float], deviations: list[float]) -> np.ndarray:
    return np.random.default_rng(0).normal(means, deviations, size=(40_000, 3))


def decided(rewards: np.ndarray, failing: np.ndarray = NEVER, **others: Any) -> Decision:
    given = {"cells": CELLS, "reach": np.ones(3), "known": np.ones(3, dtype=bool), **others}
    return decide(1e5, whole=rewards - failing * (rewards - 0.1), rewards=rewards, failing=failing, **given)


def test_the_regret_of_two_normal_rewards_is_the_known_one() -> None:
    found = decided(draws([0.5, 0.5, 0.0], [0.02, 0.02, 1e-9]))
    # E max(X, Y) − μ = σ/√π.
    assert abs(found.chosen.regret - 0.02 / np.sqrt(np.pi)) < 3e-4


def test_a_wide_interval_is_no_advantage() -> None:
    found = decided(draws([0.5, 0.48, 0.3], [0.01, 0.2, 0.01]))
    assert found.chosen.cell.rollouts_per_problem == 8
    assert found.options[1].probability_best > 0.4


def test_a_setting_whose_runs_fail_is_not_chosen() -> None:
    failing = np.array([0.01, 0.6, 0.01])
    found = decided(draws([0.5, 0.55, 0.3], [0.01, 0.01, 0.01]), failing)
    assert found.chosen.cell.rollouts_per_problem == 8
    risky = next(o for o in found.options if o.cell.rollouts_per_problem == 16)
    # It loses what it fails to: 0.6 · (0.55 − 0.1), less its lead.
    assert abs(risky.loss - (0.6 * 0.45 - 0.05)) < 0.01


def test_a_tie_goes_to_what_was_measured_so_far_then_to_fewer_steps() -> None:
    rewards = draws([0.5, 0.5, 0.5], [1e-5, 1e-5, 1e-5])
    assert decided(rewards).chosen.cell.rollouts_per_problem == 32
    assert decided(rewards, reach=np.array([1, 1, 4])).chosen.cell.rollouts_per_problem == 16


def test_a_tie_is_a_thousandth_and_near_is_five() -> None:
    for behind, chosen in ((0.0008, 32), (0.0012, 8)):
        found = decided(draws([0.5, 0.3, 0.5 - behind], [1e-6, 1e-6, 1e-6]))
        assert found.chosen.cell.rollouts_per_problem == chosen
    for behind, near in ((0.0048, [8, 16]), (0.0052, [8])):
        found = decided(draws([0.5, 0.5 - behind, 0.4], [1e-6, 1e-6, 1e-6]))
        assert found.known
        assert [o.cell.rollouts_per_problem for o in found.near()] == near


def test_p_best_of_an_n_is_that_of_all_its_rates() -> None:
    cells = tuple(replace(CELLS[n], learning_rate=rate) for n, rate in ((0, 1e-4), (0, 2e-4), (1, 1e-4)))
    found = decided(draws([0.5, 0.5, 0.49], [0.01, 0.01, 0.01]), cells=cells)
    shares = [o.probability_best for o in found.options]
    assert sum(shares) == pytest.approx(1)
    assert found.probability_of(cells[2]) == shares[2]
    assert found.probability_of(cells[0]) == found.probability_of(cells[1]) == pytest.approx(shares[0] + shares[1])
    assert [o.cell for o in found.rivals] == [cells[2]]


def test_two_n_are_undecided_below_80_percent_where_the_second_may_lose_nothing() -> None:
    for ahead, undecided in ((0.0183, CELLS[:2]), (0.0195, ())):
        # P(best) of the first is Φ(ahead / 0.025): 76.8 %, printed as 75, and 78.2 %, printed as 80.
        found = decided(draws([0.5, 0.5 - ahead, 0.1], [0.025, 1e-9, 1e-9]))
        assert tuple(o.cell for o in found.undecided) == undecided
    # What is best in 21 % of the draws is the third in regret; the second always loses.
    far = decided(np.where(np.arange(100)[:, None] < 21, [0.5, 0.4, 0.6], [0.5, 0.48, 0.1]))
    assert far.probability_of(CELLS[0]) == 0.79
    assert far.undecided == ()


def test_an_n_that_is_not_known_keeps_its_share_and_is_not_chosen() -> None:
    found = decided(draws([0.5, 0.4, 0.55], [0.01, 0.01, 0.2]), known=np.array([True, True, False]))
    assert found.chosen.cell == CELLS[0]
    assert found.unknown == (CELLS[2],)
    assert 0.55 < found.probability_of(CELLS[2]) < 0.65
    assert found.chosen.regret > 0.1
    assert not found.known


def rates(failed: list[int], runs: list[int], rate: list[float] | None = None, of: Any = np.mean) -> np.ndarray:
    at = np.stack([np.zeros(len(runs)), rate or np.zeros(len(runs))], axis=1)
    return of(failure_rates(np.array(failed), np.array(runs), at, draws=4000, rng=np.random.default_rng(0)), axis=0)


def test_how_often_a_setting_fails_is_known_better_the_more_of_it_was_run() -> None:
    assert rates([1, 0], [1, 1], of=np.std)[0] > 0.15
    # That of a share of 40.
    assert rates([20, 0], [40, 40], of=np.std)[0] == pytest.approx(np.sqrt(0.25 / 40), abs=0.01)


@pytest.mark.parametrize(
    ("failed", "runs", "rate", "low", "high"),
    [
        # One that failed, more often than its siblings of as many runs.
        ([1, 0, 0], [4] * 3, None, [0.1, 0, 0], [0.25, 0.1, 0.1]),
        # Many runs of settings that differ keep their own rates; one without a run has about that of the others.
        ([30, 0], [40, 40], None, [0.7, 0], [0.8, 0.05]),
        ([5, 5, 5, 5, 0], [20, 20, 20, 20, 0], None, [0.19] * 5, [0.31] * 5),
        # Two n at three rates: where twice the rate fails always, the rate itself is little suspected.
        ([0, 0, 1, 0, 0, 1], [1, 2, 1, 1, 2, 1], [-1, 0, 1] * 2, [0, 0.08, 0.4] * 2, [0.08, 0.2, 1] * 2),
    ],
)
def test_how_often_a_setting_fails_lies_between_its_own_runs_and_those_of_its_siblings(
    failed: list[int], runs: list[int], rate: list[float] | None, low: list[float], high: list[float]
) -> None:
    mean = rates(failed, runs, rate)
    assert ((low < mean) & (mean < high)).all(), mean


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-2, 2)), min_size=1, max_size=6))
def test_rates_lie_within_0_and_1_and_do_not_depend_on_the_order(counts: list[tuple[int, int, float]]) -> None:
    failed, runs = [min(a, b) for a, b, _ in counts], [b for _, b, _ in counts]
    rate = [r for *_, r in counts]
    found = rates(failed, runs, rate)
    assert ((found > 0) & (found < 1)).all()
    np.testing.assert_allclose(rates(failed[::-1], runs[::-1], rate[::-1])[::-1], found, atol=0.04)


RNG = np.random.default_rng


def test_the_value_of_a_measurement_is_the_known_one_for_normal_rewards() -> None:
    drawn = RNG(0).normal([0.0, 0.0], [0.1, 1e-9], size=(40_000, 2))
    noise = 0.1
    value = value_of(drawn, drawn[:, 0], np.full(40_000, noise), rng=RNG(1))
    # The mean after the measurement has the deviation σ²/√(σ² + noise²), and its positive part σ̃·φ(0).
    assert value == pytest.approx(0.1**2 / np.hypot(0.1, noise) * norm.pdf(0), rel=0.03)


def test_nothing_is_worth_measuring_that_cannot_change_the_choice() -> None:
    drawn = RNG(0).normal([0.5, 0.1], [0.01, 0.01], size=(10_000, 2))
    assert value_of(drawn, drawn[:, 1], np.full(10_000, 0.01), rng=RNG(1)) == pytest.approx(0, abs=1e-4)


def test_the_seeds_that_tell_two_settings_apart_do() -> None:
    difference, deviation = 0.03, 0.03
    count = seeds_to_tell(difference, deviation)
    assert count is not None
    rng = RNG(0)
    means = rng.normal([0, difference], deviation / np.sqrt(count), size=(20_000, 2))
    told = np.abs(means[:, 1] - means[:, 0]) > 1.96 * deviation * np.sqrt(2 / count)
    assert 0.79 < told.mean() < 0.83


def test_no_number_of_seeds_tells_equal_settings_apart_and_nobody_is_told_to_run_more_than_25() -> None:
    assert seeds_to_tell(0.0, 0.05) is None
    assert seeds_to_tell(1e-6, 0.05) is None
    # 2·(2.80·σ/d)² seeds: 24.7 and 25.3.
    assert seeds_to_tell(1.0, 1.255) == 25
    assert seeds_to_tell(1.0, 1.27) is None
