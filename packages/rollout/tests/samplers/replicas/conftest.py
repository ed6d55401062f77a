"""Two replicas of a sampler that starts in seconds, in a placement group that they share with somebody else."""

from collections.abc import Iterator
from typing import Any

import hashed
import pytest


@pytest.fixture(scope="module")
def shared(cluster: Any) -> Iterator[Any]:
    """A placement group with room for two replicas and somebody else, which outlives them."""
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    group = placement_group([{"CPU": 1.0}] * 3, strategy="PACK")
    yield group
    assert placement_group_table(group)["state"] == "CREATED"
    remove_placement_group(group)


@pytest.fixture(scope="module")
def pair(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two replicas of ``hashed.HashedSampler``, whatever transport a test gives them."""
    opened = hashed.replicas(tmp_path_factory.mktemp("replicas"), 2, placement=shared, bundles=[1, 2])
    yield opened
    opened.close()


@pytest.fixture
def pool(pair: Any) -> Any:
    """Two replicas with the weights of the sampler in this process, whatever another test did to them."""
    pair.settle()
    hashed.synced(pair, 0, 0)
    return pair
