"""Ray: workers and the cluster that they are on, what they have loaded, and where ranks and engines are."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from isocompute.learner import LearnerConfig, LearnerGroup
from isocompute.learner.ranks.group import RankWeights
from isocompute.rollout import EngineConfig, Sampling, open_sampler
from ray.util import get_current_placement_group, placement_group_table
from ray.util.placement_group import remove_placement_group

from experiments.errors import ExperimentError
from experiments.running import worker
from experiments.running.cells import Generation, WorkerConfig
from experiments.running.cluster import WorkerActor, environment
from experiments.running.schedule import Pool, workers
from experiments.running.worker import Bundles, reserve
from experiments.settings import ResourcesConfig, load

from .made import BASE, PARAMS, copied, learnt_from, params, sources, sums
from .made import environment as variables

pytestmark = [
    pytest.mark.slow("Ray, ranks and engines"),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.usefixtures("here"),
]


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Let actors have what they need of two modules without these, whose imports take each of them seconds."""
    for module in (sys.modules[__name__], worker):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (sys.modules[__name__], worker):
        ray.cloudpickle.unregister_pickle_by_value(module)


def test_a_cluster_that_is_too_small_is_said_at_once(cluster: None) -> None:
    preset = load(PARAMS, "smoke")
    for changes, wanted in (
        ({"device": "cuda"}, "2 workers need 2 GPUs, and the cluster has 0 in all"),
        ({"workers": 64}, "64 workers need 64 CPUs, and the cluster has 4 in all"),
    ):
        greedy = preset.model_copy(update={"resources": preset.resources.model_copy(update=changes)})
        with pytest.raises(ExperimentError, match=wanted), workers(greedy, {"b": "model"}):
            pass


HOLDER = """
import time
import ray
from experiments.running.cluster import SESSION, WorkerActor, environment, shared_cluster
from experiments.running.cells import NAMESPACE

with shared_cluster(1) as joined:
    roster = ray.get_actor(joined[SESSION], namespace=NAMESPACE)
    options = {"num_cpus": 0, "num_gpus": 0, "runtime_env": environment()}
    (actor,) = ray.get(roster.take.remote("k", 1, WorkerActor, options))
    ray.get(actor.place.remote("", ""))
    print(joined["RAY_ADDRESS"], flush=True)
    time.sleep(600)
"""


def named() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def test_a_node_of_a_cluster_joins_it_and_what_a_repro_started_there_ends_with_it_however_it_ends(
    cluster: None, tmp_path: Path
) -> None:
    address = ray.get_runtime_context().gcs_address
    # As ``ray start`` leaves it behind.
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    before, own = named(), variables(RAY_TMPDIR=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", HOLDER], env=own, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{address}\n"
    started = set(named()) - set(before)
    assert {name.split("-")[0] for name in started} == {"roster", "worker"}
    process.kill()
    process.wait()
    began = time.monotonic()
    while set(named()) & started:
        assert time.monotonic() - began < 60
        time.sleep(0.2)
    # Ours are not theirs.
    assert set(before) <= set(named())


def test_a_client_without_the_token_is_refused(cluster: None) -> None:
    join = f"import ray; ray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)"
    without = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    refused = subprocess.run([sys.executable, "-c", join], env=without, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "token" in refused.stderr


def test_a_work_folder_that_a_machine_does_not_see_is_said(tmp_path: Path) -> None:
    """A worker elsewhere reads what the driver wrote; one that reads something else sees another folder."""
    path = tmp_path / "seen"
    path.write_text("by all")
    assert WorkerActor().place(str(path), "by all")[1]
    for place, text in ((path, "another"), (tmp_path / "elsewhere", "by all")):
        host, sees = WorkerActor().place(str(place), text)
        with pytest.raises(ExperimentError, match=rf"on {host} does not see .*: cells on several machines need"):
            Pool._check_folder(host, sees)


SURROGATES = "packages/learner/src/isocompute/learner/objective/loss.py"
DRIVER = """
import sys
from pathlib import Path
import ray
from experiments.errors import ExperimentError
from experiments.running import schedule
from experiments.running.cell_folder import content_hash
from experiments.running.cells import Surroundings
from experiments.running.cluster import check, open_cluster
from experiments.settings import load

# One that loads no engine.
schedule.WorkerActor = schedule.CommandActor
edited, change = Path(sys.argv[1]), sys.argv[2]
preset = load(Path("params.yaml"), "smoke")
# A worker's folder is not the driver's.
model = str(Path(preset.base.model).resolve())
try:
    with open_cluster(1), schedule.workers(preset, {content_hash(Path(model)): model}) as pool:
        loaded = ray.get(pool.actors.members[0].actor.open.remote(pool.config))
        try:
            check(loaded, bases=["0123456789abcdef"], surroundings=Surroundings.of(preset.resolved_resources()))
        except ExperimentError as error:
            print(error)
        edited.write_text(edited.read_text().replace("loss=-advantages", change))
        pool.lose(pool.idle(), "it is to load the code again")
        while pool.idle() is None:
            pool.wait(0.1)
except ExperimentError as error:
    print(error)
"""


def test_a_worker_that_loads_another_base_model_or_edited_code_is_refused(cluster: None, tmp_path: Path) -> None:
    tree = copied(tmp_path)
    raw = params()
    raw["smoke"]["resources"] = {"workers": 1, "sampler": "transformers"}
    (tree / "params.yaml").write_text(yaml.safe_dump(raw))
    own = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "PYTHONPATH": sources(tree)}
    command = [sys.executable, "-c", DRIVER, SURROGATES, "loss=advantages"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, **own})
    assert done.returncode == 0, done.stderr[-3000:]
    other_base, after_change = [line for line in done.stdout.splitlines() if line.startswith("the worker")]
    assert "another base model" in other_base
    assert "other code" in after_change
    assert "isocompute.learner.objective.loss" in after_change


