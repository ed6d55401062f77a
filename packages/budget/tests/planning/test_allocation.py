import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Allocation, BudgetError

small = st.integers(1, 4096)


@pytest.mark.slow
@given(small, small, small)
def test_the_budget_is_the_product(problems, rollouts, steps):
    a = Allocation(problems_per_batch=problems, rollouts_per_problem=rollouts, update_steps=steps)
    assert a.rollouts == problems * rollouts * steps == a.batch_rollouts * steps


@given(st.integers(1, 10**7), small, small)
def test_an_allocation_within_a_budget_leaves_less_than_one_step(budget, problems, rollouts):
    batch = problems * rollouts
    if budget < batch:
        with pytest.raises(BudgetError, match="does not pay for one step"):
            Allocation.within(budget, problems_per_batch=problems, rollouts_per_problem=rollouts)
    else:
        a = Allocation.within(budget, problems_per_batch=problems, rollouts_per_problem=rollouts)
        assert 0 <= budget - a.rollouts < batch


def test_a_budget_below_one_step_names_both():
    with pytest.raises(BudgetError, match=r"16 rollouts .*step of 32"):
        Allocation.within(16, problems_per_batch=8, rollouts_per_problem=4)


@pytest.mark.parametrize("name", ["problems_per_batch", "rollouts_per_problem", "update_steps"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "8", None])
def test_a_part_that_is_no_positive_whole_number_is_refused_by_name(name, value):
    parts = {"problems_per_batch": 8, "rollouts_per_problem": 4, "update_steps": 100, name: value}
    with pytest.raises(BudgetError, match=f"{name} is {value!r}"):
        Allocation(**parts)


def test_epochs_count_visits_to_each_problem():
    a = Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=100)
    assert a.epochs(256) == 3.125
    with pytest.raises(BudgetError, match="problems is 0"):
        a.epochs(0)


@given(small, small, st.integers(1, 10**6), st.floats(1e-8, 1.0))
def test_learning_rates_follow_their_rule(problems, rollouts, anchor_batch, anchor):
    a = Allocation(problems_per_batch=problems, rollouts_per_problem=rollouts, update_steps=1)
    ratio = a.batch_rollouts / anchor_batch

    def rate(scaling):
        return a.learning_rate(anchor=anchor, anchor_batch=anchor_batch, scaling=scaling)

    assert rate("sqrt") == a.learning_rate(anchor=anchor, anchor_batch=anchor_batch)
    assert math.isclose(rate("sqrt"), anchor * math.sqrt(ratio))
    assert math.isclose(rate("linear"), anchor * ratio)
    assert rate("constant") == anchor


@pytest.mark.parametrize("anchor", [0.0, -1e-3, math.inf, math.nan])
def test_an_anchor_that_is_no_learning_rate_is_refused(anchor):
    a = Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=1)
    with pytest.raises(BudgetError, match="anchor learning rate"):
        a.learning_rate(anchor=anchor, anchor_batch=1024)


def test_an_unknown_scaling_is_refused_with_the_known_ones():
    a = Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=1)
    with pytest.raises(BudgetError, match="'cubic'"):
        a.learning_rate(anchor=1e-3, anchor_batch=1024, scaling="cubic")
    with pytest.raises(BudgetError, match="anchor_batch is 0"):
        a.learning_rate(anchor=1e-3, anchor_batch=0)
