"""Weights to an engine in another process, through vLLM's weight-transfer API, as of vLLM 0.32.

The CPU build of 0.32.0 was run with ``object_store``; ``nccl``, written from the same release's source, was not.

All that depends on that API is in this file and in ``object_store``. An engine is opened with ``receiver(backend)``;
the process that holds the weights makes a sender and calls it once per sync. A sync is ``start_weight_update``,
``update_weights`` once per chunk, ``finish_weight_update``. Two backends: vLLM's own ``nccl`` between GPUs, and
``object_store``, which carries tensors through Ray's object store and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import RolloutError
from ..buckets import BUCKET_BYTES, buckets

if TYPE_CHECKING:
    import torch

BACKENDS = ("object_store", "nccl")
Call = Callable[[str, dict[str, Any]], Any]
"""Called with the name and the keyword arguments of a worker method of the engine; returns when it has ended."""


def default_backend() -> str:
    """Return ``nccl`` where this process has a CUDA device, else ``object_store``."""
    import torch

    return "nccl" if torch.cuda.is_available() else "object_store"


def receiver(backend: str) -> Any:
    """Return the ``WeightTransferConfig`` of an engine that takes weights over ``backend``.

    Args:
        backend: One of ``BACKENDS``.

    Raises:
        RolloutError: There is no such backend.
    """
    from vllm.config import WeightTransferConfig

    if backend not in BACKENDS:
        raise RolloutError(f"there is no weight transport called {backend!r}; there are {', '.join(BACKENDS)}")
    if backend == "object_store":
        _register()
    return WeightTransferConfig(backend=backend)


@cache
def _register() -> None:
    """Make the object-store transport known to vLLM, once per process."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from .object_store import ObjectStoreEngine

    WeightTransferEngineFactory.register_engine("object_store", ObjectStoreEngine)


def sender(
    backend: str, call: Call, *, address: str | None = None, workers: int = 1
) -> Callable[[Iterable[Any]], None]:
    """Return a function that sends ``(name, tensor)`` pairs to the engine behind ``call``.

    Args:
        backend: As the engine's receiver.
        call: How the engine's worker methods are reached.
        address: For ``nccl``: this machine's address as the engine sees it, where the two rendezvous.
        workers: For ``nccl``: GPUs that share the engine's model.

    Returns:
        The function; every call of it is one sync.
    """
    if backend == "nccl":
        return _NcclSender(call, address or "127.0.0.1", workers)
    call("init_weight_transfer_engine", {"init_info": {}})
    return lambda weights: _send_objects(call, weights)


def _send_objects(call: Call, weights: Iterable[Any]) -> None:
    import ray

    call("start_weight_update", {})
    for bucket in buckets(weights, size=BUCKET_BYTES):
        update = {
            "names": bucket.names,
            "dtype_names": bucket.dtypes,
            "shapes": bucket.shapes,
            "reference": ray.put(bucket.arrays),
        }
        call("update_weights", {"update_info": update})
    call("finish_weight_update", {})


class _NcclSender:
    """vLLM's own sender over NCCL: this process is rank 0 of a group, the engine's workers are the others."""

    def __init__(self, call: Call, address: str, workers: int) -> None:
        self._call, self._address, self._workers = call, address, workers
        self._weights: list[tuple[str, torch.Tensor]] = []
        self._engine: Any = None

    def __call__(self, weights: Iterable[Any]) -> None:
        self._weights = [(name, tensor.detach().to("cuda")) for name, tensor in weights]
        if self._engine is None:
            self._engine = self._open()
        self._engine.send_weights()
        self._weights = []

    def _open(self) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        from vllm.utils.network_utils import get_open_port

        outer = self

        class Source(WeightSource):  # type: ignore[misc]
            def metadata(self) -> list[Any]:
                return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in outer._weights]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(outer._weights)

        info = NCCLTrainerInitInfo(
            master_address=self._address, master_port=get_open_port(), world_size=1 + self._workers, rank=0
        )  # fmt: skip
        return WeightTransferTrainerFactory.trainer_init(info, client=_Client(self._call), source=Source())


class _Client:
    """The four methods that vLLM's sender calls on an engine (``VLLMWeightSyncClient``)."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._call("start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", {})
