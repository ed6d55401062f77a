"""Decisions by expected regret."""

import numpy as np
from isocompute.frontier.posterior.decision import decide
from isocompute.frontier.posterior.runs import Setting

CELLS = tuple(Setting(rollouts_per_problem=n, problems_per_batch=8) for n in (8, 16, 32))
NEVER = np.zeros(3)


def draws(means: list[float], deviations: list[float]) -> np.ndarray:
    return np.random.default_rng(0).normal(means, deviations, size=(40_000, 3))


def decided(rewards: np.ndarray, failing: np.ndarray = NEVER, reach: tuple[float, ...] = (1, 1, 1)):
    return decide(1e5, CELLS, rewards, failing, np.full(3, 0.1), np.array(reach, dtype=float))


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
    assert decided(rewards, reach=(1, 1, 4)).chosen.cell.rollouts_per_problem == 16


def test_what_loses_little_is_near() -> None:
    found = decided(draws([0.5, 0.497, 0.4], [0.001, 0.001, 0.001]))
    assert [o.cell.rollouts_per_problem for o in found.near()] == [8, 16]
    assert found.known


def test_a_tie_is_a_thousandth_and_near_is_five() -> None:
    for behind, chosen in ((0.0008, 32), (0.0012, 8)):
        found = decided(draws([0.5, 0.3, 0.5 - behind], [1e-6, 1e-6, 1e-6]))
        assert found.chosen.cell.rollouts_per_problem == chosen
    for behind, near in ((0.0048, [8, 16]), (0.0052, [8])):
        found = decided(draws([0.5, 0.5 - behind, 0.4], [1e-6, 1e-6, 1e-6]))
        assert [o.cell.rollouts_per_problem for o in found.near()] == near
