"""The groups that replicas are given, in virtual time, and the way in which weights travel to them."""

from collections import Counter
from typing import Any

import latency
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, Sampling
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.replicas.pool import transport_of
from isocompute.rollout.samplers.replicas.queue import Expected

BATCHES = st.fixed_dictionaries(
    {
        "count": st.integers(1, 24),
        "samples": st.integers(1, 6),
        "replicas": st.integers(1, 4),
        "limit": st.one_of(st.integers(1, 20), st.just(2**31)),
        "step": st.integers(0, 9),
    }
)
CALL = 0.01
"""Seconds that a call may take, which decodes nothing."""


def answered(replicas: Any, count: int, samples: int, step: int) -> dict[str, float]:
    """Answer problems; returns when each group was there."""
    found: dict[str, float] = {}
    for group in replicas.stream(latency.problems(count), samples=samples, seed=1, step=step):
        (problem_id,) = set(group["problem_id"].to_pylist())
        assert group["sample"].to_pylist() == list(range(samples))
        assert problem_id not in found
        found[problem_id] = replicas.ray.now
    assert len(found) == count
    return found


def engines(replicas: Any) -> list[latency.LatencyEngine]:
    return [actor.inner._sampler for actor in replicas.ray.actors]


@settings(max_examples=40)
@given(BATCHES, st.sampled_from([9e-3, 1e-4]))
def test_no_replica_has_an_eighth_of_its_places_free_while_a_group_that_has_not_begun_waits(
    batch: dict[str, Any], seconds: float
) -> None:
    count, samples, limit = batch["count"], batch["samples"], batch["limit"]
    with latency.replicas(batch["replicas"], limit=limit, step=seconds) as replicas:
        answered(replicas, count, samples, batch["step"])
        begun = [moment for engine in engines(replicas) for moment in engine.begun.values()]
        assert len(begun) == count
        for engine, member in zip(engines(replicas), replicas.actors.members, strict=True):
            waiting = [alive for moment, alive in engine.alive if moment < max(begun) - CALL]
            assert waiting or max(begun) < CALL
            assert all(limit - alive <= limit / 8 for alive in waiting)
            assert engine.most <= limit + samples - 1
            assert member.answered == len(engine.asked)


@settings(max_examples=40)
@given(BATCHES, st.dictionaries(st.integers(0, 7), st.floats(0.01, 200.0), max_size=4))
def test_a_replica_that_dies_costs_its_unfinished_groups_and_no_others(
    batch: dict[str, Any], deaths: dict[int, float]
) -> None:
    count, samples, step = batch["count"], batch["samples"], batch["step"]
    with latency.replicas(batch["replicas"], limit=batch["limit"], deaths=deaths) as replicas:
        try:
            found, failure = answered(replicas, count, samples, step), ""
        except EngineError as error:
            found, failure = {}, str(error)
        if failure:
            # Only where groups were lost twice, or there is nobody else to answer them.
            assert ("lost with two" in failure and len(deaths) > 1) or "is left to answer" in failure
            assert len(deaths) > 1 or batch["replicas"] == 1
            return
        dead = [actor for actor in replicas.ray.actors if actor.dies <= replicas.ray.now]
        times = Counter(problem_id for engine in engines(replicas) for problem_id in engine.asked)
        assert set(times) == set(found)
        assert max(times.values()) <= 2
        for problem_id, moment in found.items():
            holders = [actor for actor in dead if problem_id in actor.inner._sampler.asked]
            if not holders or moment <= min(actor.dies for actor in holders):
                assert times[problem_id] == 1


