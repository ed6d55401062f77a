"""No-positive resampling: what a run would have spared."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.resampling import resampling

VISITS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40)


def run(visits: list[tuple[int, int]]) -> pl.DataFrame:
    """One group of four responses a step: which problem, and how many successes."""
    return pl.DataFrame(
        [
            {"run_id": "r", "step": step, "phase": "train", "problem_id": f"p{problem}", "sample": i,
             "reward": float(i < successes), "finish_reason": "stop"}
            for step, (problem, successes) in enumerate(visits, start=1)
            for i in range(4)
        ]
    )  # fmt: skip


def test_a_problem_is_left_out_after_it_was_solved() -> None:
    found = resampling(run([(0, 4), (1, 2), (0, 4), (1, 4), (0, 0), (1, 4)]))
    assert found.groups.filter("left_out").select("step", "problem_id").rows() == [(3, "p0"), (5, "p0")]
    assert found.share == pytest.approx(2 / 6)
    assert found.epochs["left_out"].to_list() == [0, 1, 1]
    assert found.epochs["share"].to_list() == [0, 0.5, 0.5]
    # By then 6 of 8, and 10 of 12: never 0.9 of the history.
    assert found.groups.filter(pl.col("problem_id") == "p1")["pass_rate"].to_list() == [None, 0.5, 0.75]


@pytest.mark.slow
@given(VISITS, st.floats(0.05, 1))
def test_it_agrees_with_a_count_by_hand(visits: list[tuple[int, int]], threshold: float) -> None:
    history: dict[int, tuple[int, int]] = {}
    solved: set[int] = set()
    expected = []
    for problem, successes in visits:
        expected.append(problem in solved)
        right, asked = history.get(problem, (0, 0))
        history[problem] = right + successes, asked + 4
        if history[problem][0] / history[problem][1] >= threshold:
            solved.add(problem)
    found = resampling(run(visits), threshold=threshold)
    assert found.groups["left_out"].to_list() == expected
    assert found.steps["rollouts_left_out"].to_list() == [4 * left_out for left_out in expected]
    assert found.share == pytest.approx(sum(expected) / len(expected))
    assert found.epochs["groups"].to_list() == sorted(found.epochs["groups"].to_list(), reverse=True)


@pytest.mark.slow
@given(VISITS)
def test_nothing_is_left_out_in_the_first_epoch_and_more_at_a_lower_threshold(visits: list[tuple[int, int]]) -> None:
    shares = [resampling(run(visits), threshold=threshold).share for threshold in (0.25, 0.5, 1.0)]
    assert shares == sorted(shares, reverse=True)
    first = resampling(run(visits), threshold=0.01).groups.filter(pl.col("epoch") == 1)
    assert not first["left_out"].any()


def test_runs_have_histories_of_their_own() -> None:
    both = pl.concat([run([(0, 4), (0, 4)]), run([(0, 0), (0, 4)]).with_columns(run_id=pl.lit("s"))])
    assert resampling(both).groups["left_out"].to_list() == [False, True, False, False]


def test_rewards_between_0_and_1_need_a_threshold_of_their_own() -> None:
    visits = run([(0, 4), (0, 4), (1, 2), (1, 2)])
    penalised = visits.with_columns(
        reward=pl.when(pl.col("sample") == 0).then(0.5 * pl.col("reward")).otherwise("reward")
    )
    with pytest.raises(RolloutError, match=r"4 of 16 rewards of phase train lie between 0 and 1, .* --threshold"):
        resampling(penalised)
    assert resampling(penalised, threshold_reward=0.25).groups.equals(resampling(visits).groups)
    assert resampling(penalised, threshold_reward=1).share == 0
    others = penalised.with_columns(phase=pl.lit("eval"), run_id=pl.lit("s"))
    assert resampling(pl.concat([visits, others])).share == pytest.approx(1 / 4)


def test_what_has_no_history_and_a_threshold_that_is_none_are_refused() -> None:
    with pytest.raises(RolloutError, match="no rollouts of phase train"):
        resampling(run([(0, 1)]).with_columns(phase=pl.lit("eval")))
    with pytest.raises(RolloutError, match="the threshold is 0"):
        resampling(run([(0, 1)]), threshold=0)
    with pytest.raises(RolloutError, match="the threshold of rewards is 2"):
        resampling(run([(0, 1)]), threshold_reward=2)
