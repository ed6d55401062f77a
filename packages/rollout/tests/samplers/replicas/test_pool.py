"""A pool of replicas of a sampler that starts in seconds: places, the order of work, transports, refusals, deaths.

Then faults at random by seed: replicas killed or hanging in a batch or in a sync, or slow; none may show in a table.
ISOCOMPUTE_REPLICA_FAULTS says how many.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hashed
import polars as pl
import pytest
from hashed import SAMPLING
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.replicas.pool import Replicas

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("ray")]

FAULTS = int(os.environ.get("ISOCOMPUTE_REPLICA_FAULTS", "3"))
KINDS = (
    "killed in a batch",
    "slow",
    "hanging in a sync",
    "killed in a sync",
    "hanging in a batch",
    "killed in both",
    "killed twice",
    "killed after a batch",
)
SIGNALS = {"killed": signal.SIGKILL, "hanging": signal.SIGSTOP}
PROBLEMS = 24

ASKED: dict[str, Any] = {"samples": 3, "seed": 7, "step": 1}


@pytest.fixture
def pool(pair: Any) -> Any:
    """Two replicas with the weights of the sampler in this process, whatever another test did to them."""
    pair.settle()
    synced(pair, 0, 1)
    return pair


@pytest.fixture
def over(pool: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The replicas, which get weights over another transport, and have time to join a group."""
    for name, value in (("transport", request.param), ("_bucket_seconds", 60.0)):
        monkeypatch.setattr(pool, name, value)
    return pool


def synced(pool: Any, seed: int, version: int) -> None:
    """Sync the same weights with replicas and with the sampler in this process."""
    for each in (pool, pool.alone):
        each.sync(hashed.weights(seed), version)


def compare(pool: Any, count: int = 5) -> None:
    """Compare a table with that of the sampler in this process."""
    problems = hashed.problems(count)
    assert pool.sample(problems, **ASKED).equals(pool.alone.sample(problems, **ASKED))


def process(pool: Replicas, index: int) -> int:
    opened = pool.crew.members[index].opened
    assert opened is not None
    return opened.process


def test_replicas_are_in_the_placement_group_they_are_given_and_started_again_have_the_models_weights(
    cluster: Any, tmp_path: Path
) -> None:
    from ray.util import get_current_placement_group, placement_group_table
    from ray.util.placement_group import placement_group, remove_placement_group

    def place(actor: Any) -> str:
        return str(get_current_placement_group().id.hex())

    shared = placement_group([{"CPU": 1.0}] * 2, strategy="PACK")
    opened = hashed.replicas(tmp_path, 1, placement=shared, bundles=[1])
    assert cluster.get(opened.crew.members[0].actor.__ray_call__.remote(place)) == shared.id.hex()
    compare(opened)
    os.kill(process(opened, 0), signal.SIGKILL)
    compare(opened)
    opened.close()
    assert placement_group_table(shared)["state"] == "CREATED"
    with pytest.raises(RolloutError, match="bundles names 1 bundles;"):
        hashed.replicas(tmp_path, 2, placement=shared, bundles=[1])
    remove_placement_group(shared)


def test_a_group_that_ends_two_replicas_is_named_and_without_the_current_weights_no_replica_answers(pool: Any) -> None:
    problems, deadly = hashed.problems(6), pool.folder / "deadly-p003"
    deadly.touch()
    with pytest.raises(EngineError, match=r"p003.* (lost with two replicas: |is left to answer .*)replica \d.* died"):
        pool.sample(problems, **ASKED)
    deadly.unlink()
    for _ in range(2):
        pool.settle()
        # The new processes have the model's own weights, which are not those of the sync.
        with pytest.raises(EngineError, match="of 2 replicas is left to"):
            pool.sample(problems, **ASKED)
    synced(pool, 2, 2)
    compare(pool, 6)


def test_a_replica_that_mangles_the_weights_is_found_by_its_probe_and_answers_nothing(pool: Any) -> None:
    wrong = pool.folder / f"mangle-{process(pool, 1)}"
    wrong.touch()
    with pytest.raises(RolloutError, match="replicas 0 and 1 do not"):
        pool.sync(hashed.weights(1), 1)
    with pytest.raises(RolloutError, match="the last sync failed"):
        pool.sample(hashed.problems(4), **ASKED)
    wrong.unlink()
    synced(pool, 1, 1)
    compare(pool)


