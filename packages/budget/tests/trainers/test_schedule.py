"""Batches counted from what a log says of every step, against a simulation of how they are generated."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.counting import Evidence, Schedule, count


def simulated(schedule, steps, restarts):
    """Batches generated up to and including each step, in a process's first micro-step and then every so many."""
    made, totals, since = 0, [0], 0
    for step in range(1, steps + 1):
        if step - 1 in restarts:
            since = 0
        for _ in range(schedule.micro(step) - schedule.micro(step - 1)):
            made += since % schedule.every == 0
            since += 1
        totals.append(made)
    return totals


def exactly(totals):
    return [(total, total) for total in totals]


small = st.integers(1, 5)
schedules = st.builds(lambda e, a, b: Schedule(every=e, accumulation=a, batches=b), small, small, st.none() | small)


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(1, 30))
def test_the_formula_is_the_simulation(schedule, steps):
    totals = simulated(schedule, steps, [])
    assert [schedule.generations(0, step) for step in range(steps + 1)] == totals
    found = count(schedule, steps, {}, [], where="a run")
    assert (found.likely, found.unexplained) == (exactly(totals), 0)


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(2, 30), st.integers(0, 10**6))
def test_a_restart_is_found_where_every_step_is_logged(schedule, steps, seed):
    restart = random.Random(seed).randrange(1, steps)
    totals = simulated(schedule, steps, [restart])
    new = [b - a for a, b in pairwise(totals)]
    said = {s: Evidence(entry=lambda g, made=new[s - 1]: g == made) for s in range(1, steps + 1)}
    found = count(schedule, steps, said, [], where="a run")
    assert found.likely == exactly(totals)
    known = count(schedule, steps, said, [(0, restart + 1)], where="a run")
    assert (known.likely, known.unexplained) == (exactly(totals), 0)


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(2, 30), st.sets(st.integers(1, 29), max_size=2), st.booleans())
def test_up_to_two_restarts_that_left_no_trace_are_within_the_error_and_a_known_one_too(
    schedule, steps, restarts, known
):
    restarts = [restart for restart in restarts if restart < steps][: 1 if known else 2]
    totals = simulated(schedule, steps, restarts)
    found = count(schedule, steps, {}, [(0, steps)] if known and restarts else [], where="a run")
    ranges = found.likely if known and restarts else found.possible
    assert all(low <= true <= high for (low, high), true in zip(ranges, totals, strict=True))


def test_a_log_that_no_schedule_explains_is_refused():
    schedule = Schedule(every=4, accumulation=1)
    never = {s: Evidence(entry=lambda g: g == 0) for s in range(1, 9)}
    with pytest.raises(BudgetError, match=r"contradicts .*at step 1"):
        count(schedule, 8, never, [], where="a run")
    always = {s: Evidence(entry=lambda g: g == 1) for s in range(1, 9)}
    with pytest.raises(BudgetError, match="contradicts"):
        count(schedule, 8, always, [], where="a run")


@pytest.mark.slow
def test_a_long_run_that_hardly_logs_is_counted_and_its_error_is_that_of_two_unlogged_restarts():
    schedule, steps = Schedule(every=4, accumulation=2), 5_000
    said = {step: Evidence(entry=lambda made: made > 0) for step in (4, steps)}
    found = count(schedule, steps, said, [], where="a run")
    totals = [schedule.generations(0, step) for step in range(steps + 1)]
    assert found.likely == exactly(totals)
    assert [low for low, _ in found.possible] == totals
    for restarts in ([777], [5, 4_999], [3_001, 3_002]):
        again = simulated(schedule, steps, restarts)
        assert all(low <= made <= high for (low, high), made in zip(found.possible, again, strict=True))
