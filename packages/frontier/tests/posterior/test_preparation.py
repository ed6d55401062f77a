"""Runs as they are fitted."""

from dataclasses import replace

import numpy as np
import pytest
from isocompute.frontier import FrontierError
from isocompute.frontier.posterior.health import Kind, prepare
from real_runs import asleep, broken_down, in_percent, killed, made, sweep, zeros


def test_healthy_runs_are_passed_on_as_they_are() -> None:
    runs = sweep("default 2")
    prepared = prepare(runs)
    assert prepared.notes == ()
    assert len(prepared.runs.cells) == 3
    assert prepared.runs.seen.all()
    for i, run in enumerate(runs):
        assert prepared.runs.cells[prepared.runs.cell[i]] == run.cell
        np.testing.assert_array_equal(prepared.runs.reward[i], run.reward)
        np.testing.assert_array_equal(prepared.runs.error[i], run.error)
    assert all((f.failed, f.runs, f.reward) == (0, 2, None) for f in prepared.failures.values())


def test_failed_runs_are_counted_and_not_fitted() -> None:
    runs = list(sweep("default 2"))
    runs[0], runs[4], runs[5] = broken_down(runs[0]), asleep(runs[4]), asleep(runs[5])
    prepared = prepare(runs)
    assert [c.rollouts_per_problem for c in prepared.runs.cells] == [4, 8]
    assert len(prepared.runs.cell) == 3
    first, _, last = prepared.failures.values()
    assert (first.failed, first.runs) == (1, 2)
    assert first.reward is not None
    assert first.reward < 0.01
    assert (last.failed, last.runs) == (2, 2)
    assert prepared.notes == (f"n = 16 has no curve: all 2 of its runs failed, at a reward of {last.reward:.3f}",)


def test_a_run_that_ended_early_keeps_its_points() -> None:
    runs = list(sweep("default 2"))
    runs[3] = killed(runs[3])
    prepared = prepare(runs)
    assert prepared.runs.last[3] == runs[3].last < prepared.runs.last[2]
    np.testing.assert_array_equal(prepared.runs.seen.sum(axis=1), [10, 10, 10, 6, 10, 10])
    assert prepared.failures[runs[3].cell].failed == 0


@pytest.mark.parametrize("where", [0, 6, 9])
def test_a_spike_weighs_almost_nothing_even_at_the_fitted_reward(where: int) -> None:
    runs = list(sweep("default 2"))
    before, runs[2] = runs[2], zeros(where)(runs[2])
    fitted = prepare(runs).runs
    again = fitted.with_errors_at(np.where(np.arange(10) == where, before.reward, fitted.reward))
    for error in (fitted.error, again.error):
        assert (error[2, where] / before.error[where]) ** 2 > 400
    others = np.arange(10) != where
    np.testing.assert_array_equal(fitted.error[2, others], before.error[others])


def test_a_run_on_another_scale_is_left_out_and_said() -> None:
    runs = list(sweep("default 2"))
    runs[1] = in_percent(runs[1])
    prepared = prepare(runs)
    assert len(prepared.runs.cell) == 5
    assert prepared.failures[runs[1].cell].runs == 1
    assert prepared.notes[0].startswith("n = 4, seed 1 is left out: it has rewards from 35")


def test_a_cell_without_evaluations_after_the_start_is_dropped() -> None:
    runs = list(sweep("default 2"))
    for i in (4, 5):
        runs[i] = runs[i].without(range(1, 10))
    prepared = prepare(runs)
    assert len(prepared.runs.cells) == 2
    assert prepared.notes == (
        "n = 16, seed 0 has no evaluation after the start and is left out",
        "n = 16, seed 1 has no evaluation after the start and is left out",
        "n = 16 has no run that could be fitted and is dropped",
    )


def test_a_sweep_without_a_healthy_run_is_refused() -> None:
    with pytest.raises(FrontierError, match="there is no run to fit"):
        prepare([])
    with pytest.raises(FrontierError, match=r"the 6 runs .*seed 0 rose"):
        prepare([broken_down(run) for run in sweep("default 2")])


def test_errors_are_known_only_if_they_are_of_all_runs() -> None:
    runs = list(sweep("default 2"))
    runs[0] = replace(runs[0], trials=None, error_is_known=False)
    prepared = prepare(runs)
    assert prepared.runs.trials is None
    assert not prepared.runs.error_is_known
    assert "do not say how many responses" in prepared.notes[-1]


def test_a_dense_log_becomes_at_most_fifty_points_and_says_so() -> None:
    compute = 64.0 * np.arange(10_000)
    reward = np.random.default_rng(0).binomial(64, 0.2 + 0.4 * compute / (compute + 60_000)) / 64
    prepared = prepare([made(compute, reward, np.full(10_000, 0.06), trials=64.0)])
    (health,) = prepared.health
    assert health.kinds == {Kind.TRAINED, Kind.DENSE}
    assert prepared.runs.last[0] > 0.8 * compute[-1]
    assert prepared.notes == ("1 run of more than 50 evaluations averaged to at most 50 points",)
