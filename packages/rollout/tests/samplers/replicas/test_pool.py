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
from typing import Any

import hashed
import polars as pl
import pytest
from hashed import SAMPLING, synced
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
def over(pool: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The replicas, which get weights over another transport, and have time to join a group."""
    for name, value in (("transport", request.param), ("_bucket_seconds", 60.0)):
        monkeypatch.setattr(pool, name, value)
    return pool


def arriving(seed: int, moment: int, strike: Callable[[], None]) -> Iterator[tuple[str, Any]]:
    """Weights of which one comes after a strike."""
    for number, item in enumerate(hashed.weights(seed).items()):
        if number == moment:
            strike()
        yield item


def compare(pool: Any, count: int = 5, during: Callable[[int], object] = lambda answered: None) -> None:
    """Compare a table with that of the sampler in this process.

    Args:
        during: Called after each group, with the number of groups that are there.
    """
    problems, groups = hashed.problems(count), []
    for group in pool.stream(problems, **ASKED):
        groups.append(pl.DataFrame(group))
        during(len(groups))
    assert pl.concat(groups).sort("problem_id", "sample").equals(pool.alone.sample(problems, **ASKED))


def process(pool: Replicas, index: int) -> Any:
    """The process of a replica; None where it is not up."""
    return getattr(pool.actors.members[index].opened, "process", None)


def test_replicas_are_in_the_placement_group_they_are_given_and_started_again_have_the_models_weights(
    cluster: Any, pair: Any, shared: Any
) -> None:
    from ray.util import get_current_placement_group

    def place(actor: Any) -> str:
        return str(get_current_placement_group().id.hex())

    asked = [member.actor.__ray_call__.remote(place) for member in pair.actors.members]
    assert cluster.get(asked) == [shared.id.hex()] * 2
    for index in range(2):
        os.kill(process(pair, index), signal.SIGKILL)
        # The other one answers, and then the one that was started again, alone.
        compare(pair)
        pair.settle()
    with pytest.raises(RolloutError, match="bundles names 1 bundles;"):
        hashed.replicas(pair.folder, 2, placement=shared, bundles=[1])


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


@pytest.mark.parametrize("over", ["gloo", "ipc"], indirect=True)
def test_every_transport_brings_the_weights_of_every_sync(over: Any) -> None:
    for version in (1, 2):
        synced(over, version, version)
        compare(over)
    with pytest.raises(RolloutError, match=r"lacks the tensor layer.5"):
        over.sync(list(hashed.weights(3).items())[:5], 3)
    synced(over, 4, 4)
    compare(over)


@pytest.mark.parametrize(
    ("what", "seconds", "why"),
    [
        ("fall", 3600.0, "it died before it could"),
        ("stay", 15.0, "it did not join"),
        # With the weights half there, in a group that others have made.
        ("die", 3600.0, "it died before it could"),
    ],
)
@pytest.mark.parametrize("over", ["gloo"], indirect=True)
def test_a_replica_that_is_lost_over_a_broadcast_is_ended_and_the_others_leave_at_once(
    over: Any, what: str, seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [process(over, index) for index in range(2)]
    wrong = over.folder / f"{what}-{before[1]}"
    wrong.touch()
    with monkeypatch.context() as patch:
        patch.setattr(over, "_bucket_seconds", seconds)
        if what == "die":
            synced(over, 7, 1)
        else:
            # Not the group of another test.
            over.actors.members[0].opened = replace(over.actors.members[0].opened, host=what)
        with pytest.raises(EngineError, match=f"replica 1 broke the group that .*: {why}"):
            over.sync(arriving(1, 3 if what == "die" else -1, lambda: os.kill(before[1], signal.SIGKILL)), 2)
    with pytest.raises(RolloutError, match="the last sync failed"):
        over.sample(hashed.problems(4), **ASKED)
    wrong.unlink()
    over.settle()
    synced(over, 3, 3)
    compare(over)
    assert [process(over, index) == before[index] for index in range(2)] == [True, False]
    assert [member.sync for member in over.actors.members] == [over.sync_number] * 2


def test_a_replica_refuses_to_answer_with_other_weights_than_are_asked_for(pool: Any) -> None:
    # As if a replica had missed a sync, and its driver had not noticed.
    own = pool.sync_number
    pool.sync_number = own + 1
    for member in pool.actors.members:
        member.sync = own + 1
    message = f"asked to answer with the weights of sync {own + 1}; .* those of sync {own}"
    with pytest.raises(RolloutError, match=message):
        pool.sample(hashed.problems(4), **ASKED)


def test_impossible_numbers_of_replicas_are_refused(cluster: Any, pair: Any) -> None:
    opener = partial(hashed.HashedSampler, SAMPLING, pair.folder)
    with pytest.raises(RolloutError, match="replicas is 0; it must be"):
        Replicas(opener, "hashed", SAMPLING, replicas=0)
    with pytest.raises(RolloutError, match=r"3 replicas need 4 CPUs and 8 GPUs each, .* 12 CPUs and 0 GPUs"):
        Replicas(opener, "hashed", SAMPLING, replicas=3, num_cpus=4, num_gpus=8, start_seconds=0.2)
    with pytest.raises(RolloutError, match="a sampler 'openai' has no"):
        open_sampler("openai", "model", SAMPLING, replicas={"replicas": 2})


@pytest.fixture(scope="module")
def pools(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Any]]:
    """Two replicas, or three."""
    three: list[Any] = []

    def made(wide: bool) -> Any:
        if wide and not three:
            three.append(hashed.replicas(tmp_path_factory.mktemp("three"), 3))
        return three[0] if wide else pair

    yield made
    for pool in three:
        pool.close()


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_of_a_replica_shows_in_no_table(number: int, pools: Callable[[bool], Any]) -> None:
    fault = KINDS[number % len(KINDS)]
    # A short run needs one of the pools. Where two end between syncs there must be a third.
    pool = pools(number // len(KINDS) % 2 == 1 or fault == "killed in both")
    members, source = pool.actors.members, random.Random(number)
    victim, other = source.sample(range(len(members)), 2)
    how, _, where = fault.partition(" ")
    ended: list[int] = []

    def strike(index: int) -> None:
        ended.append(process(pool, index))
        os.kill(ended[-1], SIGNALS[how])

    def sync(seed: int, *, struck: bool = False) -> None:
        moment, version = source.randrange(len(hashed.SHAPES)), pool.weights_version + 1
        pool.sync(arriving(seed, moment if struck else -1, lambda: strike(victim)), version)
        pool.alone.sync(hashed.weights(seed), version)
        assert pool.weights_version == version

    def sample_struck(index: int) -> None:
        """Sample while a replica is struck that has answered none or one of its groups."""
        paced, moment, already = source.random() < 0.5, source.randint(1, PROBLEMS // 2), len(ended)
        before = members[index].answered
        (pool.folder / f"{'pace' if paced else 'wait'}-{process(pool, index)}").touch()

        def look(answered: int) -> None:
            if len(ended) == already and (members[index].answered > before if paced else answered == moment):
                strike(index)

        compare(pool, PROBLEMS, look)
        assert pool.actors.last_lost.startswith(f"replica {index}: it di")
        assert "answer the group" in pool.actors.last_lost

    def sample_slowly() -> None:
        """Sample with one replica that answers nothing until the others have answered most."""
        gate, before = pool.folder / f"wait-{process(pool, victim)}", [member.answered for member in members]
        gate.touch()
        compare(pool, PROBLEMS, lambda answered: answered == PROBLEMS * 2 // 3 and gate.unlink())
        shares = [member.answered - old for member, old in zip(members, before, strict=True)]
        assert sum(shares) == PROBLEMS
        assert shares[victim] < PROBLEMS / len(members)

    pool.settle()
    sync(number + 1, struck=where in ("in a sync", "in both"))
    if fault == "slow":
        sample_slowly()
    elif where in ("in a batch", "twice", "in both"):
        sample_struck(other if where == "in both" else victim)
    else:
        compare(pool, PROBLEMS)
    if where == "twice":
        # The process that has taken the place of the one that was killed, in the same place.
        pool.settle()
        sync(number + 1000)
        sample_struck(victim)
    if where == "after a batch":
        strike(victim)
    sync(number + 2000)
    compare(pool, PROBLEMS)
    assert len(ended) == (0 if fault == "slow" else 1 + (where in ("in both", "twice")))
    assert not {process(pool, index) for index in range(len(members))} & set(ended)
