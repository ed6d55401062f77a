"""A pipe in flight through replicas: in virtual time whatever dies, and with processes that are killed."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from time import sleep
from typing import Any

import hashed
import latency
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, open_pipe
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.base import unpacked
from isocompute.rollout.samplers.in_flight import FIRST, InFlightPipe
from isocompute.rollout.samplers.replicas.pool import Dispatch
from isocompute.rollout.samplers.replicas.queue import NOBODY
from isocompute.rollout.samplers.replicas.replica import GATHER_SECONDS
from isocompute.rollout.samplers.sampling import Draw

pytestmark = pytest.mark.slow("Ray's errors and torch's tensors")

RUNS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 6),
        "samples": st.integers(1, 4),
        "replicas": st.integers(1, 3),
        "limit": st.sampled_from([2, 8, 2**31]),
        "lag": st.integers(0, 4),
    }
)
STEPS = 4


@contextmanager
def piped(count: int, *, tick: float = GATHER_SECONDS, **options: Any) -> Iterator[tuple[Any, InFlightPipe]]:
    """A pipe through replicas in virtual time."""
    with latency.replicas(count, tick=tick, **options) as replicas:
        pipe = InFlightPipe(replicas)
        try:
            yield replicas, pipe
        finally:
            pipe.close()


def problems(step: int, count: int) -> pl.DataFrame:
    return pl.DataFrame({"problem_id": [f"s{step}-{i}" for i in range(count)]})


def begin(pipe: InFlightPipe, step: int, *, count: int = 4, samples: int = 2) -> None:
    pipe.begin(problems(step, count), samples=samples, seed=1, step=step, run_id="r")


def add(dispatch: Dispatch, step: int, count: int, *, place: int = 0, phase: str = "train") -> None:
    """Add the groups of a step, of two responses each."""
    groups = problems(step, count)
    costs = dict.fromkeys(groups["problem_id"], 1.0)
    dispatch.add(costs, groups, Draw(samples=2, seed=1, step=step, phase=phase), places=repeat(place))


def asked(replicas: Any) -> list[str]:
    return [problem_id for actor in replicas.ray.actors for problem_id in actor.inner._sampler.asked]


def check(table: pl.DataFrame, step: int, *, count: int, samples: int, lag: int) -> Counter[str]:
    """Check a step's table; returns how often each of its groups was lost."""
    assert set(table["problem_id"]) == set(problems(step, count)["problem_id"])
    assert not table.select("problem_id", "sample").is_duplicated().any()
    lost = table.filter(pl.col("finish_reason") == "aborted") if "finish_reason" in table.columns else table.clear()
    whole = table.join(lost, on=("problem_id", "sample"), how="anti")
    assert whole.group_by("problem_id").len()["len"].to_list() == [samples] * count
    assert whole["sample"].max() == samples - 1
    # Admitted with the weights of k steps before at the earliest.
    assert whole["weights_version"].min() >= step - 1 - lag
    assert whole["weights_version"].max() <= step - 1
    assert len(lost) % samples == 0
    return Counter({problem_id: rows // samples for problem_id, rows in lost.group_by("problem_id").len().iter_rows()})


@settings(max_examples=30)
@given(RUNS, st.dictionaries(st.integers(0, 6), st.floats(0.01, 150.0), max_size=3))
def test_batches_come_out_whole_and_in_time_and_what_died_is_counted(run: dict[str, Any], deaths: Any) -> None:
    count, samples, lag = run["count"], run["samples"], run["lag"]
    with piped(run["replicas"], limit=run["limit"], deaths=deaths, tick=5.0) as (replicas, pipe):
        begun, lost, failure = 0, Counter[str](), ""
        try:
            for step in range(1, STEPS + 1):
                while begun < min(STEPS, step + lag):
                    begun += 1
                    begin(pipe, begun, count=count, samples=samples)
                lost += check(pipe.take(step), step, count=count, samples=samples, lag=lag)
                pipe.push({}, step)
        except EngineError as error:
            failure = str(error)
        if failure:
            # Only where groups were lost twice, or nobody is left.
            assert "lost with two" in failure or "is left to" in failure
            assert len(deaths) > 1 or run["replicas"] == 1
            return
        times = Counter(asked(replicas))
        assert set(times) == {f"s{step}-{i}" for step in range(1, STEPS + 1) for i in range(count)}
        assert times - Counter(set(times)) == lost
        if not lost:
            for actor in replicas.ray.actors:
                assert actor.inner._sampler.asked == sorted(actor.inner._sampler.asked)


def test_what_is_sampled_beside_goes_before_training_groups_that_wait_in_their_order() -> None:
    with latency.replicas(1, limit=4, tick=GATHER_SECONDS) as replicas:
        dispatch = Dispatch(replicas, in_flight=True)
        add(dispatch, 1, 3, place=1)
        add(dispatch, 2, 3, place=2)
        dispatch.turn(GATHER_SECONDS)
        add(dispatch, 0, 3, place=FIRST, phase="eval")
        groups = []
        while dispatch.missing:
            groups += dispatch.turn()
        assert len(groups) == 9
        order = [name.partition("-")[0] for name in asked(replicas)]
        assert order == ["s1"] * 2 + ["s0"] * 3 + ["s1"] + ["s2"] * 3


def test_weights_bring_back_an_only_replica_that_died_and_without_them_it_is_named() -> None:
    with piped(1, deaths={0: 5.0}) as (replicas, pipe):
        begin(pipe, 1)
        while not replicas.actors.last_lost:
            sleep(0.01)
        pipe.push({}, 1)
        table = pipe.take(1)
        assert set(table.filter(pl.col("finish_reason") == "aborted")["failure"].str.contains("it died")) == {True}
        assert len(table) == 16
    with piped(1, deaths={0: 5.0}) as (replicas, pipe):
        begin(pipe, 1)
        with pytest.raises(EngineError, match=r"is left to answer the groups of s1-0.* it died"):
            pipe.take(1)
        with pytest.raises(EngineError, match="is left to answer"):
            pipe.push({}, 1)


def test_a_pipe_goes_on_from_its_state_with_what_was_complete() -> None:
    with piped(1) as (_, pipe):
        for step in (1, 2, 3):
            begin(pipe, step)
        first = pipe.take(1)
        tensors, values = pipe.state()
        expected = [pipe.take(step) for step in (2, 3)]
    with piped(2) as (_, pipe):
        pipe.load_state(tensors, json.loads(json.dumps(values)))
        found = [pipe.take(step) for step in (2, 3)]
        assert len(first) == 8
        assert [table.equals(other) for table, other in zip(found, expected, strict=True)] == [True, True]


def test_tries_that_were_lost_before_a_checkpoint_are_counted_after_it() -> None:
    with piped(2, deaths={0: 5.0, 2: 15.0}) as (_, pipe):
        begin(pipe, 1, samples=3)
        while True:
            tensors, values = pipe.state()
            if len(pl.DataFrame(unpacked(tensors["lost.1"]))):
                break
        expected = pipe.take(1)
    with piped(1) as (_, pipe):
        pipe.load_state(tensors, values)
        found = pipe.take(1)
    lost = pl.col("finish_reason") == "aborted"
    assert not found.select("problem_id", "sample").is_duplicated().any()
    assert len(found.filter(lost)) % 3 == 0
    assert 0 < len(found.filter(lost)) <= len(expected.filter(lost))
    assert len(found.filter(~lost.fill_null(value=False))) == 12


def test_an_emptied_pipe_says_what_was_generated_and_begins_again() -> None:
    with piped(2, limit=4) as (_, pipe):
        assert len(pipe.abandon()) == 0
        for step in (1, 2, 3):
            begin(pipe, step)
        pipe.take(1)
        table = pipe.abandon()
        assert set(table["step"]) <= {2, 3}
        assert not table.select("problem_id", "sample").is_duplicated().any()
        with pytest.raises(RolloutError, match="step 2 was not begun"):
            pipe.take(2)
        begin(pipe, 2)
        assert len(pipe.take(2)) == 8


def test_what_a_pipe_cannot_use_is_refused() -> None:
    with pytest.raises(RolloutError, match=r'replicas=\{"replicas": 1\}'):
        open_pipe(latency.LatencyEngine(None), mode="in_flight")
    with piped(1) as (replicas, pipe):
        with pytest.raises(RolloutError, match="another pipe"):
            open_pipe(replicas, mode="in_flight")
        with pytest.raises(RolloutError, match="a stream is still open"):
            replicas.sync({}, 1)
        with pytest.raises(RolloutError, match="a pipe uses the replicas"):
            replicas.sync({}, 1, in_flight=True)
        twice = pl.concat([problems(0, 2), problems(0, 1)])
        with pytest.raises(RolloutError, match="problem s0-0 comes twice"):
            replicas.sample(twice, samples=1, seed=1, step=0, phase="eval")
        begin(pipe, 1)
        with pytest.raises(RolloutError, match="step 1 is in the pipe already"):
            begin(pipe, 1)
        pipe.close()
        with pytest.raises(RolloutError, match="the pipe is closed"):
            pipe.take(1)
        replicas.sync({}, 1)
        stream = replicas.stream(problems(1, 4), samples=1, seed=1, step=1)
        next(stream)
        with pytest.raises(RolloutError, match="a stream is still open"):
            open_pipe(replicas, mode="in_flight")
        stream.close()
        replicas.sleeps = True
        with pytest.raises(RolloutError, match="engine sleep must be 0"):
            open_pipe(replicas, mode="in_flight")


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_abandoned_while_a_replica_fails_keeps_the_answers_of_others_and_leaves_none_at_work(
    dies: bool,
) -> None:
    failed = type("RayTaskError", (latency.RayError,), {"cause": RuntimeError("the engine failed")})
    with latency.replicas(3, limit=4, tick=GATHER_SECONDS) as replicas:
        dispatch = Dispatch(replicas, in_flight=True)
        add(dispatch, 1, 12)
        # Lost for the second time with whichever replica.
        waiting = dispatch._queue._waiting
        waiting[:] = [replace(work, failed_on=NOBODY) for work in waiting]
        came = {group["problem_id"][0].as_py() for _, group in dispatch.turn(GATHER_SECONDS)}
        members = replicas.actors.members
        coming = {group["problem_id"][0].as_py() for m in members[1:] for group in m.call.value.groups}
        for member in members[1:]:
            member.call.done += 1.0
        # The call that it is in ends with an error.
        members[0].call.done = replicas.ray.now
        members[0].call.error = latency.RayError("the actor died") if dies else failed()
        given = [set(dispatch._given[index]) for index in range(3)]
        groups, unknown = dispatch.abandon()
        came |= {group["problem_id"][0].as_py() for _, group in dispatch.arrived()}
        assert coming <= came
        assert groups == []
        assert {work.problem_id for work in unknown} == ({name for each in given[dies:] for *_, name in each} - came)
        assert len(dispatch.lost) == (len(given[0]) if dies else 0)
        assert [member.call for member in members[1:]] == [None, None]
        add(dispatch, 2, 6)
        found = []
        while dispatch.missing:
            found += dispatch.turn()
        assert len(found) == 6


class Holding(latency.LatencyEngine):
    """Goes no further than its first group while it is held."""

    held = False

    def _answers(self, feed: Any) -> Iterator[Any]:
        answered = False
        for one in super()._answers(feed):
            yield one
            answered |= one is not None
            while answered and self.held:
                self.clock.now += GATHER_SECONDS
                yield None


def test_an_evaluation_that_is_not_read_to_its_end_breaks_nothing_else() -> None:
    def beside() -> Any:
        return replicas.stream(problems(0, 5), samples=2, seed=1, step=0, phase="eval")

    with piped(1, kind=Holding, limit=4) as (replicas, pipe):
        engine = replicas.ray.actors[0].inner._sampler
        engine.held = True
        unread = beside()
        next(unread)
        assert len(pipe.abandon()) == 0
        with pytest.raises(RolloutError, match="was emptied"):
            list(unread)
        unread = beside()
        next(unread)
        pipe.push({}, 1)
        engine.held = False
        with pytest.raises(RolloutError, match=r"of version 0 and has those of \[.*1\]"):
            list(unread)
        begin(pipe, 2)
        check(pipe.take(2), 2, count=4, samples=2, lag=0)


PROBLEMS = 12


def expected(pool: Any, version: int, step: int, phase: str = "train") -> dict[tuple[str, int], list[int]]:
    """The tokens that the sampler in this process answers with the weights of a version."""
    pool.alone.sync(hashed.weights(version), version)
    table = pool.alone.sample(hashed.problems(PROBLEMS), samples=3, seed=7, step=step, phase=phase)
    return {(p, sample): ids for p, sample, ids in table.select("problem_id", "sample", "response_ids").iter_rows()}


@pytest.mark.slow("Ray")
@pytest.mark.xdist_group("ray")
def test_pushes_evaluations_and_a_replica_that_is_killed_leave_every_response_with_the_tokens_of_its_version(
    pool: Any,
) -> None:
    members = pool.actors.members
    for member in members:
        (pool.folder / f"pace-{member.opened.process}").touch()
    pipe = open_pipe(pool, mode="in_flight")
    for step in (1, 2, 3, 4):
        pipe.begin(hashed.problems(PROBLEMS), samples=3, seed=7, step=step, run_id="r")
    tables, beside, before = [], [], members[1].answered
    for version in (1, 2, 3):
        pipe.push(hashed.weights(version), version)
        beside.append(pool.sample(hashed.problems(PROBLEMS), samples=3, seed=7, step=version, phase="eval"))
        if version == 2:
            assert members[1].answered > before
            os.kill(members[1].opened.process, signal.SIGKILL)
        tables.append(pipe.take(version))
    tables.append(pipe.take(4))
    # It answers again with the weights of the next push.
    pool.actors.gather(members)
    pipe.push(hashed.weights(4), 4)
    assert [member.sync for member in members] == [pool.sync_number] * 2
    pipe.close()
    for version, table in enumerate(beside, start=1):
        assert set(table["weights_version"]) == {version}
        found = table.select("problem_id", "sample", "response_ids").iter_rows()
        assert {(p, sample): ids for p, sample, ids in found} == expected(pool, version, version, "eval")
    lost = 0
    for step, table in enumerate(tables, start=1):
        whole = table.filter(pl.col("finish_reason") != "aborted")
        assert len(whole) == PROBLEMS * 3
        lost += len(table) - len(whole)
        for (version,), rows in whole.group_by("weights_version"):
            known = expected(pool, int(str(version)), step)
            for p, sample, ids in rows.select("problem_id", "sample", "response_ids").iter_rows():
                assert ids == known[p, sample]
    assert lost > 0
    assert lost % 3 == 0
    assert pl.concat(tables, how="diagonal_relaxed")["weights_version"].n_unique() > 2


@pytest.mark.slow("Ray")
@pytest.mark.xdist_group("ray")
def test_a_push_that_one_replica_mangles_stops_the_pipe_and_a_sync_after_it_heals(pool: Any) -> None:
    wrong = pool.folder / f"mangle-{pool.actors.members[1].opened.process}"
    wrong.touch()
    pipe = open_pipe(pool, mode="in_flight")
    pipe.begin(hashed.problems(PROBLEMS), samples=3, seed=7, step=1, run_id="r")
    pipe.take(1)
    pipe.begin(hashed.problems(PROBLEMS), samples=3, seed=7, step=2, run_id="r")
    with pytest.raises(RolloutError, match="replicas 0 and 1 do not sample from the same weights"):
        pipe.push(hashed.weights(1), 1)
    with pytest.raises(RolloutError, match="replicas 0 and 1 do not"):
        pipe.take(2)
    with pytest.raises(RolloutError, match="the last sync failed"):
        pool.sample(hashed.problems(2), samples=1, seed=7, step=0, phase="eval")
    wrong.unlink()
    pipe.close()
    pool.sync(hashed.weights(2), 2)
    assert len(pool.sample(hashed.problems(2), samples=1, seed=7, step=3)) == 2
