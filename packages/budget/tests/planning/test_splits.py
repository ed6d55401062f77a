import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.planning.compute import Constraints, grid

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
    assert len(found.splits) + len(found.left_out) == looked_at
    for cell in found.splits:
        a = cell.allocation
        assert a.rollouts == a.problems_per_batch * a.rollouts_per_problem * a.update_steps
        assert a.rollouts + cell.unused == constraints.rollouts
        assert 0 <= cell.unused < a.batch_rollouts <= constraints.max_batch
        assert a.update_steps >= constraints.min_steps
        assert a.batch_rollouts % constraints.world_size == 0
        assert a.problems_per_batch <= constraints.problems
        assert cell.epochs == a.epochs(constraints.problems) <= (constraints.max_epochs or cell.epochs)


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
