"""Replicas of a sampler, each in a Ray actor of its own; those of vLLM where ISOCOMPUTE_REPLICA_FAULTS is set."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import open_sampler

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with places for all replicas of this file."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=12, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def kind() -> str:
    return "replicas"


@pytest.fixture(scope="module")
def sampler(cluster: Any, tiny: Any) -> Iterator[Any]:
    opened = open_sampler(
        "transformers", str(tiny.folder), tiny.sampling, replicas={"replicas": 2, "bucket_bytes": 20_000}
    )
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tied_sampler(cluster: Any, tied_tiny: Any) -> Iterator[Any]:
    opened = open_sampler("transformers", str(tied_tiny.folder), tied_tiny.sampling, replicas={"replicas": 1})
    yield opened
    opened.close()


def table(sampler: Any, tiny: Any) -> Any:
    """Three tables of steps and sizes of their own, as one."""
    return pl.concat(tiny.sample(sampler, samples=samples, step=samples) for samples in (1, 4, 16))


def difference(one: pl.DataFrame, other: pl.DataFrame) -> float:
    """The largest difference of two tables' log-probabilities."""
    return float(np.abs(one["logprobs"].explode().to_numpy() - other["logprobs"].explode().to_numpy()).max())


def test_two_and_three_replicas_give_the_table_of_a_sampler_in_process(sampler: Any, cluster: Any, tiny: Any) -> None:
    alone = table(open_sampler("transformers", str(tiny.folder), tiny.sampling), tiny)
    three = open_sampler("transformers", str(tiny.folder), tiny.sampling, replicas={"replicas": 3})
    tables = {2: table(sampler, tiny), 3: table(three, tiny)}
    assert [member.answered > 0 for member in three.crew.members] == [True] * 3
    three.close()
    # The last digits of log-probabilities depend on which prompts of one length share a batch; nothing else does.
    for replicas, found in tables.items():
        assert found.drop("logprobs", "weights_version").equals(alone.drop("logprobs", "weights_version"))
        worst = difference(found, alone)
        print(f"{replicas} replicas of transformers: log-probabilities differ by up to {worst:.2g}")
        assert worst < 1e-5


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
