"""A vLLM engine in a Ray actor of its own: a pool of one replica."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.engine import EngineConfig
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.rules import register


@pytest.fixture(scope="module")
def kind() -> str:
    return "replicas"


@pytest.fixture(scope="module")
def sampler(cluster: Any, tiny: Any) -> Iterator[Any]:
    pytest.importorskip("vllm")
    options = {"replicas": 1, "transport": "gloo", "bucket_bytes": 20_000}
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling, replicas=options)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tied_sampler(cluster: Any, tied_tiny: Any) -> Iterator[Any]:
    # Options of the engine and of scoring travel to the actor.
    opened = open_sampler(
        "vllm", str(tied_tiny.folder), tied_tiny.sampling, replicas={"replicas": 1, "transport": "ipc"},
        engine=EngineConfig(max_concurrent=7), scoring=ScoringConfig(seconds=2.0),
    )  # fmt: skip
    yield opened
    opened.close()


def test_an_engine_of_its_own_gives_the_tokens_of_the_engine_in_process(
    sampler: Any, vllm_sampler: Any, tiny: Any
) -> None:
    remote_rollouts, local_rollouts = tiny.sample(sampler), tiny.sample(vllm_sampler)
    assert remote_rollouts.drop("logprobs", "weights_version").equals(
        local_rollouts.drop("logprobs", "weights_version")
    )
    worst = (remote_rollouts["logprobs"].explode() - local_rollouts["logprobs"].explode()).abs().max()
    assert worst is not None
    assert worst < 1e-5


def test_a_node_of_a_cluster_joins_it(cluster: Any, tmp_path: Path) -> None:
    # As ``ray start`` leaves it behind.
    (tmp_path / "ray").mkdir()
    address = cluster.get_runtime_context().gcs_address
    (tmp_path / "ray/ray_current_cluster").write_text(address)
    joins = (
        "from isocompute.rollout.samplers.actor import connected_ray\n"
        "print(connected_ray().get_runtime_context().gcs_address)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["RAY_TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-c", joins]
    joined = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert joined.stdout.split()[-1:] == [address], joined.stderr


def test_the_plan_of_the_actors_memory_is_told(sampler: Any) -> None:
    assert "available to the engine" in sampler.plan


def test_options_of_the_engine_and_of_scoring_reach_the_actor(tied_sampler: Any) -> None:
    def settings(engine: Any) -> tuple[int, float]:
        return engine._sampler.engine.max_concurrent, engine._sampler.scorer.config.seconds

    actor = tied_sampler.crew.members[0].actor
    assert tied_sampler._ray.get(actor.__ray_call__.remote(settings)) == (7, 2.0)


def test_verifiers_that_are_registered_here_score_in_the_actor(
    sampler: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules_for_an_actor.py").write_text(
        "def right(response, answer, metadata):\n    return answer == '2'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    register("right_in_an_actor", "rules_for_an_actor:right")
    rollouts = tiny.sample(sampler, tiny.problems.with_columns(verifier=pl.lit("right_in_an_actor")), samples=1)
    assert rollouts["reward"].to_list() == [1.0] * len(tiny.problems)


def test_an_engine_killed_in_a_batch_is_named_and_its_whole_groups_were_yielded(sampler: Any, tiny: Any) -> None:
    opened = sampler.crew.members[0].opened
    stream = sampler.stream(tiny.problems, samples=4000, seed=3, step=1)
    groups = [next(stream)]
    os.kill(opened.process, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"replica 0: it died before it could answer the group"):
        groups += stream
    assert all(group["sample"].to_pylist() == list(range(4000)) for group in groups)
    assert 1 <= len(groups) < 6
    # A new process takes its place, and answers once it has weights.
    sampler.settle()
    sampler.sync(tiny.save(tiny.folder, seed=0).state_dict(), 99)
    assert set(tiny.sample(sampler)["weights_version"]) == {99}


def test_a_cluster_without_room_is_reported(cluster: Any, tiny: Any) -> None:
    with pytest.raises(RolloutError, match=r"had no room for them \(it has 2 CPUs and 0 GPUs\)"):
        open_sampler(
            "vllm", str(tiny.folder), tiny.sampling, replicas={"replicas": 1, "num_gpus": 8, "start_seconds": 1}
        )
