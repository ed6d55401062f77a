"""A pool of replicas of a sampler that starts in seconds: places, the order of work, transports, refusals, deaths."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hashed
import pytest
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.replicas.pool import Replicas, transport_of

pytestmark = pytest.mark.slow("Ray")

SAMPLING = Sampling(max_new_tokens=12, max_prompt_tokens=16)
ASKED: dict[str, Any] = {"samples": 3, "seed": 7, "step": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with places for all replicas of this file."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("torch")
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(hashed)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hashed")


@pytest.fixture
def alone(folder: Path) -> Any:
    return hashed.HashedSampler(SAMPLING, folder)


@pytest.fixture(scope="module")
def two(cluster: Any, folder: Path) -> Iterator[Replicas]:
    opened = Replicas(partial(hashed.HashedSampler, SAMPLING, folder), "hashed", SAMPLING, replicas=2, bucket_bytes=300)
    yield opened
    opened.close()


@pytest.fixture
def pool(two: Replicas, alone: Any) -> Replicas:
    """Two replicas with the weights of the sampler in this process, whatever another test did to them."""
    two.settle()
    for each in (two, alone):
        each.sync(hashed.weights(0), 1)
    return two


@pytest.fixture(scope="module", params=["gloo", "ipc"])
def over(request: pytest.FixtureRequest, cluster: Any, folder: Path) -> Iterator[Replicas]:
    """Two replicas that get weights in three buckets."""
    opener = partial(hashed.HashedSampler, SAMPLING, folder)
    opened = Replicas(
        opener, "hashed", SAMPLING, replicas=2, bucket_bytes=400, transport=request.param, answer_seconds=60.0
    )
    yield opened
    opened.close()


def process(pool: Replicas, index: int) -> int:
    opened = pool.crew.members[index].opened
    assert opened is not None
    return opened.process


def test_replicas_share_a_placement_group_and_leave_it_as_it_was(cluster: Any, alone: Any, folder: Path) -> None:
    from ray.util import get_current_placement_group, placement_group_table
    from ray.util.placement_group import placement_group, remove_placement_group

    def place(actor: Any) -> str:
        return str(get_current_placement_group().id.hex())

    shared = placement_group([{"CPU": 1.0}] * 3, strategy="PACK")
    opener = partial(hashed.HashedSampler, SAMPLING, folder)
    opened = Replicas(opener, "hashed", SAMPLING, replicas=2, placement=shared, bundles=[2, 0])
    groups = [cluster.get(member.actor.__ray_call__.remote(place)) for member in opened.crew.members]
    assert groups == [shared.id.hex()] * 2
    problems = hashed.problems(5)
    assert opened.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))
    opened.close()
    assert placement_group_table(shared)["state"] == "CREATED"
    with pytest.raises(RolloutError, match="bundles names 1 bundles;"):
        Replicas(opener, "hashed", SAMPLING, replicas=2, placement=shared, bundles=[1])
    remove_placement_group(shared)


def test_a_group_that_ends_two_replicas_is_named_and_the_next_table_is_whole(
    two: Replicas, alone: Any, folder: Path
) -> None:
    assert two.sync_number == 0, (
        "the first test of these replicas: those that are started again have the model's weights"
    )
    problems = hashed.problems(6)
    deadly = folder / "deadly-p003"
    deadly.touch()
    with pytest.raises(EngineError, match=r"p003.* (lost with two replicas: |is left to answer .*)replica \d.* died"):
        two.sample(problems, **ASKED)
    deadly.unlink()
    two.settle()
    assert two.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))


def test_a_replica_that_mangles_the_weights_is_found_by_its_probe_and_answers_nothing(
    pool: Replicas, alone: Any, folder: Path
) -> None:
    wrong = folder / f"mangle-{process(pool, 1)}"
    wrong.touch()
    with pytest.raises(RolloutError, match="replicas 0 and 1 do not"):
        pool.sync(hashed.weights(1), 1)
    with pytest.raises(RolloutError, match="the last sync failed"):
        pool.sample(hashed.problems(4), **ASKED)
    wrong.unlink()
    pool.sync(hashed.weights(1), 1)
    alone.sync(hashed.weights(1), 1)
    assert pool.sample(hashed.problems(4), **ASKED).equals(alone.sample(hashed.problems(4), **ASKED))


def test_every_transport_brings_the_weights_of_every_sync(over: Replicas, alone: Any) -> None:
    problems = hashed.problems(5)
    for version in (1, 2):
        over.sync(hashed.weights(version), version)
        alone.sync(hashed.weights(version), version)
        assert over.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))
    with pytest.raises(RolloutError, match=r"lacks the tensor layer.5"):
        over.sync(list(hashed.weights(3).items())[:5], 3)
    with pytest.raises(RolloutError, match="the last sync failed"):
        over.sample(problems, **ASKED)
    over.sync(hashed.weights(4), 4)
    alone.sync(hashed.weights(4), 4)
    assert over.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))


def test_a_replica_that_dies_in_a_sync_ends_a_broadcast_and_no_other_sync(over: Replicas, alone: Any) -> None:
    def arriving() -> Iterator[tuple[str, Any]]:
        for number, item in enumerate(hashed.weights(1).items()):
            if number == 3:
                os.kill(process(over, 1), signal.SIGKILL)
            yield item

    over.sync(hashed.weights(7), 1)
    if over.transport == "gloo":
        with pytest.raises(EngineError, match="replica 1 broke the group"):
            over.sync(arriving(), 2)
        with pytest.raises(RolloutError, match="the last sync failed"):
            over.sample(hashed.problems(4), **ASKED)
        over.settle()
        over.sync(hashed.weights(1), 2)
    else:
        over.sync(arriving(), 2)
    alone.sync(hashed.weights(1), 2)
    assert over.sample(hashed.problems(4), **ASKED).equals(alone.sample(hashed.problems(4), **ASKED))
    over.settle()
    over.sync(hashed.weights(3), 3)
    assert [member.sync for member in over.crew.members] == [over.sync_number] * 2


def test_the_transport_follows_the_replicas_devices_and_an_impossible_one_is_refused() -> None:
    assert [transport_of("auto", num_gpus=gpus) for gpus in (0.0, 0.5, 1.0, 4.0)] == [
        "object_store",
        "ipc",
        "nccl",
        "nccl",
    ]
    assert transport_of("auto", num_gpus=1.0, keep=True) == "object_store"
    assert transport_of("gloo", num_gpus=1.0) == "gloo"
    with pytest.raises(RolloutError, match="one of object_store, gloo"):
        transport_of("mpi", num_gpus=0.0)
    with pytest.raises(RolloutError, match="it must be object_store"):
        transport_of("nccl", num_gpus=0.0)
    with pytest.raises(RolloutError, match="keep_weights keeps what"):
        transport_of("ipc", num_gpus=0.5, keep=True)


def test_without_the_current_weights_no_replica_answers(pool: Replicas, alone: Any) -> None:
    pool.sync(hashed.weights(1), 1)
    for index in range(2):
        os.kill(process(pool, index), signal.SIGKILL)
    problems = hashed.problems(6)
    for _ in range(2):
        # The new processes have the model's own weights, which are not those of the sync.
        with pytest.raises(EngineError, match="of 2 replicas is left to"):
            pool.sample(problems, **ASKED)
        pool.settle()
    pool.sync(hashed.weights(2), 2)
    alone.sync(hashed.weights(2), 2)
    assert pool.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))


def test_a_replica_refuses_to_answer_with_other_weights_than_are_asked_for(pool: Replicas) -> None:
    pool.sync(hashed.weights(1), 1)
    # As if a replica had missed a sync, and its driver had not noticed.
    own = pool.sync_number
    pool.sync_number = own + 1
    for member in pool.crew.members:
        member.sync = own + 1
    with pytest.raises(
        RolloutError, match=f"asked to answer with the weights of sync {own + 1}; .* those of sync {own}"
    ):
        pool.sample(hashed.problems(4), **ASKED)


def test_a_stream_that_is_closed_early_leaves_the_replicas_usable(pool: Replicas, alone: Any) -> None:
    problems = hashed.problems(30)
    stream = pool.stream(problems, **ASKED)
    next(stream)
    with pytest.raises(RolloutError, match="a stream is still open"):
        pool.use(SAMPLING)
    stream.close()
    assert pool.sample(problems, **ASKED).equals(alone.sample(problems, **ASKED))


def test_impossible_numbers_of_replicas_are_refused(cluster: Any, alone: Any) -> None:
    with pytest.raises(RolloutError, match="replicas is 0; it must be"):
        Replicas(lambda: alone, "hashed", SAMPLING, replicas=0)
    with pytest.raises(RolloutError, match="3 replicas need 4 CPUs"):
        Replicas(lambda: alone, "hashed", SAMPLING, replicas=3, num_cpus=4, start_seconds=1)
    with pytest.raises(RolloutError, match="a sampler 'openai' has no"):
        open_sampler("openai", "model", SAMPLING, replicas={"replicas": 2})
