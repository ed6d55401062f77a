"""Workers and the cluster that they are on: whose they are, when they end, and when a cluster will not do."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from experiments.errors import ExperimentError
from experiments.running.cluster import environment, open_cluster
from experiments.running.schedule import Pool, workers
from experiments.running.worker import WorkerActor
from experiments.settings import load

from .made import PARAMS

pytestmark = pytest.mark.slow("Ray")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of two processors, as a stage run alone starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pool"))
        patch.setenv("RAY_TMPDIR", os.environ.get("RAY_TMPDIR", "/tmp"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("ISOCOMPUTE_SESSION", raising=False)
        with open_cluster(2):
            yield


def test_a_cluster_that_is_too_small_is_said_at_once(joined: None) -> None:
    preset = load(PARAMS, "smoke")
    for changes, wanted in (
        ({"device": "cuda"}, "2 workers need 2 GPUs, and the cluster has 0 in all"),
        ({"workers": 64}, "64 workers need 64 CPUs, and the cluster has 2 in all"),
    ):
        greedy = preset.model_copy(update={"resources": preset.resources.model_copy(update=changes)})
        with pytest.raises(ExperimentError, match=wanted), workers(greedy, {"b": "model"}):
            pass


HOLDER = """
import sys, time
import ray
from experiments.running.cluster import SESSION, environment, shared_cluster
from experiments.running.worker import NAMESPACE, WorkerActor

with shared_cluster(1) as joined:
    roster = ray.get_actor(joined[SESSION], namespace=NAMESPACE)
    options = {"num_cpus": 0, "num_gpus": 0, "runtime_env": environment()}
    (actor,) = ray.get(roster.take.remote("k", 1, WorkerActor, options))
    ray.get(actor.place.remote("", ""))
    print("up", flush=True)
    time.sleep(600)
"""


def named() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def test_what_a_repro_started_on_a_cluster_of_others_ends_with_it_however_it_ends(joined: None) -> None:
    address = ray.get_runtime_context().gcs_address
    before = named()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
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


def test_a_node_of_a_cluster_joins_it(joined: None, tmp_path: Path) -> None:
    # As ``ray start`` leaves it behind.
    (tmp_path / "ray").mkdir()
    address = ray.get_runtime_context().gcs_address
    (tmp_path / "ray/ray_current_cluster").write_text(address)
    joins = (
        "import ray\nfrom experiments.running.cluster import cluster\n"
        "with cluster(1): print(ray.get_runtime_context().gcs_address)"
    )
    joined = subprocess.run(
        [sys.executable, "-c", joins],
        env={**os.environ, "RAY_TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert joined.stdout.split()[-1:] == [address]


def test_a_work_folder_that_a_machine_does_not_see_is_said(joined: None, tmp_path: Path) -> None:
    """A worker elsewhere reads what the driver wrote; one that reads something else sees another folder."""
    path = tmp_path / "seen"
    path.write_text("by all")
    actor = ray.remote(num_cpus=0, runtime_env=environment())(WorkerActor).remote()
    assert ray.get(actor.place.remote(str(path), "by all"))[1]
    for place, text in ((path, "another"), (tmp_path / "elsewhere", "by all")):
        host, sees = ray.get(actor.place.remote(str(place), text))
        with pytest.raises(ExperimentError, match=rf"on {host} does not see .*: cells on several machines need"):
            Pool._check_folder(host, sees)
