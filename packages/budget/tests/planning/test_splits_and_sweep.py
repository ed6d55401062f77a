from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.planning.splits import Constraints, grid
from isocompute.budget.planning.sweep import design, evaluation_points

limits = st.builds(
    Constraints,
    rollouts=st.integers(1, 10**6),
    max_batch=st.integers(1, 10**4),
    rollouts_per_problem=st.just(()) | st.sets(st.integers(1, 64), min_size=1, max_size=5).map(tuple),
    problems_per_batch=st.just(()) | st.sets(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
    min_steps=st.integers(1, 200),
    problems=st.integers(1, 5000),
    max_epochs=st.none() | st.floats(0.5, 200),
    world_size=st.integers(1, 16),
)


@given(limits)
def test_every_planned_cell_spends_no_more_than_the_budget_and_keeps_every_limit(constraints):
    found = grid(constraints)
    looked_at = len(constraints.problems_per_batch) * len(constraints.rollouts_per_problem)
    assert len(found.cells) + len(found.left_out) == looked_at
    for cell in found.cells:
        a = cell.allocation
        assert a.rollouts == a.problems_per_batch * a.rollouts_per_problem * a.update_steps
        assert a.rollouts + cell.unused == constraints.rollouts
        assert 0 <= cell.unused < a.batch_rollouts <= constraints.max_batch
        assert a.update_steps >= constraints.min_steps
        assert a.batch_rollouts % constraints.world_size == 0
        assert a.problems_per_batch <= constraints.problems
        assert cell.epochs == a.epochs(constraints.problems) <= (constraints.max_epochs or cell.epochs)


@given(limits, st.integers(1, 10**6), st.integers(1, 4), st.integers(0, 500), st.integers(1, 3))
def test_no_sweep_spends_more_than_its_total(constraints, total, seeds, evaluation, octave):
    try:
        sweep = design(constraints, total=total, seeds=seeds, evaluation_rollouts=evaluation, points_per_octave=octave)
    except BudgetError:
        return
    assert sweep.spent == sweep.training + sweep.evaluating <= total
    assert len(sweep.cells) >= 2
    assert sweep.compared
    assert sweep.compared[-1] == sweep.evaluations[-1] == max(c.allocation.rollouts for c in sweep.cells)
    for cell in sweep.cells:
        a = cell.allocation
        assert a.rollouts in sweep.evaluations
        assert a.rollouts <= constraints.rollouts
        assert a.update_steps >= constraints.min_steps
        assert a.epochs(constraints.problems) <= (constraints.max_epochs or float("inf"))
        assert all(point % a.batch_rollouts == 0 for point in sweep.evaluations)
        assert cell.rollouts == a.rollouts * seeds
    looked_at = len(constraints.problems_per_batch) * len(constraints.rollouts_per_problem)
    assert len(sweep.cells) + len(sweep.left_out) == looked_at


@given(st.integers(1, 1000), st.integers(1, 10**6), st.integers(1, 4))
def test_evaluation_points_double_and_stay_within(unit, most, octave):
    points = evaluation_points(unit, most, octave)
    assert list(points) == sorted(set(points))
    assert all(point % unit == 0 and point <= most for point in points)
    if octave == 1:
        assert all(b == 2 * a for a, b in pairwise(points))
    assert bool(points) == (unit <= most)


def test_cheap_cells_come_first_and_what_is_left_out_says_why():
    constraints = Constraints(
        rollouts=10**6, max_batch=2048, problems_per_batch=(32,), rollouts_per_problem=(2, 4, 8, 64, 128), min_steps=50
    )
    sweep = design(constraints, total=60_000)
    assert [cell.allocation.rollouts_per_problem for cell in sweep.cells] == [2, 4, 8]
    assert {out.rollouts_per_problem: out.limit for out in sweep.left_out} == {
        64: "steps that are too expensive",
        128: "batches above 2,048 rollouts",
    }
    assert "102,400" in sweep.left_out[1].reason


def test_a_longer_total_reaches_further_with_more_cells():
    constraints = Constraints(rollouts=10**7, max_batch=4096, problems_per_batch=(32,), min_steps=50)
    small, large = (design(constraints, total=total) for total in (10**5, 2 * 10**6))
    assert len(large.cells) > len(small.cells)
    assert large.compared[-1] > small.compared[-1]


def test_a_limit_on_epochs_shortens_a_run_of_the_sweep_and_does_not_forbid_it():
    constraints = Constraints(
        rollouts=10**6, max_batch=1024, problems_per_batch=(8,), rollouts_per_problem=(2, 4, 8, 16), min_steps=10,
        problems=256, max_epochs=16,
    )  # fmt: skip
    sweep = design(constraints, total=200_000)
    lengths = {c.allocation.rollouts_per_problem: c.allocation.rollouts for c in sweep.cells}
    assert lengths[2] == 256 * 16 * 2
    assert max(lengths.values()) > lengths[2]


def test_a_total_below_two_cells_is_refused_with_what_would_do():
    constraints = Constraints(rollouts=10**6, max_batch=1024, problems_per_batch=(32,), min_steps=50)
    with pytest.raises(BudgetError, match=r"pays for 0 cells with 50 steps or more, and at least 2"):
        design(constraints, total=4_000)


def test_batches_without_a_common_multiple_are_refused():
    constraints = Constraints(
        rollouts=5000, max_batch=1000, problems_per_batch=(7, 11, 13), rollouts_per_problem=(17, 19), min_steps=1
    )
    with pytest.raises(BudgetError, match="take batches that divide one another, such as powers of two"):
        design(constraints, total=4000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rollouts": 0}, "rollouts is 0"),
        ({"min_steps": 1.5}, "min_steps is 1.5"),
        ({"max_epochs": 3.0, "problems": None}, "needs the number of problems"),
        ({"max_epochs": -1.0}, "must be positive"),
        ({"rollouts_per_problem": (4, 4)}, "rollouts_per_problem holds a value twice: 4, 4"),
        ({"problems_per_batch": tuple(range(1, 300))}, "has 299 values"),
    ],
)
def test_constraints_that_cannot_be_are_refused(change, said):
    with pytest.raises(BudgetError, match=said):
        Constraints(**{"rollouts": 100, "max_batch": 10, "problems": 5, **change})


@given(st.integers(1, 10**5), st.integers(1, 512))
def test_without_values_the_powers_of_two_are_taken(rollouts, most):
    assume(most >= 2)
    constraints = Constraints(rollouts=rollouts, max_batch=most)
    assert constraints.rollouts_per_problem == tuple(2**k for k in range(1, 10) if 2**k <= most)
    assert constraints.problems_per_batch == tuple(2**k for k in range(10) if 2**k <= most)
