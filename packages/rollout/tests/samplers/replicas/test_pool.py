"""A pool of replicas of a sampler that starts in seconds: places, the order of work, transports, refusals, deaths."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hashed
import pytest
from hashed import SAMPLING
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.replicas.pool import Replicas

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("ray")]

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
    for name, value in (("_transport", request.param), ("_seconds", 60.0)):
        monkeypatch.setattr(pool._sender, name, value)
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
    opened = pool.driver.members[index].opened
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
    assert cluster.get(opened.driver.members[0].actor.__ray_call__.remote(place)) == shared.id.hex()
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


def test_how_far_probes_may_lie_apart_follows_the_type_of_the_weights_or_is_given(cluster: Any, tmp_path: Path) -> None:
    for options, tolerated in (({}, 0.001), ({"tolerance": 0.3}, None), ({"dtype": "bfloat16"}, None)):
        opened = hashed.replicas(tmp_path, 2, **options)
        (tmp_path / f"round-{process(opened, 1)}").touch()
        if tolerated is None:
            opened.sync(hashed.weights(1), 1)
        else:
            with pytest.raises(RolloutError, match=f"lie 0.1 nats apart, and may by {tolerated}"):
                opened.sync(hashed.weights(1), 1)
        opened.close()
    with pytest.raises(RolloutError, match="tolerance is 0; it must be a positive number"):
        hashed.replicas(tmp_path, 1, tolerance=0)


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
        patch.setattr(over._sender, "_seconds", seconds)
        # Not the group of another test.
        over.driver.members[0].opened = replace(over.driver.members[0].opened, host=what)
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
    assert [member.sync for member in over.driver.members] == [over.sync_number] * 2


def test_a_replica_refuses_to_answer_with_other_weights_than_are_asked_for(pool: Any) -> None:
    # As if a replica had missed a sync, and its driver had not noticed.
    own = pool.sync_number
    pool.sync_number = own + 1
    for member in pool.driver.members:
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