@pytest.mark.parametrize("over", ["gloo", "ipc"], indirect=True)
def test_every_transport_brings_the_weights_of_every_sync(over: Any) -> None:
    for version in (1, 2):
        synced(over, version, version)
        compare(over)
    with pytest.raises(RolloutError, match=r"lacks the tensor layer.5"):
        over.sync(list(hashed.weights(3).items())[:5], 3)
    with pytest.raises(RolloutError, match="the last sync failed"):
        over.sample(hashed.problems(4), **ASKED)
    synced(over, 4, 4)
    compare(over)


@pytest.mark.parametrize(
    ("what", "seconds", "why"), [("fall", 3600.0, "it died before it could"), ("stay", 15.0, "it did not join")]
)
@pytest.mark.parametrize("over", ["gloo"], indirect=True)
def test_a_replica_that_does_not_come_to_a_broadcast_is_ended_and_the_others_leave_at_once(
    over: Any, what: str, seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [process(over, index) for index in range(2)]
    wrong = over.folder / f"{what}-{before[1]}"
    wrong.touch()
    with monkeypatch.context() as patch:
        patch.setattr(over, "_bucket_seconds", seconds)
        # Not the group of another test.
        over.crew.members[0].opened = replace(over.crew.members[0].opened, host=what)
        with pytest.raises(EngineError, match=f"replica 1 broke the group that .*: {why}"):
            over.sync(hashed.weights(1), 1)
    wrong.unlink()
    over.settle()
    synced(over, 3, 3)
    compare(over)
    assert [process(over, index) == before[index] for index in range(2)] == [True, False]


@pytest.mark.parametrize("over", ["gloo"], indirect=True)
def test_a_replica_that_dies_in_a_sync_ends_a_broadcast(over: Any) -> None:
    def arriving() -> Iterator[tuple[str, Any]]:
        for number, item in enumerate(hashed.weights(1).items()):
            if number == 3:
                os.kill(process(over, 1), signal.SIGKILL)
            yield item

    synced(over, 7, 1)
    with pytest.raises(EngineError, match="replica 1 broke the group"):
        over.sync(arriving(), 2)
    with pytest.raises(RolloutError, match="the last sync failed"):
        over.sample(hashed.problems(4), **ASKED)
    over.settle()
    synced(over, 3, 3)
    compare(over)
    assert [member.sync for member in over.crew.members] == [over.sync_number] * 2


def test_a_replica_refuses_to_answer_with_other_weights_than_are_asked_for(pool: Any) -> None:
    # As if a replica had missed a sync, and its driver had not noticed.
    own = pool.sync_number
    pool.sync_number = own + 1
    for member in pool.crew.members:
        member.sync = own + 1
    message = f"asked to answer with the weights of sync {own + 1}; .* those of sync {own}"
    with pytest.raises(RolloutError, match=message):
        pool.sample(hashed.problems(4), **ASKED)


def test_a_stream_that_is_closed_early_leaves_the_replicas_usable(pool: Any) -> None:
    stream = pool.stream(hashed.problems(30), **ASKED)
    next(stream)
    with pytest.raises(RolloutError, match="a stream is still open"):
        pool.use(SAMPLING)
    stream.close()
    compare(pool, 30)


def test_impossible_numbers_of_replicas_are_refused(cluster: Any, tmp_path: Path) -> None:
    opener = partial(hashed.HashedSampler, SAMPLING, tmp_path)
    with pytest.raises(RolloutError, match="replicas is 0; it must be"):
        Replicas(opener, "hashed", SAMPLING, replicas=0)
    with pytest.raises(RolloutError, match=r"3 replicas need 4 CPUs and 8 GPUs each, .* 12 CPUs and 0 GPUs"):
        Replicas(opener, "hashed", SAMPLING, replicas=3, num_cpus=4, num_gpus=8, start_seconds=0.2)
    with pytest.raises(RolloutError, match="a sampler 'openai' has no"):
        open_sampler("openai", "model", SAMPLING, replicas={"replicas": 2})


class Played:
    """Replicas, and the same sampler alone, which says what they should answer."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.alone, self.folder = pool, pool.alone, pool.folder
        self.problems = hashed.problems(PROBLEMS)
        self.count = len(pool.crew.members)

    def process(self, index: int) -> Any:
        """The process of a replica; None where it is not up."""
        return getattr(self.pool.crew.members[index].opened, "process", None)

    def strike(self, index: int, how: str) -> int:
        """Kill or stop a replica; returns its process."""
        process: int = self.process(index)
        os.kill(process, SIGNALS[how])
        return process

    def sync(self, version: int, seed: int, struck: tuple[int, str] | None, source: random.Random) -> list[int]:
        """Sync other weights; one replica may be struck before one of the tensors."""
        whole, ended = hashed.weights(seed), []
        moment = source.randrange(len(whole))

        def arriving() -> Iterator[tuple[str, Any]]:
            for number, item in enumerate(whole.items()):
                if struck is not None and number == moment:
                    ended.append(self.strike(*struck))
                yield item

        self.pool.sync(arriving(), version)
        self.alone.sync(whole, version)
        return ended

    def sample(self, step: int) -> None:
        """Compare a table with the one that the sampler gives alone."""
        self._compare(step, list(self.pool.stream(self.problems, **self._asked(step))))

    def sample_slowly(self, step: int, slow: int) -> None:
        """Sample with one replica that answers nothing until the others have answered most, and compare."""
        gate = self.folder / f"wait-{self.process(slow)}"
        gate.touch()
        members = self.pool.crew.members
        before, groups = [member.answered for member in members], []
        for group in self.pool.stream(self.problems, **self._asked(step)):
            groups.append(group)
            if len(groups) == PROBLEMS * 2 // 3:
                gate.unlink()
        shares = [member.answered - old for member, old in zip(members, before, strict=True)]
        assert sum(shares) == PROBLEMS
        assert shares[slow] < PROBLEMS / len(members)
        self._compare(step, groups)

    def sample_struck(self, step: int, victim: int, how: str, source: random.Random) -> int:
        """Sample while a replica is struck that has answered none or one of its groups, and compare.

        Returns:
            The process that was struck.
        """
        paced, moment = source.random() < 0.5, source.randint(1, PROBLEMS // 2)
        member = self.pool.crew.members[victim]
        (self.folder / f"{'pace' if paced else 'wait'}-{self.process(victim)}").touch()
        before, groups, ended = member.answered, [], 0
        for group in self.pool.stream(self.problems, **self._asked(step)):
            groups.append(group)
            if not ended and (member.answered > before if paced else len(groups) == moment):
                ended = self.strike(victim, how)
        assert self.pool.crew.last_lost.startswith(f"replica {victim}: it di")
        assert "answer the group" in self.pool.crew.last_lost
        self._compare(step, groups)
        return ended

    def _asked(self, step: int) -> dict[str, Any]:
        return {"samples": 3, "seed": 7, "step": step, "run_id": "r"}

    def _compare(self, step: int, groups: list[Any]) -> None:
        found = pl.concat([pl.DataFrame(pl.from_arrow(group)) for group in groups]).sort("problem_id", "sample")
        assert found.equals(self.alone.sample(self.problems, **self._asked(step)))


@pytest.fixture(scope="module")
def played(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Played]]:
    """Two replicas (0), and three (1)."""
    three: list[Any] = []

    def made(which: int) -> Played:
        if which and not three:
            three.append(hashed.replicas(tmp_path_factory.mktemp("three"), 3))
        return Played(three[0] if which else pair)

    yield made
    for pool in three:
        pool.close()


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_of_a_replica_shows_in_no_table(number: int, played: Callable[[int], Played]) -> None:
    fault = KINDS[number % len(KINDS)]
    # A short run needs one of the pools. Where two end between syncs there must be a third.
    one = played(max(number // len(KINDS) % 2, fault == "killed in both"))
    source = random.Random(number)
    victim, other = source.sample(range(one.count), 2)
    how, where = fault.partition(" ")[0], fault.partition(" ")[2]
    one.pool.settle()
    version = one.pool.weights_version + 1
    ended = one.sync(version, number + 1, (victim, how) if where in ("in a sync", "in both") else None, source)
    assert one.pool.weights_version == version
    if fault == "slow":
        one.sample_slowly(number, victim)
    elif where in ("in a batch", "twice"):
        ended.append(one.sample_struck(number, victim, how, source))
    elif where == "in both":
        ended.append(one.sample_struck(number, other, how, source))
    else:
        one.sample(number)
    if where == "twice":
        # The process that has taken the place of the one that was killed, in the same place.
        one.pool.settle()
        one.sync(version + 1, number + 1000, None, source)
        ended.append(one.sample_struck(number, victim, how, source))
    if where == "after a batch":
        ended.append(one.strike(victim, how))
    one.sync(one.pool.weights_version + 1, number + 2000, None, source)
    one.sample(number)
    assert len(ended) == (0 if fault == "slow" else 1 + (where in ("in both", "twice")))
    assert not [process for process in ended if process in map(one.process, range(one.count))]
