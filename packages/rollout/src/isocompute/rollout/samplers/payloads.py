"""One bucket of weights on its way to a sampler: how the process that takes it gets its tensors.

``InProcess`` within one process; ``InObjectStore`` through Ray's object store; ``InSharedMemory`` in memory that two
processes map, on a GPU by CUDA IPC and on CPU by a file; ``Broadcast`` over a process group, NCCL or gloo
(``broadcasting``). What needs a GPU is *unverified*.
"""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import RolloutError
from . import broadcasting
from .buckets import Contents
from .models import first_line

if TYPE_CHECKING:
    import torch


class Payload(Protocol):
    """A bucket of weights."""

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Return Hugging Face names and tensors, in the process that takes them.

        Args:
            device: Where the model is.
        """
        ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """Tensors of this process, as they are.

    Attributes:
        pairs: Names and tensors, on any device.
    """

    pairs: list[tuple[str, Any]]

    def tensors(self, device: Any) -> list[tuple[str, Any]]:
        """Return them."""
        del device
        return self.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class InObjectStore:
    """Bytes that Ray's object store shares without a copy."""

    contents: Contents
    array: NDArray[np.uint8]

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Return copies, since the store's bytes are read-only and may go."""
        import torch

        return self.contents.unpacked(torch.from_numpy(np.array(self.array)).to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class InSharedMemory:
    """Memory of another process on the same device, which stays as it is until the payload has been taken.

    Attributes:
        place: Its device, as ``place_of`` names it.
        handle: Where it is: ``torch.multiprocessing``'s function that maps it and its arguments, pickled.
    """

    contents: Contents
    place: str
    handle: bytes

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Return copies, which vLLM may hold until a layer is complete.

        Raises:
            RolloutError: The model is on another device.
        """
        if place_of(device) != self.place:
            raise RolloutError(
                f"weights shared on {self.place} were sent to a model on {place_of(device)}; the transport must be "
                "nccl or object_store"
            )
        rebuild, arguments = pickle.loads(self.handle)
        if self.place.startswith("GPU"):
            # torch's arguments name the GPU by its index, which may be another one here.
            arguments = (*arguments[:6], device.index, *arguments[7:])
        copy = rebuild(*arguments).clone()
        _finish(copy)
        return self.contents.unpacked(copy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """What the first rank of this process's broadcast group is about to broadcast."""

    contents: Contents

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Wait for it."""
        import torch

        group = broadcasting.current()
        packed = torch.empty(self.contents.nbytes, dtype=torch.uint8, device=device if group.on_gpus else "cpu")
        group.broadcast(packed).wait()
        return self.contents.unpacked(packed.to(device))


def share(contents: Contents, packed: torch.Tensor) -> InSharedMemory:
    """Let other processes on the device map a bucket; whoever calls keeps it until they have.

    Args:
        packed: Its bytes, shape ``(nbytes,)``, uint8.
    """
    import torch.multiprocessing as processes
    from torch.multiprocessing.reductions import reduce_tensor

    _finish(packed)
    strategy, file = processes.get_sharing_strategy(), io.BytesIO()
    # On CPU by a name: a file descriptor could only be passed on to a child.
    processes.set_sharing_strategy("file_system")
    try:
        ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(reduce_tensor(packed))
    finally:
        processes.set_sharing_strategy(strategy)
    return InSharedMemory(contents=contents, place=place_of(packed.device), handle=file.getvalue())


def _finish(copied: torch.Tensor) -> None:
    """Wait for copies that a GPU has been asked for: another process reads or replaces what they are of."""
    if copied.is_cuda:
        import torch

        torch.cuda.current_stream(copied.device).synchronize()


def place_of(device: Any) -> str:
    """Return the name of a device that is the same in every process: a GPU's UUID, or the machine's name."""
    if not str(device).startswith("cuda"):
        return f"CPU of {socket.gethostname()}"
    import torch

    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


@contextmanager
def loading() -> Iterator[None]:
    """Raise whatever an engine raises over the weights that it is given as one sentence."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        raise RolloutError(
            f"the engine did not take over the weights ({type(error).__name__}: {first_line(error)}); "
            "sync again before sampling"
        ) from error
