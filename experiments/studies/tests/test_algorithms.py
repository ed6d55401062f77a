"""What the comparison of algorithms says of seeds that diverged, and which settings it refuses."""

import polars as pl
import pytest

from experiments.studies import algorithms

BASE = (0.3, 0.01)


def test_the_first_evaluation_is_of_the_base_model_and_no_part_of_a_score() -> None:
    evals = pl.DataFrame({"step": [8, 0, 4], "rollouts": [256, 0, 128], "avg_at_4": [0.6, 0.1, 0.5]})
    assert algorithms.ending(evals, "avg_at_4") == pytest.approx(0.55)
    assert algorithms.ending(evals.filter(pl.col("step") < 8), "avg_at_4") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ends", "diverged", "least", "learns"),
    [
        ({7000: 0.6, 7002: 0.61, 7001: 0.6}, [], 0.0, True),
        ({7000: 0.6, 7002: 0.61}, [7001], 0.0, False),
        ({7000: 0.6}, [7001], 0.0, False),
        ({}, [7000, 7001], 0.0, False),
        # An interval with 0 in it, and too small a gain.
        ({7000: 0.2, 7001: 0.5}, [], 0.0, False),
        ({7000: 0.45, 7001: 0.45, 7002: 0.45}, [], 0.1, True),
        ({7000: 0.45, 7001: 0.45, 7002: 0.45}, [], 0.2, False),
    ],
)
def test_an_algorithm_has_learnt_whose_every_seed_trained_to_a_gain_that_counts(
    ends: dict[int, float], diverged: list[int], least: float, learns: bool
) -> None:
    said, found = algorithms.verdict(ends, diverged, BASE, least=least)
    assert found == learns
    assert all(f"{seed} diverged" in said for seed in diverged[:1])


def test_algorithms_whose_bounds_are_compared_take_two_updates_of_each_batch() -> None:
    every = algorithms.ALGORITHMS.items()
    updates = {name: own.get("objective", {}).get("updates_per_batch", 1) for name, own in every}
    assert {name for name, count in updates.items() if count == 1} == {"grpo", "dr_grpo"}
    assert set(updates.values()) == {1, 2}
