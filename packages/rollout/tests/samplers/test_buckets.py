"""Weights in buckets."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from isocompute.rollout.samplers.weights import buckets, pack

torch = pytest.importorskip("torch")


def test_tensors_come_back_in_their_order_with_their_types_and_shapes() -> None:
    given = {
        "matrix": torch.randn(3, 5).to(torch.bfloat16),
        "transposed": torch.randn(4, 6).T,
        "scalar": torch.tensor(2.5),
        "integers": torch.arange(7),
        "of odd length": torch.randn(3).to(torch.bfloat16),
        "after it": torch.randn(2, dtype=torch.float64),
        "with gradient": torch.randn(2, requires_grad=True),
    }
    found = []
    for bucket in buckets(given.items(), size=60):
        contents, packed = pack(bucket, "cpu")
        found += contents.unpacked(packed)
    assert [name for name, _ in found] == list(given)
    for name, tensor in found:
        assert tensor.dtype == given[name].dtype
        assert torch.equal(tensor, given[name])


def test_a_bucket_holds_as_much_as_it_may_and_a_larger_tensor_has_one_of_its_own() -> None:
    sizes = {"a": 10, "b": 15, "c": 40, "d": 5, "e": 20}
    given = {name: torch.zeros(size) for name, size in sizes.items()}
    names = [[name for name, _ in bucket] for bucket in buckets(given.items(), size=100)]
    assert names == [["a", "b"], ["c"], ["d", "e"]]


def test_a_stream_is_never_held_whole() -> None:
    alive: list[weakref.ref[Any]] = []

    def stream() -> Iterator[tuple[str, Any]]:
        for i in range(20):
            array = np.zeros(100, np.float32)
            alive.append(weakref.ref(array))
            tensor = torch.from_numpy(array)
            del array
            yield f"layer.{i}", tensor

    most = 0
    for _ in buckets(stream(), size=800):
        most = max(most, sum(reference() is not None for reference in alive))
    assert len(alive) == 20
    # Two tensors in a bucket, and the next one.
    assert most <= 4
