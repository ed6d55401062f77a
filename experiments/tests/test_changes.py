"""Of a number that stays the same only the ends are logged, and nothing is lost by it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner import StepRecord

from experiments.running.tracker import Changes, Point
from experiments.running.work import Spooled


def points(values: list[float], changes: Changes) -> list[Point]:
    spooled = [
        Spooled(record=StepRecord(step=i, rollouts=8 * i, sample_seconds=value, update_seconds=0.5), time=i)
        for i, value in enumerate(values, start=1)
    ]
    return [point for each in spooled for point in changes.of(each)]


@given(values=st.lists(st.sampled_from([0.0, 1.0, 2.0]), max_size=30))
def test_lines_between_the_points_show_what_was_measured(values: list[float]) -> None:
    changes = Changes()
    found = points(values, changes)
    # Read again, as after a rewind, the same steps add nothing.
    assert not points(values, changes)
    found += changes.last()
    assert {point.name for point in found} == ({"perf/sample_seconds"} if len(set(values)) > 1 else set())
    if found:
        steps = 8.0 * np.arange(1, len(values) + 1)
        drawn = np.interp(steps, [point.rollouts for point in found], [point.value for point in found])
        assert drawn.tolist() == values
        inner = zip(found, found[1:], found[2:], strict=False)
        assert not [b for a, b, c in inner if a.value == b.value == c.value]