class Reloading(latency.LatencyEngine):
    """An engine of which the third takes 300 seconds to load."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        clock.now += 300.0 if len(clock.actors) == 3 else 0.0


def test_only_a_sync_waits_for_a_replica_that_is_loading_again_which_then_samples_as_the_others_do() -> None:
    other = Sampling(max_new_tokens=latency.LONGEST, temperature=0.5)
    with latency.replicas(2, kind=Reloading, deaths={0: 0.1}) as replicas:
        stream = replicas.stream(latency.problems(4), samples=2, seed=1, step=0)
        next(stream)
        with pytest.raises(RolloutError, match="a stream is still open"):
            replicas.use(other)
        assert len(list(stream)) == 3
        replicas.use(other)
        answered(replicas, 4, 2, 1)
        assert replicas.ray.now < 300
        assert [member.opened is None for member in replicas.actors.members] == [True, False]
        assert replicas.manifest.shapes == {}
        assert [engine.sampling for engine in engines(replicas)[1:]] == [other, other]
        assert all(member.idle for member in replicas.actors.members)


def test_a_replica_that_never_came_up_is_lost_with_what_the_cluster_has() -> None:
    lost = pytest.raises(EngineError, match=r"replica 0: .* the model within 0\.0001 s .* has 3 CPUs and 0 GPUs")
    with lost, latency.replicas(1, start_seconds=1e-4):
        pass


class Apart(latency.LatencyEngine):
    """An engine whose probe is 0.1 nats off for each replica before it."""

    def __init__(self, clock: Any, *, dtype: str) -> None:
        super().__init__(clock)
        self.dtype = dtype

    def probe(self) -> list[float]:
        return [0.1 * len(self.clock.actors)]


def test_how_far_probes_may_lie_apart_follows_the_type_of_the_weights_or_is_given() -> None:
    for dtype, tolerance in (("float32", 0.3), ("bfloat16", None)):
        with latency.replicas(2, kind=Apart, dtype=dtype, tolerance=tolerance) as replicas:
            assert len(replicas.able()) == 2
    for tolerance, message in ((None, "lie 0.1 nats apart, and may by 0.001"), (0.0, "it must be a positive number")):
        with (
            pytest.raises(RolloutError, match=message),
            latency.replicas(2, kind=Apart, dtype="float32", tolerance=tolerance),
        ):
            pass


def test_replicas_with_known_lengths_share_the_tokens_equally() -> None:
    with latency.replicas(2, shared=1.0) as replicas:
        lengths = {f"p{i:04}": latency.length_of(0, f"p{i:04}", 1.0) for i in range(16)}
        for problem_id, length in lengths.items():
            replicas.expected.learn(problem_id, [length])
        answered(replicas, 16, 4, 0)
        given = [[lengths[problem_id] for problem_id in engine.asked] for engine in engines(replicas)]
    # The longest first.
    assert given == [sorted(each, reverse=True) for each in given]
    shares = list(map(sum, given))
    assert max(shares) - min(shares) < 0.1 * sum(shares)


def test_a_group_is_expected_to_be_as_long_as_the_problems_last_one() -> None:
    expected = Expected(100)
    assert expected.costs({"a": 10, "b": 4}, 8) == {"a": 8 * 110, "b": 8 * 104}
    expected.learn("a", [3, 5])
    # Of a problem that was never answered, the mean of those that were.
    assert expected.costs({"a": 10, "b": 4}, 8) == {"a": 8 * 14, "b": 8 * 8}
    expected.learn("b", [10])
    expected.learn("a", [6])
    assert expected.costs({"a": 0, "b": 0, "c": 0}, 1) == {"a": 6, "b": 10, "c": 8}


def test_the_transport_follows_the_replicas_devices_and_an_impossible_one_is_refused() -> None:
    chosen = [transport_of("auto", num_gpus=gpus) for gpus in (0.0, 0.5, 1.0, 4.0)]
    assert chosen == ["object_store", "ipc", "nccl", "nccl"]
    assert transport_of("gloo", num_gpus=1.0) == "gloo"
    for wanted, message in (("mpi", "one of object_store, gloo"), ("nccl", "it must be object_store")):
        with pytest.raises(RolloutError, match=message):
            transport_of(wanted, num_gpus=0.0)
