"""Learner ranks and engines in one placement group, and weights that go from the ones to the others."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
import ray
from isocompute.learner import LearnerConfig, LearnerGroup, prepare, with_cohorts
from isocompute.learner.ranks.group import RankWeights
from isocompute.rollout import EngineConfig, Sampling, open_sampler
from ray.util import get_current_placement_group, placement_group_table
from ray.util.placement_group import remove_placement_group

from experiments.errors import ExperimentError
from experiments.running.worker import NAMESPACE, Layout, WorkerConfig, reserve
from experiments.settings import ResourcesConfig

from .made import BASE

pytestmark = pytest.mark.slow("Ray, ranks and engines")

CONFIG = LearnerConfig(learning_rate=1e-2)
PROBLEMS = pl.DataFrame(
    {
        "problem_id": ["a", "b", "c"],
        "prompt": ["1+1=", "2+2=", "3-1="],
        "answer": ["2", "4", "2"],
        "verifier": "exact",
        "source": "s",
        "split": "train",
    }
)


def asked(**resources: Any) -> WorkerConfig:
    return WorkerConfig(models={}, generation={}, resources=ResourcesConfig(**resources))


@pytest.mark.parametrize(
    ("resources", "bundles", "ranks", "engines"),
    [
        ({}, [], [], []),
        ({"learner_ranks": 2}, [{"CPU": 1}] * 2, [0, 1], []),
        ({"placement": "separate"}, [{"CPU": 1}], [], [0]),
        ({"learner_ranks": 2, "replicas": 3, "placement": "separate"}, [{"CPU": 1}] * 5, [0, 1], [2, 3, 4]),
        ({"learner_ranks": 2, "replicas": 2}, [{"CPU": 2}] * 2, [0, 1], [0, 1]),
        ({"learner_ranks": 2, "replicas": 2, "device": "cuda"}, [{"CPU": 2, "GPU": 1}] * 2, [0, 1], [0, 1]),
        (
            {"learner_ranks": 2, "placement": "separate", "device": "cuda", "engine": EngineConfig(tensor_parallel=4)},
            [{"CPU": 1, "GPU": 1}] * 2 + [{"CPU": 1, "GPU": 4}],
            [0, 1],
            [2],
        ),
    ],
)
def test_separate_engines_have_bundles_of_their_own_and_colocated_ones_are_on_the_ranks(
    resources: dict[str, Any], bundles: list[dict[str, float]], ranks: list[int], engines: list[int]
) -> None:
    layout = Layout.of(asked(sampler="vllm", **{"device": "cpu"} | resources))
    assert [list(layout.bundles), list(layout.ranks), list(layout.engines)] == [bundles, ranks, engines]
    assert layout.share == (0.5 if set(ranks) & set(engines) else 1.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=4, namespace=NAMESPACE, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False
    )
    yield
    ray.shutdown()


# Each transport in one of the placements: for the same processes both give the same way from one to the other.
@pytest.fixture(params=[("separate", ("object_store", "gloo")), ("colocated", ("ipc",))], ids=lambda param: param[0])
def placed(request: pytest.FixtureRequest, cluster: None) -> Iterator[tuple[Any, LearnerGroup, Any]]:
    """A placement group, two ranks in it that share a policy, and two engines in it by each transport, one by one."""
    placement, transports = request.param
    layout = Layout.of(asked(sampler="transformers", device="cpu", learner_ranks=2, replicas=2, placement=placement))
    group = reserve(layout, seconds=60)
    ranks = LearnerGroup(
        BASE, CONFIG, world_size=2, placement=group, bundles=layout.ranks, gpu_share=layout.share, grace=1
    )

    def engines() -> Iterator[Any]:
        for transport in transports:
            options = {"replicas": 2, "placement": group, "bundles": layout.engines, "transport": transport}
            sampling = Sampling(max_new_tokens=8, max_prompt_tokens=8)
            sampler = open_sampler("transformers", str(BASE), sampling, replicas={**options, "bucket_bytes": 20_000})
            yield sampler
            if transport == transports[-1]:
                # Both end with their places.
                remove_placement_group(group)
                for actor in actors_of(ranks, sampler):
                    with pytest.raises(ray.exceptions.RayActorError):
                        ray.get(actor.__ray_call__.remote(place))
            sampler.close()

    yield group, ranks, engines()
    ranks.close()
    # Their places are free again.
    remove_placement_group(reserve(layout, seconds=60))


def actors_of(ranks: LearnerGroup, sampler: Any) -> list[Any]:
    return [*ranks._ranks, *(member.actor for member in sampler.driver.members)]


def by_value(made: Any) -> Any:
    """Let actors have something of this file without the file, whose imports take each of them seconds."""
    made.__module__ = "__main__"
    return made


@by_value
def place(actor: Any) -> str:
    return str(get_current_placement_group().id.hex())


def test_weights_go_from_ranks_that_share_a_policy_to_engines_in_their_placement_group_which_ends_them(
    placed: tuple[Any, LearnerGroup, Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, ranks, engines = placed
    ranks.reset(CONFIG)

    def through_here(weights: RankWeights) -> Any:
        raise AssertionError("the weights came to the driver")

    monkeypatch.setattr(RankWeights, "__iter__", through_here)
    for sampler in engines:
        places = [actor.__ray_call__.remote(place) for actor in actors_of(ranks, sampler)]
        assert set(ray.get(places)) == {group.id.hex()}
        for _ in range(2):
            sampler.sync(ranks.weights(), ranks.version)
            rollouts = sampler.sample(PROBLEMS, samples=8, seed=1, step=ranks.version, run_id="r")
            assert ranks.agreement(rollouts).maximum < 1e-4
            rewards = pl.Series([float(row % 2) for row in range(len(rollouts))], dtype=pl.Float32)
            ranks.update(prepare(with_cohorts(rollouts.with_columns(reward=rewards), CONFIG.batch), CONFIG))
        # The weights before the last update.
        assert ranks.agreement(rollouts).maximum > 1e-3
        assert placement_group_table(group)["state"] == "CREATED"


@by_value
class Holder:
    """Reserves places as a worker does."""

    def hold(self, layout: Layout) -> int:
        return len(reserve(layout, seconds=60).bundle_specs)


def test_the_places_of_a_worker_that_died_are_free_for_the_one_that_replaces_it(cluster: None) -> None:
    layout = Layout.of(asked(sampler="vllm", device="cpu", learner_ranks=2, replicas=1, placement="separate"))
    holders = [ray.remote(num_cpus=0)(Holder).options(name=f"worker-{number}").remote() for number in range(2)]
    assert ray.get(holders[0].hold.remote(layout)) == 3
    # Of four processors there is one left, and a worker that lives keeps its places.
    with pytest.raises(ExperimentError, match="need 3 CPUs"):
        reserve(layout, seconds=1)
    ray.kill(holders[0])
    assert ray.get(holders[1].hold.remote(layout)) == 3
    ray.kill(holders[1])


def test_a_placement_group_that_does_not_fit_is_refused_with_the_numbers(cluster: None) -> None:
    layout = Layout.of(asked(sampler="vllm", device="cpu", learner_ranks=4, replicas=3, placement="separate"))
    with pytest.raises(ExperimentError, match=r"4 learner ranks and 3 engines need 7 CPUs and 0 GPUs .* has 4 CPUs"):
        reserve(layout, seconds=1)
