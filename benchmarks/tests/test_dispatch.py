"""Times of the dispatch of groups to replicas, in virtual time."""

import pytest
from isocompute.budget.planning.latency import spread_lengths

from benchmarks import dispatch

LIMITS = [2**31, 512]


@pytest.mark.parametrize(
    ("problems", "replicas", "limit", "seconds"),
    # Measured with the replicas of commit 6c2205e5 over the same engines.
    [(32, 2, LIMITS[0], 440.58), (32, 8, LIMITS[0], 267.26), (256, 4, LIMITS[1], 660.73), (256, 1, LIMITS[1], 230.17)],
)
def test_the_rule_of_the_former_dispatch_is_as_it_was(problems: int, replicas: int, limit: int, seconds: float) -> None:
    assert dispatch.timed(problems, 8, replicas, limit).old == pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
@pytest.mark.parametrize(("problems", "samples"), [(32, 8), (32, 16), (128, 8)])
def test_a_batch_takes_hardly_longer_than_with_known_lengths(problems: int, samples: int, replicas: int) -> None:
    found = dispatch.timed(problems, samples, replicas, LIMITS[0])
    assert 0.999 < found.ratio < 1.05
    assert found.busy > 0.97 * replicas * found.new


@pytest.mark.parametrize(("problems", "samples", "replicas", "limit"), [(32, 8, 1, 0), (32, 16, 4, 0), (128, 8, 2, 96)])
def test_what_a_plan_says_of_a_batch_is_what_replicas_take(
    problems: int, samples: int, replicas: int, limit: int
) -> None:
    lengths = spread_lengths(problems * samples, mean=2200, longest=8192)
    planned = dispatch.decoded(lengths, replicas, limit or LIMITS[0])
    # Which lengths are drawn is chance: 2,200 is the mean of the engines' own.
    assert dispatch.timed(problems, samples, replicas, limit or LIMITS[0]).new == pytest.approx(planned, rel=0.1)


def test_the_longest_go_first_where_lengths_are_known() -> None:
    each = [dispatch.STEP + dispatch.EACH * alive for alive in (0, 1, 2)]
    assert dispatch.longest_first([100, 300, 200], 2, 1) == pytest.approx(300 * each[1])
    assert dispatch.longest_first([100, 300], 1, 2) == pytest.approx(100 * each[2] + 200 * each[1])


def test_updates_beside_sampling_cost_a_step_the_longer_of_both_and_in_turn_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "PIPELINED_STEPS", 12)
    batch = (16, 4, 2, 16)
    update = dispatch.alternated(*batch)
    assert dispatch.pipelined(*batch, lag=0, update=update) == pytest.approx(2 * update, rel=0.02)
    assert dispatch.pipelined(*batch, lag=4, update=update) < 2 * update / dispatch.LEAST_PIPELINED
    # A learner that is slower waits for the first batch alone.
    slow = dispatch.pipelined(*batch, lag=4, update=4 * update)
    assert slow == pytest.approx(4 * update, rel=0.1)
