"""Tensors that have shapes and no numbers, the ranks that are not there, and the bytes that are alive meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary, finalize

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface

from ..policy.attention import packed_attention, packed_mask
from ..policy.sharding import own

PACKED = "isocompute_traced"
"""Packed attention whose mask looks at numbers, which fake tensors do not have, apart from them."""

COLLECTIVE = ("fsdp", "c10d", "_c10d_functional")
"""Namespaces of the operations by which ranks gather and scatter weights."""


class Peak(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of the storages that are alive, after each operation of torch.

    Attributes:
        bytes: The most that were alive together since ``start``.
        gradients: Those of them that were gradients of parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.gradients = 0
        self._alive: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._sizes: dict[int, int] = {}
        self._now = 0
        self._parameters: list[torch.nn.Parameter] = []

    def start(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Forget the peak so far, and tell the gradients of these parameters from what else is alive."""
        self.bytes, self._parameters = 0, list(parameters)

    def watch(self, tensors: Any) -> None:
        """Count the storages of tensors, if they are alive, from now on."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self._add(own(tensor).untyped_storage())

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._alive[key], self._sizes[key] = storage, storage.nbytes()
            self._now += self._sizes[key]
            finalize(storage, self._drop, key).atexit = False

    def _drop(self, key: int) -> None:
        self._now -= self._sizes.pop(key)

    def _measure_again(self) -> None:
        """Storages are as large as they say now: FSDP empties and fills them in place."""
        for key, storage in list(self._alive.items()):
            self._now += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.watch(made)
        if function.namespace in COLLECTIVE or self._now > self.bytes:
            self._measure_again()
        if self._now > self.bytes:
            self.bytes = self._now
            self.gradients = size_of(p.grad for p in self._parameters if p.grad is not None)
        return made


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of this rank's shares of tensors."""
    return sum(own(tensor).numel() * tensor.element_size() for tensor in tensors)


@contextmanager
def pretended(ranks: int) -> Iterator[dist.ProcessGroup | None]:
    """A process group whose other ranks do not exist: collectives return at once, and nothing is sent.

    Args:
        ranks: Its size; one rank needs no group, and None is given.
    """
    if ranks == 1:
        yield None
        return
    store = dist.PrefixStore("isocompute", FakeStore())
    dist.init_process_group("fake", store=store, rank=0, world_size=ranks)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def _mask(**asked: Any) -> torch.Tensor | None:
    """See ``attention.packed_mask``: which keys are in sight is found out with numbers, and answered without."""
    with unset_fake_temporarily():
        return packed_mask(**{**asked, "device": "cpu"})


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _mask)
