"""Weights of a sync: which tensors must come, and the buckets that they travel in."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.errors import EngineError
from isocompute.rollout.samplers.weights import (
    BroadcastGroup,
    Manifest,
    Rendezvous,
    buckets,
    checked,
    manifest,
    manifest_of,
    pack,
    rounded,
)

torch = pytest.importorskip("torch")

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def test_tensors_are_those_that_the_model_saves(tiny: Any, tied_tiny: Any, tmp_path: Any) -> None:
    for one, tied in ((tiny, {}), (tied_tiny, {HEAD: EMBEDDING})):
        whole = one.save(tmp_path, seed=0)
        found = manifest(str(one.folder))
        assert dict(found.shapes) == {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
        assert found.tied == tied
        assert found.elements == sum(parameter.numel() for parameter in whole.parameters())
        # Not there before transformers 5.
        whole.all_tied_weights_keys = {}
        assert manifest_of(whole).tied == tied
    # Of a model that transformers has no language model for, which vLLM may serve all the same.
    config = (tied_tiny.folder / "config.json").read_text().replace('"llama"', '"eurobert"')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(RolloutError, match=r"be loaded \(Unrecognized"):
        manifest(str(tmp_path))


def test_a_tied_tensor_may_be_left_out_and_no_other() -> None:
    wanted = Manifest(shapes={EMBEDDING: (4, 2), "norm": (2,), HEAD: (4, 2)}, tied={HEAD: EMBEDDING})
    norm, table = torch.zeros(2), torch.zeros(4, 2)
    own = [(EMBEDDING, table), ("norm", norm)]
    for given in (own, [*own, (HEAD, table)], [*own, (HEAD, table.clone())], [*own, (HEAD, table.view(4, 2))]):
        assert list(checked(given, wanted)) == given
    with pytest.raises(RolloutError, match=f"lacks the tensor {EMBEDDING}$"):
        list(checked([(HEAD, table), ("norm", norm)], wanted))
    for message, head in ((f"the tensor {HEAD} as", torch.zeros(4, 3)), ("with different values", table + 1)):
        with pytest.raises(RolloutError, match=message):
            list(checked([(EMBEDDING, table), ("norm", norm), (HEAD, head)], wanted))


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
    given = ((name, torch.zeros(size)) for name, size in sizes.items())
    assert ["".join(name for name, _ in bucket) for bucket in buckets(given, size=100)] == ["ab", "c", "de"]


@pytest.fixture
def groups() -> Iterator[Callable[[float], list[BroadcastGroup]]]:
    """Makes groups of two ranks, with a timeout in seconds; both are in this process."""
    made: list[BroadcastGroup] = []

    def make(seconds: float) -> list[BroadcastGroup]:
        store = torch.distributed.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        rendezvous = Rendezvous(backend="gloo", host="127.0.0.1", port=store.port, world=2, seconds=seconds)
        with ThreadPoolExecutor() as pool:
            ranks = [pool.submit(BroadcastGroup, "", rendezvous, store, rank, lambda: None) for rank in range(2)]
            made.extend(rank.result(60) for rank in ranks)
        return made

    yield make
    for each in made:
        each.close()


def test_a_broadcast_that_does_not_come_or_whose_sender_leaves_is_one_sentence(
    groups: Callable[[float], list[BroadcastGroup]],
) -> None:
    _, waits = groups(0.5)
    with pytest.raises(EngineError, match=r"^a broadcast of weights was cut off \(.+\); sync again before sampling$"):
        waits.broadcast(torch.zeros(3)).wait()
    *_, leaves, waits = groups(3600)
    coming = waits.broadcast(torch.zeros(3))
    leaves.close()
    with pytest.raises(EngineError, match="cut off"):
        coming.wait()


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
def test_large_matrices_travel_in_the_type_of_the_engine_and_what_may_be_in_float32_there_as_it_is(
    dtype: str | None,
) -> None:
    large, routed = torch.randn(513, 600), torch.randn(3, 513, 520)
    small = {"bias": torch.randn(5000), "router": torch.randn(512, 4096), "half": torch.randn(600, 600).half()}
    found = dict(rounded({"large": large, "experts": routed, **small}.items(), dtype))
    assert all(found[name] is tensor for name, tensor in small.items())
    for name, tensor in (("large", large), ("experts", routed)):
        assert torch.equal(found[name], tensor.to(getattr(torch, dtype or "float32")))
        assert found[name].nbytes == tensor.nbytes // (2 if "16" in str(dtype) else 1)
