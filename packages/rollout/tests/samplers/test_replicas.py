"""Replicas of a sampler, each in a Ray actor of its own."""

from collections.abc import Iterator
from typing import Any

import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import open_sampler


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
    import polars as pl

    return pl.concat(tiny.sample(sampler, samples=samples, step=samples) for samples in (1, 4, 16))


def test_one_two_and_three_replicas_give_identical_tables(sampler: Any, cluster: Any, tiny: Any) -> None:
    alone = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    tables = {0: table(alone, tiny), 2: table(sampler, tiny)}
    for replicas in (1, 3):
        opened = open_sampler("transformers", str(tiny.folder), tiny.sampling, replicas={"replicas": replicas})
        tables[replicas] = table(opened, tiny)
        assert [member.answered > 0 for member in opened.crew.members] == [True] * replicas
        opened.close()
    # The last digits of log-probabilities depend on which prompts of one length share a batch; nothing else does.
    for found in tables.values():
        assert found.drop("logprobs", "weights_version").equals(tables[0].drop("logprobs", "weights_version"))
        worst = (found["logprobs"].explode() - tables[0]["logprobs"].explode()).abs().max()
        assert worst < 1e-5
