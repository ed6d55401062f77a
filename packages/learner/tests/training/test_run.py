"""The grid on which a run is evaluated."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import RunConfig

RUN = RunConfig(
    run_id="r", rollouts_per_problem=4, problems_per_batch=8, seed=1, evaluate_every=512, evaluations_per_octave=2
)
PER_OCTAVE = st.integers(1, 9)
GROUP_SIZES = st.sampled_from([2, 4, 8, 16, 32, 64])


def grid(run: RunConfig, budget: int) -> list[int]:
    """Rollouts at which a run of some budget is evaluated, step 0 included."""
    steps = range(budget // run.batch_rollouts + 1)
    return [step * run.batch_rollouts for step in steps if run.evaluated_at(step * run.batch_rollouts)]


@pytest.mark.parametrize(
    ("per_octave", "expected"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        (1, [0, 1, 2, 4, 8, 16]),
        (2, [0, 1, 2, 3, 4, 6, 8, 12, 16]),
        (3, [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16]),
    ],
)
def test_a_grid_has_as_many_points_in_an_octave_as_asked_for(per_octave: int | None, expected: list[int]) -> None:
    run = replace(RUN, evaluations_per_octave=per_octave)
    assert grid(run, 16 * 512) == [512 * k for k in expected]


@given(PER_OCTAVE, GROUP_SIZES, GROUP_SIZES, st.integers(0, 200))
def test_the_grid_of_one_n_is_that_of_another(per_octave: int, n: int, other: int, k: int) -> None:
    runs = [replace(RUN, evaluations_per_octave=per_octave, rollouts_per_problem=each) for each in (n, other)]
    assert grid(runs[0], 512 * k) == grid(runs[1], 512 * k)


@given(PER_OCTAVE, st.integers(0, 100), st.integers(0, 100))
def test_a_larger_budget_appends_to_the_grid(per_octave: int, k: int, more: int) -> None:
    run = replace(RUN, evaluations_per_octave=per_octave)
    shorter = grid(run, 512 * k)
    longer = grid(run, 512 * (k + more))
    assert longer[: len(shorter)] == shorter
    assert all(at > 512 * k for at in longer[len(shorter) :])


@given(PER_OCTAVE)
def test_points_are_close_together_and_as_many_in_each_octave(per_octave: int) -> None:
    run = replace(RUN, evaluations_per_octave=per_octave)
    points = grid(run, 512 * per_octave * 2**5)
    regular = [at for at in points if at >= 512 * per_octave]
    assert all(after * per_octave <= at * (per_octave + 1) for at, after in pairwise(regular))
    octaves = [math.floor(math.log2(at / (512 * per_octave))) for at in regular[:-1]]
    assert [octaves.count(octave) for octave in range(5)] == [per_octave] * 5
    # Before, there is one at every multiple, and the ends of all octaves are on every grid.
    assert points[: per_octave + 1] == [512 * k for k in range(per_octave + 1)]
    assert {512 * per_octave * 2**octave for octave in range(6)} <= set(points)
