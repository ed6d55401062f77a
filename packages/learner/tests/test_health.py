"""Synthetic runs that must raise a flag, and ones that must not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from isocompute.learner.health import Flag, Thresholds, flags
from isocompute.learner.records import Average, EvaluationRecord, ResponseStatistics, StepRecord, UpdateReport

STEPS = 120
NOISE = 0.04


def update(*, weight: float = 1.0, k3: float = 1e-4, square: float = 1.0) -> UpdateReport:
    names = {"importance_weight": weight, "mismatch_k3": k3, "token_ratio": 1.0, "token_ratio_square": square}
    objective = {name: Average(total=100 * value, count=100) for name, value in names.items()}
    return UpdateReport(objective=objective, gradient_norm=1.0, learning_rate=1e-4)


def run(
    *,
    entropy: Callable[[float], float] = lambda t: 0.6 - 0.2 * t,
    length: Callable[[float], float] = lambda t: 20.0 + 5 * t,
    truncated: Callable[[float], float] = lambda t: 0.02,
    reward: Callable[[float], float] = lambda t: 0.3 + 0.4 * t,
    dropped: Callable[[float], int] = lambda t: 0,
    report: Callable[[float], UpdateReport | None] = lambda t: update(),
    steps: int = STEPS,
    seed: int = 0,
) -> list[Any]:
    """Records of a healthy run, apart from what is given: numbers as functions of the time from 0 to 1, with noise."""
    rng, records = np.random.default_rng(seed), []
    for step in range(1, steps + 1):
        t = step / steps
        luck = rng.normal(size=4)
        responses = ResponseStatistics(
            reward=reward(t) + NOISE * luck[0], reward_std=0.4, zero_variance_share=0.2,
            response_length=length(t) * (1 + 0.05 * luck[1]), truncated_share=abs(truncated(t) + 0.01 * luck[2]),
            sampled_entropy=entropy(t) * (1 + 0.05 * luck[3]),
        )  # fmt: skip
        records.append(
            StepRecord(
                step=step,
                rollouts=32 * step,
                sample_seconds=1.0,
                update_seconds=1.0,
                responses=responses,
                update=report(t),
                dropped_problems=dropped(t),
            )
        )
    return records


def names(records: list[Any], thresholds: Thresholds | None = None) -> list[str]:
    return [flag.name for flag in flags(records, thresholds)]


def only(records: list[Any]) -> Flag:
    (flag,) = flags(records)
    return flag


def test_a_healthy_run_has_no_flag() -> None:
    assert flags(run()) == []


@pytest.mark.parametrize("level", [0.02, 0.3, 0.97])
def test_a_run_without_any_effect_has_no_flag(level: float) -> None:
    """As many seeds as show that noise alone seldom raises one: none of 200 runs."""
    still = {"entropy": lambda t: 0.5, "length": lambda t: 20.0, "reward": lambda t: level}
    assert [seed for seed in range(200) if flags(run(seed=seed, **still))] == []  # type: ignore[arg-type]


def test_an_entropy_that_collapses_below_a_tenth_is_flagged_where_it_does() -> None:
    flag = only(run(entropy=lambda t: 0.6 * np.exp(-6 * t)))
    assert flag.name == "entropy_collapse"
    # 0.6·exp(−6t) is a tenth of its start from t = 0.38 on, and its mean over 10 steps a little later.
    assert 46 <= flag.step <= 62
    assert flag.values["now"] < 0.1 * flag.values["start"]
    assert f"to {flag.values['now']:.3g} nats per token" in flag.reason


def test_a_low_entropy_where_problems_are_solved_is_no_fault() -> None:
    assert flags(run(entropy=lambda t: 0.6 * np.exp(-6 * t), reward=lambda t: min(1.0, 0.3 + 3 * t))) == []


def test_an_entropy_that_explodes_is_flagged_and_one_that_starts_near_zero_must_rise_by_more() -> None:
    assert only(run(entropy=lambda t: 0.5 + 2 * t)).name == "entropy_explosion"
    assert flags(run(entropy=lambda t: 0.01 + 0.1 * t)) == []


def test_a_length_that_doubles_for_nothing_is_flagged_and_a_few_tokens_are_not() -> None:
    flag = only(run(length=lambda t: 20 + 60 * t, reward=lambda t: 0.3))
    assert flag.name == "length_explosion"
    assert flag.values["now"] > 2 * flag.values["start"]
    assert flags(run(length=lambda t: 2 + 5 * t, reward=lambda t: 0.3)) == []


def test_a_length_that_grows_with_the_reward_is_no_fault() -> None:
    assert flags(run(length=lambda t: 20 + 200 * t, reward=lambda t: 0.3 + 0.4 * t)) == []


def test_truncation_is_flagged_where_it_has_grown() -> None:
    assert only(run(truncated=lambda t: 0.8 * t)).name == "truncation"
    # Where the base model's answers were cut off from the beginning, the run is not what is wrong.
    assert flags(run(truncated=lambda t: 0.4)) == []


def test_a_reward_below_its_start_is_flagged_with_its_noise() -> None:
    flag = only(run(reward=lambda t: 0.3 if t < 0.5 else 0.1))
    assert flag.name == "reward_collapse"
    assert 60 < flag.step <= 70
    # Successive differences estimate the noise of a step, whatever the trend: √2 · 0.04 / √10 for two means of ten.
    assert flag.values["error"] == pytest.approx(NOISE * (2 / 10) ** 0.5, rel=0.4)


def test_a_reward_that_falls_again_but_not_below_its_start_is_none() -> None:
    assert flags(run(reward=lambda t: 0.3 + 0.3 * np.sin(np.pi * t))) == []


def test_a_small_fall_is_none_however_sure() -> None:
    assert flags(run(reward=lambda t: 0.30 - 0.02 * t, steps=2000)) == []


def test_harder_problems_after_others_were_dropped_are_no_collapse() -> None:
    falling: Mapping[str, Any] = {"reward": lambda t: 0.6 if t < 0.5 else 0.2}
    assert names(run(**falling)) == ["reward_collapse"]
    assert flags(run(**falling, dropped=lambda t: 0 if t < 0.5 else 40)) == []


@pytest.mark.parametrize("apart", [{"weight": 0.8}, {"weight": 1.2}, {"k3": 0.02}, {"square": 1.3}])
def test_a_sampler_that_differs_from_the_learner_is_flagged(apart: dict[str, float]) -> None:
    flag = only(run(report=lambda t: update(**apart) if t > 0.5 else update()))
    assert (flag.name, flag.step) == ("mismatch", STEPS // 2 + 1)
    assert "sampler and learner differ" in flag.reason


def test_a_number_that_is_not_finite_is_a_mismatch() -> None:
    assert only(run(report=lambda t: update(weight=float("inf")))).step == 1


def test_a_step_without_responses_or_without_an_update_is_left_out() -> None:
    records = run(report=lambda t: None)
    records[40] = StepRecord(step=41, rollouts=41 * 32, sample_seconds=1.0, update_seconds=0.0)
    assert flags(records) == []


def test_a_run_shorter_than_two_windows_has_no_start_to_compare_with() -> None:
    wild = {"reward": lambda t: 0.9 - 0.9 * t, "entropy": lambda t: 9 * t, "length": lambda t: 900 * t}
    assert flags(run(steps=19, **wild)) == []  # type: ignore[arg-type]
    assert names(run(steps=19, **wild), Thresholds(window=3)) != []  # type: ignore[arg-type]


def test_flags_come_in_the_order_of_their_steps_and_a_step_taken_again_counts_once() -> None:
    records = run(entropy=lambda t: 0.5 + 2 * t, length=lambda t: 20 if t < 0.9 else 200, reward=lambda t: 0.3)
    again = [EvaluationRecord(step=0, rollouts=0, scores={}, evaluate_seconds=1.0), *records[:30], *records]
    assert names(again) == ["entropy_explosion", "length_explosion"]
    assert flags(again) == flags(records)
