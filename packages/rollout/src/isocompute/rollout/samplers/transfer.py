"""Weights to an engine in another process, through vLLM's weight-transfer API (0.28 and later).

All that depends on that API is in this file. An engine is opened with ``receiver(backend)``; whoever holds the
weights makes a sender and calls it once a sync. A sync is ``start_weight_update``, ``update_weights`` once a
chunk, ``finish_weight_update``. Two backends: vLLM's own ``nccl`` between GPUs, and ``object_store``, which
carries tensors through Ray's object store and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import RolloutError

if TYPE_CHECKING:
    import torch

BACKENDS = ("object_store", "nccl")
CHUNK_BYTES = 128 * 2**20
"""Bytes of tensors in one object, so that a large model never has to fit into the object store whole."""

Call = Callable[[str, dict[str, Any]], Any]
"""Calls a worker method of the engine by name, with its arguments, and waits for it."""


def backend_here() -> str:
    """Return ``nccl`` where this process has a CUDA device, else ``object_store``."""
    import torch

    return "nccl" if torch.cuda.is_available() else "object_store"


def receiver(backend: str) -> Any:
    """Return the ``WeightTransferConfig`` of an engine that takes weights over ``backend``.

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
    """Make the object-store transport known to vLLM, once a process."""
    import numpy as np
    import ray
    import torch
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
        """Nothing to agree on."""

    @dataclass
    class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
        """One chunk: names, types and shapes, and a reference to a list of byte arrays."""

        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]
        reference: Any

    class ObjectStoreEngine(WeightTransferEngine):  # type: ignore[misc]
        """Takes tensors out of Ray's object store and loads them as from a checkpoint."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            """Do nothing: a reference finds its object by itself."""

        def start_weight_update(self) -> None:
            """Unpack the layers for the checkpoint's layout."""
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            """Load one chunk; the base class then waits for an accelerator, which a CPU has not."""
            self.receive_weights(self.parse_update_info(update_info))
            if self.device.type != "cpu":
                torch.accelerator.synchronize()

        def receive_weights(self, update_info: UpdateInfo) -> None:
            """Copy the chunk's tensors out of the store and load them."""
            arrays = ray.get(update_info.reference)
            described = zip(update_info.names, update_info.dtype_names, update_info.shapes, arrays, strict=True)
            self.model.load_weights(
                [
                    (name, torch.from_numpy(np.array(array)).view(getattr(torch, dtype)).reshape(shape))
                    for name, dtype, shape, array in described
                ]
            )

        def finish_weight_update(self) -> None:
            """Pack the layers again."""
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Do nothing: nothing is held between syncs."""

    WeightTransferEngineFactory.register_engine("object_store", ObjectStoreEngine)


def sender(backend: str, call: Call, *, address: str | None = None) -> Callable[[Iterable[Any]], None]:
    """Return a function that sends ``(name, tensor)`` pairs to the engine behind ``call``.

    Args:
        backend: As the engine's receiver.
        call: How the engine's worker methods are reached.
        address: For ``nccl``: this machine's address as the engine sees it.
    """
    if backend == "nccl":
        return _NcclSender(call, address or "127.0.0.1")
    call("init_weight_transfer_engine", {"init_info": {}})
    return lambda weights: _send_objects(call, weights)


def _send_objects(call: Call, weights: Iterable[Any]) -> None:
    import ray

    call("start_weight_update", {})
    for chunk in _chunks(weights):
        arrays = [tensor.reshape(-1).view(_bytes_type()).numpy() for _, tensor in chunk]
        update = {
            "names": [name for name, _ in chunk],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk],
            "shapes": [list(tensor.shape) for _, tensor in chunk],
            "reference": ray.put(arrays),
        }
        call("update_weights", {"update_info": update})
    call("finish_weight_update", {})


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def _chunks(weights: Iterable[Any]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    chunk: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in weights:
        here = tensor.detach().cpu().contiguous()
        if chunk and size + here.nbytes > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, here))
        size += here.nbytes
    if chunk:
        yield chunk


class _NcclSender:
    """vLLM's own sender: this process is rank 0 of a group of two, the engine is rank 1."""

    def __init__(self, call: Call, address: str) -> None:
        self._call, self._address = call, address
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
            master_address=self._address, master_port=get_open_port(), world_size=2, rank=0
        )  # fmt: skip
        return WeightTransferTrainerFactory.trainer_init(info, client=_Client(self._call), source=Source())


class _Client:
    """The four methods vLLM's sender asks of an engine (``VLLMWeightSyncClient``)."""

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
