"""The order of problems, and runs that are tried again."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.errors import LearnerError, RankError
from isocompute.learner.saving.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.training.run import Cursor, ProblemOrder, Progress, through_deaths

PROBLEMS = pl.DataFrame({"problem_id": [f"p{i:02d}" for i in range(12)]})


def answered(batch: pl.DataFrame, right: Callable[[str], float], samples: int = 4) -> pl.DataFrame:
    """Responses of which a share is right, and one more that failed."""
    rows = [
        (name, float(sample < right(name) * samples), "stop" if sample < samples else "aborted")
        for name in batch["problem_id"]
        for sample in range(samples + 1)
    ]
    return pl.DataFrame(rows, schema=["problem_id", "reward", "finish_reason"], orient="row")


def walk(
    order: ProblemOrder, batches: int, right: Callable[[str], float] = lambda name: 0.0, cursor: Cursor | None = None
) -> list[tuple[Cursor, list[str]]]:
    """The cursors and the problems of so many batches."""
    cursor, met = cursor or Cursor(), []
    for _ in range(batches):
        batch = order.batch(cursor)
        met.append((cursor, batch["problem_id"].to_list()))
        cursor = order.after(order.learnt(cursor, answered(batch, right)))
    return met


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 5))
def test_without_dropping_a_batch_is_a_function_of_the_seed_and_the_step(size: int, seed: int) -> None:
    rows = PROBLEMS.sample(fraction=1.0, shuffle=True, seed=size)
    names = PROBLEMS["problem_id"].to_numpy()
    for step, (_, met) in enumerate(walk(ProblemOrder(rows, problems_per_batch=size, seed=seed), 14)):
        number, position = divmod(step, 12 // size)
        shuffled = np.random.default_rng([seed, number]).permutation(12)
        assert met == sorted(names[shuffled[position * size : (position + 1) * size]])


def test_a_batch_larger_than_the_problems_and_a_problem_that_occurs_twice_are_refused() -> None:
    with pytest.raises(LearnerError, match="problems_per_batch is 13"):
        ProblemOrder(PROBLEMS, problems_per_batch=13, seed=0)
    with pytest.raises(LearnerError, match="problem p03 occurs twice"):
        ProblemOrder(pl.concat([PROBLEMS, PROBLEMS[3:4]]), problems_per_batch=4, seed=0)


def test_solved_problems_are_left_out_of_later_passes_and_the_others_keep_their_order() -> None:
    solved = {"p01", "p05", "p06", "p10"}
    order = ProblemOrder(PROBLEMS, problems_per_batch=2, seed=3, drop_above=0.75)
    met = walk(order, 6 + 4, lambda name: 0.75 if name in solved else 0.5)
    assert [cursor.number for cursor, _ in met] == [0] * 6 + [1] * 4
    # In the pass in which it was solved a problem is met like any other.
    assert sorted(name for _, names in met[:6] for name in names) == PROBLEMS["problem_id"].to_list()
    assert met[6][0].dropped == ("p01", "p05", "p06", "p10")
    shuffled = PROBLEMS["problem_id"].to_numpy()[np.random.default_rng([3, 1]).permutation(12)]
    left = [name for name in shuffled if name not in solved]
    assert [names for _, names in met[6:]] == [sorted(left[i : i + 2]) for i in range(0, 8, 2)]


def test_a_solved_problem_that_is_failed_later_stays_out_and_one_below_the_threshold_stays_in() -> None:
    order = ProblemOrder(PROBLEMS, problems_per_batch=4, seed=3, drop_above=1.0)
    met = walk(order, 6, lambda name: 1.0 if name < "p04" else 0.75)
    assert {cursor.dropped for cursor, _ in met[3:5]} == {("p00", "p01", "p02", "p03")}
    assert order.after(order.learnt(met[4][0], answered(PROBLEMS, lambda name: 0.0))).dropped == met[4][0].dropped


def test_there_are_always_enough_problems_for_a_batch_and_the_hardest_stay() -> None:
    order = ProblemOrder(PROBLEMS, problems_per_batch=4, seed=3, drop_above=0.25)
    rates = dict.fromkeys(PROBLEMS["problem_id"], 1.0) | {"p07": 0.25, "p02": 0.5, "p11": 0.5}
    met = walk(order, 6, rates.__getitem__)
    # The fourth is the first of those with a rate of 1.
    assert [names for _, names in met[3:]] == [["p00", "p02", "p07", "p11"]] * 3
    assert met[-1][0].number == 3


def test_a_problem_that_did_not_fit_into_a_pass_is_not_dropped() -> None:
    order = ProblemOrder(PROBLEMS, problems_per_batch=5, seed=3, drop_above=0.5)
    met = walk(order, 3, lambda name: 1.0)
    left_out = set(PROBLEMS["problem_id"]) - {name for _, names in met[:2] for name in names}
    assert len(left_out) == 2
    assert left_out < set(met[2][1])
    assert len(met[2][1]) == 5


def test_failed_responses_do_not_count_as_wrong_and_partial_rewards_are_not_right() -> None:
    order = ProblemOrder(PROBLEMS[:2], problems_per_batch=1, seed=0, drop_above=0.9)
    rows = [("p00", 1.0, "stop"), ("p00", 0.0, "aborted"), ("p01", 0.99, "stop")]
    rollouts = pl.DataFrame(rows, schema=["problem_id", "reward", "finish_reason"], orient="row")
    assert order.learnt(Cursor(), rollouts).answers == {"p00": (1, 1), "p01": (0, 1)}


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 9), st.integers(0, 2**32))
def test_continued_from_a_saved_place_the_order_is_the_same(cut: int, luck: int) -> None:
    def right(name: str) -> float:
        return np.random.default_rng([luck, int(name[1:])]).choice([0.0, 0.5, 1.0])

    order = ProblemOrder(PROBLEMS, problems_per_batch=2, seed=3, drop_above=0.9)
    whole = walk(order, 12, right)
    cursor = whole[cut][0]
    saved = Progress(step=cut, rollouts=0, tokens=0, evals=[], cursor=cursor).saved()
    again = Progress.read(cut, json.loads(json.dumps(saved)))
    assert again.cursor == cursor
    assert walk(order, 12 - cut, right, again.cursor) == whole[cut:]


def test_a_run_that_gets_no_further_ends_after_some_tries(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    tries = []

    def attempt() -> None:
        tries.append(store.newest_step())
        if len(tries) == 2:
            store.save(Checkpoint(step=5, tensors={"w": torch.zeros(1)}, values={}))
        raise RankError("rank 1 of 2 died")

    with pytest.raises(RankError, match="rank 1 of 2 died"):
        through_deaths(attempt, checkpoints=store, tries=3)
    assert tries == [None, None, 5, 5]
