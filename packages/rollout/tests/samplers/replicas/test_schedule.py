"""The order of groups among replicas, and the way in which weights travel to them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.replicas.pool import Expected, Queue, QueuedGroup, transport_of


def works(*costs: float) -> list[QueuedGroup]:
    return [QueuedGroup(problem_id=f"p{i}", cost=cost) for i, cost in enumerate(costs)]


def names(chunk: list[QueuedGroup]) -> list[str]:
    return [work.problem_id for work in chunk]


def test_the_longest_go_first_and_chunks_become_smaller() -> None:
    queue = Queue(works(*range(1, 17)), replicas=2)
    sizes, costs = [], []
    while chunk := queue.take(0):
        sizes.append(sum(work.cost for work in chunk))
        costs += [work.cost for work in chunk]
    assert costs == sorted(range(1, 17), reverse=True)
    # A quarter of what waits (136) is 34, which 16 and 15 reach.
    assert sizes[0] == 31
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 99))
def test_every_group_is_taken_once_whoever_takes(costs: list[float], replicas: int, seed: int) -> None:
    queue, source = Queue(works(*costs), replicas=replicas), random.Random(seed)
    taken: list[str] = []
    while len(queue):
        chunk = queue.take(source.randrange(replicas))
        assert chunk
        taken += names(chunk)
    assert sorted(taken) == sorted(names(works(*costs)))


def test_what_a_replica_was_lost_over_is_left_to_another_and_only_once() -> None:
    queue = Queue(works(3, 2, 1), replicas=2)
    first = queue.take(0)
    assert names(first) == ["p0"]
    assert queue.put_back(first, 0) == []
    assert names(queue.take(0)) == ["p1"]
    assert names(queue.take(0)) == ["p2"]
    assert queue.take(0) == []
    assert not queue.reachable([0])
    assert queue.reachable([0, 1])
    again = queue.take(1)
    assert names(again) == ["p0"]
    assert names(queue.put_back(again, 1)) == ["p0"]
    assert len(queue) == 0


def test_one_replica_takes_all_at_once() -> None:
    assert names(Queue(works(1, 3, 2), replicas=1).take(0)) == ["p1", "p2", "p0"]


def test_a_group_is_expected_to_be_as_long_as_the_problems_last_one() -> None:
    expected = Expected(100)
    assert [work.cost for work in expected.work({"a": 10, "b": 4}, 8)] == [8 * 110, 8 * 104]
    expected.learn("a", [3, 5])
    # Of a problem that was never answered, the mean of those that were.
    assert [work.cost for work in expected.work({"a": 10, "b": 4}, 8)] == [8 * 14, 8 * 8]
    expected.learn("b", [10])
    expected.learn("a", [6])
    assert [expected.of(name) for name in ("a", "b", "c")] == [6, 10, 8]


def test_the_transport_follows_the_replicas_devices_and_an_impossible_one_is_refused() -> None:
    chosen = [transport_of("auto", num_gpus=gpus) for gpus in (0.0, 0.5, 1.0, 4.0)]
    assert chosen == ["object_store", "ipc", "nccl", "nccl"]
    assert transport_of("auto", num_gpus=1.0, keep=True) == "object_store"
    assert transport_of("gloo", num_gpus=1.0) == "gloo"
    with pytest.raises(RolloutError, match="one of object_store, gloo"):
        transport_of("mpi", num_gpus=0.0)
    with pytest.raises(RolloutError, match="it must be object_store"):
        transport_of("nccl", num_gpus=0.0)
    with pytest.raises(RolloutError, match="keep_weights keeps what"):
        transport_of("ipc", num_gpus=0.5, keep=True)
