from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.bandit.chain import advanced, evolution
from experiments.studies.bandit.law import largest_learning_rate, limit
from experiments.studies.bandit.problem import Bandit, Estimator, policy

RIGHT = Bandit(rewards=(1.0, 0.0))
NOISY = Bandit(rewards=(0.75, 0.25))
START = log(0.25 / 0.75)


def by_hand(bandit: Bandit, estimator: Estimator, logits: np.ndarray, learning_rate: float, steps: int) -> float:
    """Expected suboptimality over every sequence of answers and rewards, with both logits."""
    if not steps:
        return max(bandit.rewards) - float(policy(logits) @ np.asarray(bandit.rewards))
    probabilities, total = policy(logits), 0.0
    for answers in product((0, 1), repeat=estimator.rollouts_per_problem):
        for rewards in product((0.0, 1.0), repeat=estimator.rollouts_per_problem):
            paid = [bandit.rewards[a] if r else 1 - bandit.rewards[a] for a, r in zip(answers, rewards, strict=True)]
            chance = float(np.prod(probabilities[list(answers)]) * np.prod(paid))
            if chance:
                step = estimator.gradients(np.array([answers]), np.array([rewards]), probabilities)[0]
                total += chance * by_hand(bandit, estimator, logits + learning_rate * step, learning_rate, steps - 1)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("bandit", [RIGHT, NOISY])
@pytest.mark.parametrize(("n", "steps"), [(2, 3), (3, 2)])
def test_the_chain_equals_the_sum_over_all_sequences(bandit: Bandit, n: int, steps: int) -> None:
    estimator = Estimator(rollouts_per_problem=n)
    path = evolution(bandit, estimator, start=START, learning_rate=0.7, update_steps=steps)
    for step in range(steps + 1):
        expected = by_hand(bandit, estimator, np.array([START, 0.0]), 0.7, step)
        assert path[step] == pytest.approx(expected, abs=1e-12)


def test_what_would_leave_the_grid_stays_at_its_ends() -> None:
    after = advanced(np.array([0.25, 0.5, 0.25]), np.array([-2, 1]), np.full((2, 3), 0.5))
    assert after.tolist() == [0.5, 0.125, 0.375]


@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=6).filter(any),
    st.lists(st.integers(-8, 8), min_size=1, max_size=4, unique=True),
)
def test_a_step_moves_every_point_and_loses_nothing(mass: list[float], moves: list[int]) -> None:
    expected = np.zeros(len(mass))
    for point, here in enumerate(mass):
        for move in moves:
            expected[min(max(point + move, 0), len(mass) - 1)] += here / len(moves)
    after = advanced(np.array(mass), np.array(moves), np.full((len(moves), len(mass)), 1 / len(moves)))
    np.testing.assert_allclose(after, expected, atol=1e-15)


def test_a_grid_twice_as_fine_gives_the_same_path() -> None:
    estimator = Estimator(rollouts_per_problem=8, scale="group")
    coarse, fine = (
        evolution(RIGHT, estimator, start=START, learning_rate=0.5, update_steps=256, spacing=spacing)
        for spacing in (0.01, 0.005)
    )
    np.testing.assert_allclose(coarse, fine, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("n", [2, 4, 16])
def test_the_suboptimality_times_the_step_tends_to_its_limit(n: int, scale: str) -> None:
    estimator = Estimator(rollouts_per_problem=n, scale=scale)
    spacing = None if scale == "none" else 0.02
    path = evolution(RIGHT, estimator, start=START, learning_rate=0.5, update_steps=4096, spacing=spacing)
    bound = limit(estimator, learning_rate=0.5)
    assert path[4096] * 4096 == pytest.approx(bound, rel=0.01)
    assert abs(path[4096] * 4096 - bound) < abs(path[1024] * 1024 - bound)


def test_noise_of_the_rewards_does_not_change_the_limit() -> None:
    for n in (2, 4):
        estimator = Estimator(rollouts_per_problem=n)
        path = evolution(NOISY, estimator, start=0.0, learning_rate=1.0, update_steps=2048)
        assert path[2048] * 2048 == pytest.approx(limit(estimator, learning_rate=1.0), rel=0.02)


def test_at_a_fixed_budget_and_one_learning_rate_the_smallest_group_wins_on_one_problem() -> None:
    budget, ends = 8192, {}
    for n in (2, 3, 4, 8, 16):
        estimator = Estimator(rollouts_per_problem=n)
        ends[n] = evolution(RIGHT, estimator, start=START, learning_rate=0.5, update_steps=budget // n)[-1]
    assert sorted(ends, key=ends.__getitem__) == [2, 3, 4, 8, 16]


@pytest.mark.slow
def test_divided_by_the_deviation_three_responses_win_and_the_differences_are_small() -> None:
    budget, ends = 8192, {}
    for n in (2, 3, 4, 8):
        estimator = Estimator(rollouts_per_problem=n, scale="group")
        path = evolution(RIGHT, estimator, start=START, learning_rate=0.5, update_steps=budget // n, spacing=0.02)
        ends[n] = path[-1]
    assert min(ends, key=ends.__getitem__) == 3
    assert ends[8] < 1.4 * ends[3]


def test_above_the_largest_learning_rate_the_mean_no_longer_falls_as_one_over_t() -> None:
    estimator, largest = Estimator(rollouts_per_problem=2), largest_learning_rate(NOISY, 2)
    slower = {}
    for share in (0.25, 2.0):
        path = evolution(NOISY, estimator, start=START, learning_rate=share * largest, update_steps=4096)
        slower[share] = (path[4096] * 4096) / (path[1024] * 1024)
    assert slower[0.25] < 1.05
    assert slower[2.0] > 1.5
