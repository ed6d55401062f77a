import polars as pl
import pytest
from isocompute.rollout import DifficultySplit, RolloutError, histogram, split, with_pass_rates

PROBLEMS = pl.DataFrame(
    {
        "problem_id": [f"p{i}" for i in range(8)], "prompt": "x", "answer": "y", "verifier": "exact",
        "source": "s", "split": ["train"] * 4 + ["validation"] * 4,
    }
)  # fmt: skip
ROLLOUTS = pl.DataFrame(
    [{"problem_id": f"p{i}", "reward": float(s < i % 4), "finish_reason": "stop"} for i in range(8) for s in range(4)]
)


def test_pass_rates_are_successes_over_samples() -> None:
    measured = with_pass_rates(PROBLEMS, ROLLOUTS)
    assert measured["pass_rate"].to_list() == [0, 0.25, 0.5, 0.75] * 2
    assert histogram(measured, bins=4)["problems"].to_list() == [2, 2, 2, 2]


def test_a_split_takes_each_side_from_its_own() -> None:
    chosen = split(
        with_pass_rates(PROBLEMS, ROLLOUTS),
        DifficultySplit(name="easy", lowest=0.25, highest=0.5, train=2, validation=2),
    )
    assert chosen["problem_id"].to_list() == ["p1", "p2", "p5", "p6"]


def test_a_split_that_cannot_be_filled_says_what_would_help() -> None:
    wanted = DifficultySplit(name="easy", lowest=0.25, highest=0.5, train=3, validation=2)
    with pytest.raises(RolloutError, match=r"needs 3 train problems.*and 2 of 4.*generate about"):
        split(with_pass_rates(PROBLEMS, ROLLOUTS), wanted)
