"""vLLM's weight transfer through Ray's object store: the engine's side, which needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ..buckets import Bucket


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One chunk of tensors.

    Attributes:
        names: Their Hugging Face names.
        dtype_names: Their types, such as ``float32``.
        shapes: Their shapes.
        reference: Ray's reference to a list of their bytes, one array per tensor.
    """

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
        """Load one chunk; the base class then waits for an accelerator, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Copy the chunk's tensors out of the store and load them."""
        bucket = Bucket(
            names=update_info.names,
            dtypes=update_info.dtype_names,
            shapes=update_info.shapes,
            arrays=ray.get(update_info.reference),
        )
        self.model.load_weights(bucket.tensors())

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: nothing is held between syncs."""
