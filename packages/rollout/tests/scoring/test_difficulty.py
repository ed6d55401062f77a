import polars as pl
import pytest
from isocompute.rollout import DifficultySplit, RolloutError, histogram, response_seed, split, with_pass_rates
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.evaluation import inside

PROBLEMS = pl.DataFrame(
    {
        "problem_id": [f"p{i}" for i in range(8)],
        "prompt": "x",
        "answer": "y",
        "verifier": "exact",
        "source": "s",
        "split": ["train"] * 4 + ["validation"] * 4,
    }
)
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
    with pytest.raises(RolloutError, match="and 2 of 4"):
        split(with_pass_rates(PROBLEMS, ROLLOUTS), wanted)


def test_fresh_responses_are_kept_apart_from_those_that_select() -> None:
    selected = with_pass_rates(PROBLEMS, ROLLOUTS.with_columns(phase=pl.lit("difficulty")))
    again = ROLLOUTS.with_columns(phase=pl.lit("baseline"), reward=pl.lit(1.0))
    measured = with_pass_rates(selected, again, fresh=True)
    assert measured["pass_rate"].to_list() == [0, 0.25, 0.5, 0.75] * 2
    assert measured["fresh_pass_rate"].to_list() == [1.0] * 8
    assert measured["fresh_pass_rate_samples"].to_list() == [4] * 8
    tables.check(measured, "problems", where="measured")
    with pytest.raises(RolloutError, match="phase difficulty"):
        with_pass_rates(selected, ROLLOUTS.with_columns(phase=pl.lit("difficulty")), fresh=True)
    with pytest.raises(RolloutError, match="phase baseline"):
        with_pass_rates(PROBLEMS, again)


def test_no_two_phases_share_a_response_seed() -> None:
    phases = next(c for c in tables.schema("rollouts").columns if c.name == "phase").values
    assert set(phases) == {"train", "eval", "difficulty", "baseline", "canary"}
    seeds = [
        response_seed(seed, phase, step, f"p{problem}", sample)
        for phase in phases
        for seed in range(3)
        for step in (0, 1, 64)
        for problem in range(20)
        for sample in range(16)
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_smaller_split_is_contained_in_a_larger_one() -> None:
    measured = with_pass_rates(PROBLEMS, ROLLOUTS)
    sizes = [DifficultySplit(name="s", lowest=0, highest=1, train=train, validation=2) for train in (1, 3, 4)]
    small, middle, large = (set(split(measured, wanted)["problem_id"]) for wanted in sizes)
    assert small < middle < large


def test_extremely_hard_problems_are_those_never_solved_in_enough_responses() -> None:
    def measured(samples: list[int]) -> pl.DataFrame:
        rates = [0.0, 0.0, 0.5, 1.0]
        counts = pl.Series(samples, dtype=pl.Int32)
        return PROBLEMS[2:6].with_columns(pass_rate=pl.Series(rates), pass_rate_samples=counts)

    frame = measured([128, 16, 128, 128])
    assert inside(frame, lowest=0, highest=0)["problem_id"].to_list() == ["p2", "p3"]
    assert inside(frame, lowest=0, highest=0, min_samples=128)["problem_id"].to_list() == ["p2"]
    assert inside(frame, lowest=0.9, highest=1)["problem_id"].to_list() == ["p5"]
    with pytest.raises(RolloutError, match=r"128 times.*was is 16"):
        inside(measured([16] * 4), lowest=0, highest=0, min_samples=128)
    wanted = DifficultySplit(name="hard", lowest=0, highest=0.5, train=1, validation=1)
    assert split(frame, wanted, min_samples=128)["problem_id"].to_list() == ["p2", "p4"]
