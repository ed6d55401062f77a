"""Mean rewards that are success rates, and those that only look like it."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.counting import SCALES, MeanReward, success_rates


def points(rewards, batch):
    """Evaluations of equal batches, as a trainer logs them."""
    found = []
    for step, each in enumerate(rewards):
        batches = [each[i : i + batch] for i in range(0, len(each), batch)]
        mean = statistics.fmean(statistics.fmean(b) for b in batches)
        deviation = statistics.fmean(statistics.stdev(b) for b in batches)
        found.append(MeanReward(step=step, mean=mean, deviation=deviation, batch=batch, batches=len(batches)))
    return found


@given(st.sampled_from(sorted(SCALES)), st.integers(0, 10**6), st.sampled_from([2, 4, 8]))
def test_successes_are_recognised_on_every_scale(scale, seed, batch):
    low, high = SCALES[scale]
    rng = random.Random(seed)
    successes = [[rng.random() < p for _ in range(32)] for p in (0.2, 0.5, 0.9)]
    logged = points([[high if s else low for s in each] for each in successes], batch)
    rates, said = success_rates(logged, "reward", scale, where="a run")
    assert list(rates.values()) == pytest.approx([statistics.fmean(each) for each in successes])
    assert bool(said) == (scale != "rate")


@pytest.mark.parametrize("scale", ["sign", "percent"])
def test_a_scale_is_said_where_it_is_not_declared(scale):
    low, high = SCALES[scale]
    logged = points([[high] * 3 + [low] * 5, [high] * 6 + [low] * 2], 8)
    rates, said = success_rates(logged, "reward", "", where="a run")
    assert list(rates.values()) == pytest.approx([3 / 8, 6 / 8])
    assert f"rewards {low:g} and {high:g}" in said


@pytest.mark.parametrize("rewards", [[0.4, 0.5, 0.6, 0.5], [0.1, 0.1, 1.1, 0.1], [0.0, 0.5, 1.0, 0.5]])
def test_shaped_rewards_within_0_and_1_are_refused(rewards):
    with pytest.raises(BudgetError, match="not a success rate"):
        success_rates(points([rewards], 4), "reward", "", where="a run")


def test_a_scale_that_is_none_is_refused():
    with pytest.raises(BudgetError, match="scale is 'stars'"):
        success_rates([MeanReward(step=0, mean=0.5)], "reward", "stars", where="a run")


def test_a_percentage_is_recognised_and_what_lies_above_100_is_none():
    rates, said = success_rates(
        [MeanReward(step=0, mean=12.5), MeanReward(step=1, mean=99.0)], "reward", "", where="a run"
    )
    assert list(rates.values()) == pytest.approx([0.125, 0.99])
    assert "rewards 0 and 100" in said
    with pytest.raises(BudgetError, match="reward is 101"):
        success_rates([MeanReward(step=0, mean=101.0)], "reward", "", where="a run")
