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