CONFIG = LearnerConfig(learning_rate=1e-2)


def asked(**resources: Any) -> WorkerConfig:
    return WorkerConfig(models={}, generation=Generation(sampling=Sampling()), resources=ResourcesConfig(**resources))


def test_separate_engines_have_bundles_of_their_own_and_colocated_ones_are_on_the_ranks() -> None:
    cuda, four = {"device": "cuda", "learner_ranks": 2}, EngineConfig(tensor_parallel=4)
    for resources, bundles, ranks, engines in (
        ({}, [], [], []),
        ({"learner_ranks": 2}, [{"CPU": 1}] * 2, [0, 1], []),
        ({"placement": "separate"}, [{"CPU": 1}], [], [0]),
        ({"learner_ranks": 2, "replicas": 3, "placement": "separate"}, [{"CPU": 1}] * 5, [0, 1], [2, 3, 4]),
        ({"learner_ranks": 2, "replicas": 2}, [{"CPU": 2}] * 2, [0, 1], [0, 1]),
        ({**cuda, "replicas": 2}, [{"CPU": 2, "GPU": 1}] * 2, [0, 1], [0, 1]),
        ({**cuda, "placement": "separate", "engine": four}, [{"CPU": 1, "GPU": k} for k in (1, 1, 4)], [0, 1], [2]),
    ):
        layout = Bundles.of(asked(sampler="vllm", **{"device": "cpu"} | resources))
        assert [list(layout.bundles), list(layout.ranks), list(layout.engines)] == [bundles, ranks, engines]
        assert layout.share == (0.5 if {*ranks} & {*engines} else 1.0)


# Where they are separate, a cell of test_cell.py trains.
@pytest.fixture
def placed(cluster: None) -> Iterator[tuple[Any, LearnerGroup, Any]]:
    """A placement group, and in it two ranks that share a policy and an engine, which end with their places."""
    layout = Bundles.of(asked(sampler="transformers", device="cpu", learner_ranks=2, replicas=2, placement="colocated"))
    group = reserve(layout, seconds=60)
    ranks = LearnerGroup(
        BASE, CONFIG, world_size=2, placement=group, bundles=layout.ranks, gpu_share=layout.share, grace=1
    )
    options = {"replicas": 1, "placement": group, "bundles": [1], "transport": "ipc", "bucket_bytes": 20_000}
    sampler = open_sampler("transformers", str(BASE), Sampling(max_new_tokens=8, max_prompt_tokens=8), replicas=options)
    yield group, ranks, sampler
    # Both end with their places, though not at once.
    remove_placement_group(group)
    left, began = actors_of(ranks, sampler), time.monotonic()
    while left := [actor for actor in left if answers(actor)]:
        assert time.monotonic() - began < 60, left
    sampler.close()
    ranks.close()
    # Their places are free again.
    remove_placement_group(reserve(layout, seconds=60))


def actors_of(ranks: LearnerGroup, sampler: Any) -> list[Any]:
    return [*ranks._ranks, *(member.actor for member in sampler.actors.members)]


def place(actor: Any) -> str:
    return str(get_current_placement_group().id.hex())


def answers(actor: Any) -> bool:
    """Whether an actor is still there."""
    try:
        return bool(ray.get(actor.__ray_call__.remote(place)))
    except ray.exceptions.RayActorError:
        return False


def test_weights_go_from_ranks_that_share_a_policy_to_an_engine_in_their_placement_group_which_ends_them(
    placed: tuple[Any, LearnerGroup, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, ranks, sampler = placed
    ranks.reset(CONFIG)

    def through_here(weights: RankWeights) -> Any:
        raise AssertionError("the weights came to the driver")

    monkeypatch.setattr(RankWeights, "__iter__", through_here)
    places = [actor.__ray_call__.remote(place) for actor in actors_of(ranks, sampler)]
    assert set(ray.get(places)) == {group.id.hex()}
    for _ in range(2):
        sampler.sync(ranks.weights(), ranks.version)
        rollouts = sampler.sample(sums(3, 1).head(3), samples=8, seed=1, step=ranks.version, run_id="r")
        assert ranks.agreement(rollouts).maximum < 1e-4
        ranks.update(learnt_from(rollouts, CONFIG))
    # The weights before the last update.
    assert ranks.agreement(rollouts).maximum > 1e-3
    assert placement_group_table(group)["state"] == "CREATED"


class Holder:
    """Reserves places as a worker does."""

    def hold(self, layout: Bundles) -> int:
        return len(reserve(layout, seconds=60).bundle_specs)


def test_the_places_of_a_worker_that_died_are_free_for_the_one_that_replaces_it(cluster: None) -> None:
    layout = Bundles.of(asked(sampler="vllm", device="cpu", learner_ranks=2, replicas=1, placement="separate"))
    holder = ray.remote(num_cpus=0, runtime_env=environment())(Holder)
    holders = [holder.options(name=f"worker-{number}").remote() for number in range(2)]
    assert ray.get(holders[0].hold.remote(layout)) == 3
    # Of four processors there is one left, and a worker that lives keeps its places.
    numbers = r"2 learner ranks and 1 engines need 3 CPUs and 0 GPUs .* has 4 CPUs"
    with pytest.raises(ExperimentError, match=numbers):
        reserve(layout, seconds=1)
    ray.kill(holders[0])
    assert ray.get(holders[1].hold.remote(layout)) == 3
    ray.kill(holders[1])
    # Others share the cluster, and need its places.
    remove_placement_group(reserve(layout, seconds=60))
