"""Replicas of a sampler, each in a Ray actor of its own: two of transformers, and one of vLLM."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.sampling import EngineConfig
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.rules import register

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with places for all replicas of this file."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=12, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def sampler(cluster: Any, tiny: Any) -> Iterator[Any]:
    options = {"replicas": 2, "bucket_bytes": 20_000}
    opened = open_sampler("transformers", str(tiny.folder), tiny.sampling, replicas=options)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def vllm_replica(cluster: Any, tied_tiny: Any) -> Iterator[Any]:
    """An engine whose options, and those of scoring, travel to its actor."""
    pytest.importorskip("vllm")
    opened = open_sampler(
        "vllm",
        str(tied_tiny.folder),
        tied_tiny.sampling,
        replicas={"replicas": 1, "transport": "gloo", "bucket_bytes": 20_000, "restarts": 0},
        engine=EngineConfig(max_concurrent=7),
        scoring=ScoringConfig(seconds=2.0),
    )
    yield opened
    opened.close()


def table(sampler: Any, tiny: Any) -> Any:
    """Three tables of steps and sizes of their own, as one."""
    return pl.concat(tiny.sample(sampler, samples=samples, step=samples) for samples in (1, 4, 16))


def difference(one: pl.DataFrame, other: pl.DataFrame) -> float:
    """The largest difference of two tables' log-probabilities."""
    return float(np.abs(one["logprobs"].explode().to_numpy() - other["logprobs"].explode().to_numpy()).max())


def test_two_replicas_give_the_table_of_a_sampler_in_process(sampler: Any, tiny: Any) -> None:
    alone = table(open_sampler("transformers", str(tiny.folder), tiny.sampling), tiny)
    found = table(sampler, tiny)
    assert [member.answered > 0 for member in sampler.crew.members] == [True, True]
    # The last digits of log-probabilities depend on which prompts of one length share a batch; nothing else does.
    assert found.drop("logprobs", "weights_version").equals(alone.drop("logprobs", "weights_version"))
    assert difference(found, alone) < 1e-5


@pytest.mark.skipif("ISOCOMPUTE_REPLICA_FAULTS" not in os.environ, reason="three engines: python3 -m nox -s faults")
def test_two_replicas_of_vllm_give_the_table_of_one_before_and_after_a_sync(
    cluster: Any, tiny: Any, vllm_sampler: Any, tmp_path: Path
) -> None:
    policy, own = tiny.save(tmp_path, seed=5), tiny.save(tmp_path / "own", seed=0)
    options = {"replicas": 2, "bucket_bytes": 20_000}
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling, replicas=options)
    tables = []
    for sampler in (opened, vllm_sampler):
        begin = sampler.weights_version
        before = table(sampler, tiny)
        sampler.sync(policy.state_dict(), begin + 1)
        after = table(sampler, tiny)
        assert tiny.largest_difference(policy, after) < 1e-4
        sampler.sync(own.state_dict(), begin + 2)
        tables.append(pl.concat([before, after, table(sampler, tiny)]))
    assert [member.answered > 0 for member in opened.crew.members] == [True, True]
    opened.close()
    worst = difference(*tables)
    print(f"2 replicas of vLLM: log-probabilities differ by up to {worst:.2g}")
    assert tables[0].drop("logprobs", "weights_version").equals(tables[1].drop("logprobs", "weights_version"))
    assert worst < 1e-5


def test_a_vllm_replica_has_its_options_and_takes_over_every_sync(
    vllm_replica: Any, tied_tiny: Any, tmp_path: Path
) -> None:
    def settings(engine: Any) -> tuple[int, float]:
        return engine._sampler.engine.max_concurrent, engine._sampler.scorer.config.seconds

    actor = vllm_replica.crew.members[0].actor
    assert vllm_replica._ray.get(actor.__ray_call__.remote(settings)) == (7, 2.0)
    assert "available to the engine" in vllm_replica.plan
    synced_three_times(vllm_replica, tied_tiny, tmp_path, leave_out="")  # noqa: F405
    synced_three_times(vllm_replica, tied_tiny, tmp_path, leave_out="lm_head.weight")  # noqa: F405


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


def test_an_engine_killed_in_a_batch_is_named_and_its_whole_groups_were_yielded(
    vllm_replica: Any, tied_tiny: Any
) -> None:
    opened = vllm_replica.crew.members[0].opened
    stream = vllm_replica.stream(tied_tiny.problems, samples=4000, seed=3, step=1)
    groups = [next(stream)]
    os.kill(opened.process, signal.SIGKILL)
    with pytest.raises(EngineError, match="replica 0: it died"):
        groups += stream
    assert all(group["sample"].to_pylist() == list(range(4000)) for group in groups)
    assert 1 <= len(groups) < 6


def test_a_cluster_without_room_is_reported(cluster: Any, tiny: Any) -> None:
    options = {"replicas": 1, "num_gpus": 8, "start_seconds": 1}
    with pytest.raises(RolloutError, match="12 CPUs and 0 GPUs"):
        open_sampler("vllm", str(tiny.folder), tiny.sampling, replicas=options)
