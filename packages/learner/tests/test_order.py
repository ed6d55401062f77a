import polars as pl
import pytest
from isocompute.learner.errors import LearnerError
from isocompute.learner.order import ProblemOrder

PROBLEMS = pl.DataFrame({"problem_id": [f"p{i:02d}" for i in range(12)]})


def test_a_pass_meets_every_problem_once() -> None:
    order = ProblemOrder(PROBLEMS, problems_per_batch=4, seed=3)
    met = [i for step in (1, 2, 3) for i in order.batch(step)["problem_id"]]
    assert sorted(met) == PROBLEMS["problem_id"].to_list()


def test_the_order_depends_on_the_seed_and_not_on_the_rows() -> None:
    shuffled = PROBLEMS.sample(fraction=1.0, shuffle=True, seed=1)
    one = ProblemOrder(PROBLEMS, problems_per_batch=4, seed=3).batch(7)
    assert one.equals(ProblemOrder(shuffled, problems_per_batch=4, seed=3).batch(7))
    others = [ProblemOrder(PROBLEMS, problems_per_batch=4, seed=s).batch(7) for s in range(4, 9)]
    assert any(not one.equals(other) for other in others)


def test_a_larger_batch_meets_the_same_problems_in_the_same_order() -> None:
    small = ProblemOrder(PROBLEMS, problems_per_batch=2, seed=3)
    large = ProblemOrder(PROBLEMS, problems_per_batch=4, seed=3)
    both = {*small.batch(1)["problem_id"], *small.batch(2)["problem_id"]}
    assert both == set(large.batch(1)["problem_id"])


def test_a_batch_larger_than_the_problems_is_refused() -> None:
    with pytest.raises(LearnerError, match="problems_per_batch is 13"):
        ProblemOrder(PROBLEMS, problems_per_batch=13, seed=0)


def test_a_problem_that_occurs_twice_is_named() -> None:
    with pytest.raises(LearnerError, match="problem p03 occurs twice"):
        ProblemOrder(pl.concat([PROBLEMS, PROBLEMS[3:4]]), problems_per_batch=4, seed=0)
