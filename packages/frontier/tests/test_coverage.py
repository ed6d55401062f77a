"""Do the intervals hold? A seeded simulation, with the counts that a true 95 % interval would give."""

import importlib.util
from pathlib import Path

import pytest
from isocompute.frontier import FitConfig, fit

_spec = importlib.util.spec_from_file_location("made_up", Path(__file__).with_name("conftest.py"))
assert _spec is not None
made_up = importlib.util.module_from_spec(_spec)
assert _spec.loader is not None
_spec.loader.exec_module(made_up)


@pytest.mark.parametrize(("seeds", "between"), [(1, 0.0), (3, 0.02)])
def test_intervals_of_the_asymptote_cover_it(seeds: int, between: float) -> None:
    runs, covered = 30, 0
    for i in range(runs):
        table = made_up.evals(noise=0.0135, seeds=seeds, between=between, points=30, seed=i)
        for c in fit(table, FitConfig(form="exp", bootstrap=100, seed=i)).curves:
            assert c.asymptote_interval is not None
            low, high = c.asymptote_interval
            covered += low <= made_up.TRUTH[c.curve.rollouts_per_problem][1] <= high
    # Of 60 intervals at 95 %, fewer than 51 happen once in a thousand.
    assert covered >= 51
