"""The weights of a sync: the required tensors, their buckets, and the transports of a bucket.

An engine does not check weights against its model: vLLM loads a checkpoint without its last tensor and keeps the old
one. Therefore each tensor is checked here first. A bucket has four transports: unchanged within one process
(``InProcess``); through Ray's object store (``InObjectStore``); in memory that two processes map, by CUDA IPC on a GPU
and by a file on CPU (``InSharedMemory``); or over a process group separate from torch's default one (``Broadcast``).
Rank 0 of that group is the sender, and the group is reused for further syncs with the same processes. vLLM's own NCCL
sender needs the names, types and shapes of the whole model before it begins, sends to one engine, and runs on GPUs
only.
"""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..contract.files import reason_of
from ..errors import EngineError, RolloutError, not_loaded

if TYPE_CHECKING:
    import torch

BACKENDS = ("gloo", "nccl")
BUCKET_BYTES = 128 * 2**20
"""Bytes of tensors per bucket."""
ALIGNMENT = 16
"""Tensors begin at multiples of this many bytes, so that bytes can be viewed as any type."""
SMALL = 512
"""Largest number of rows or columns of a matrix that is sent in float32 to an engine of a lower type."""
JOIN_SECONDS = 60.0
"""Longest wait of a group's ranks for each other (s)."""
LEAVE_SECONDS = 10.0
"""Longest wait for torch to end a group (s)."""
POLL_SECONDS = 0.02
TORN = "torn"
"""Key in a group's store that marks the group as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors of a model.

    Attributes:
        shapes: The shape of each tensor by its Hugging Face name.
        tied: For each name that is an alias, the name of its tensor, as ``lm_head.weight`` to
            ``model.embed_tokens.weight``; a sync may leave out the alias.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]

    @property
    def elements(self) -> int:
        """Number of the model's parameters; tied ones count once."""
        return sum(prod(shape) for name, shape in self.shapes.items() if name not in self.tied)


def manifest(model: str) -> Manifest:
    """Return the tensors of a model from its configuration alone; nothing is allocated."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model)
        with torch.device("meta"):
            return manifest_of(AutoModelForCausalLM.from_config(config))
    except Exception as error:
        raise not_loaded(model, error) from None


def stored_parameters(folder: str | Path) -> int | None:
    """Return the number of parameters in a model's safetensors files; only their headers are read.

    Tied tensors are stored and counted once; for quantised weights the packed values are counted. None if there are no
    such files, as for a model on the hub, or if they cannot be read: loading the model reports why.
    """
    # Some folders hold the weights a second time, as consolidated.safetensors.
    files = sorted(Path(folder).glob("model*.safetensors"))
    if not files:
        return None

    from safetensors import SafetensorError, safe_open

    total = 0
    for file in files:
        try:
            with safe_open(file, framework="np") as stored:
                total += sum(prod(stored.get_slice(name).get_shape()) for name in stored.keys())  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
    return total


def manifest_of(built: Any) -> Manifest:
    """Return the tensors of a transformers model, on any device."""
    tensors = built.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    # Tied tensors are one object; the first name, that of the embedding, is its own.
    names = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    tied = {name: source for name, source in names.items() if name != source}
    return Manifest(shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()}, tied=tied)


def checked(weights: Iterable[tuple[str, Any]], wanted: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a sync, and check each against the model's as it arrives.

    Of tied tensors the first is buffered until the other one arrives, or until the end.

    Raises:
        RolloutError: A tensor is missing, unknown, repeated, of another shape, or differs from the one that it is tied
            to; the message names it.
    """
    tied = {*wanted.tied, *wanted.tied.values()}
    seen: set[str] = set()
    first: dict[str, Any] = {}
    for name, tensor in weights:
        shape = tuple(tensor.shape)
        if name not in wanted.shapes:
            raise RolloutError(f"a sync brings the tensor {name}, which the model does not have")
        if name in seen:
            raise RolloutError(f"a sync brings the tensor {name} twice")
        if shape != wanted.shapes[name]:
            raise RolloutError(f"a sync brings the tensor {name} as {shape}; the model has it as {wanted.shapes[name]}")
        seen.add(name)
        if name in tied:
            first[name] = tensor
            for two in wanted.tied.items():
                if name in two and first.keys() >= {*two}:
                    one, other = first[two[0]], first[two[1]]
                    if one.data_ptr() != other.data_ptr() and not bool((one == other).all()):
                        both = " and ".join(two)
                        raise RolloutError(f"a sync brings {both} with different values, and the model ties them")
        yield name, tensor
    missing = [name for name in wanted.shapes if name not in seen and name not in wanted.tied]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RolloutError(f"a sync lacks the tensor {missing[0]}{others}")


def rounded(weights: Iterable[tuple[str, Any]], dtype: str | None) -> Iterator[tuple[str, Any]]:
    """Cast large float32 matrices to an engine's 16-bit type, as the engine would do: half the bytes.

    Tensors that an engine may hold in float32 are small, such as norms, biases and routers, and are not cast.
    """
    import torch

    lower = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype or "")
    for name, tensor in weights:
        large = len(tensor.shape) > 1 and min(tensor.shape[-2:]) > SMALL
        yield name, tensor.to(lower) if lower and large and tensor.dtype == torch.float32 else tensor


@contextmanager
def loading() -> Iterator[None]:
    """Turn any error of an engine about its weights into one sentence."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        raise RolloutError(
            f"the engine did not take over the weights ({type(error).__name__}: {reason_of(error)}); "
            "sync again before sampling"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The tensors in a packed bucket, in order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    nbytes: int

    def unpacked(self, packed: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return names and tensors as views of ``packed``, shape ``(nbytes,)``, uint8."""
        import torch

        tensors, begin = [], 0
        for name, kind, shape in zip(self.names, self.dtypes, self.shapes, strict=True):
            dtype = getattr(torch, kind)
            length = prod(shape) * dtype.itemsize
            tensors.append((name, packed[begin : begin + length].view(dtype).reshape(shape)))
            begin += _aligned(length)
        return tensors


def buckets(weights: Iterable[tuple[str, Any]], *, size: int) -> Iterator[list[tuple[str, Any]]]:
    """Yield tensors in buckets of at most ``size`` bytes, in order; a larger tensor has its own bucket.

    Only one bucket and the next tensor of a stream are buffered.
    """
    buffered: list[tuple[str, Any]] = []
    used = 0
    for name, tensor in weights:
        if buffered and used + tensor.nbytes > size:
            yield buffered
            buffered, used = [], 0
        buffered.append((name, tensor))
        used += tensor.nbytes
    if buffered:
        yield buffered


def pack(bucket: list[tuple[str, torch.Tensor]], device: Any) -> tuple[Contents, torch.Tensor]:
    """Copy the tensors of a bucket into one byte buffer on a device."""
    import torch

    tensors = [tensor.detach() for _, tensor in bucket]
    contents = Contents(
        names=[name for name, _ in bucket],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
        shapes=[tuple(tensor.shape) for tensor in tensors],
        nbytes=sum(_aligned(tensor.nbytes) for tensor in tensors),
    )
    packed = torch.empty(contents.nbytes, dtype=torch.uint8, device=device)
    for (_, view), tensor in zip(contents.unpacked(packed), tensors, strict=True):
        view.copy_(tensor)
    return contents, packed


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class InProcess:
    """Names and tensors of this process, unchanged, on any device."""

    pairs: list[tuple[str, Any]]

    def tensors(self, device: Any) -> list[tuple[str, Any]]:
        """Return the names and tensors."""
        return self.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class InObjectStore:
    """Bytes that Ray's object store shares without a copy."""

    contents: Contents
    array: NDArray[np.uint8]

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Return copies, since the store's bytes are read-only and may disappear."""
        import torch

        return self.contents.unpacked(torch.from_numpy(np.array(self.array)).to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class InSharedMemory:
    """Memory of another process on the same device, which stays unchanged until the payload has been taken.

    Attributes:
        place: Its device, as ``place_of`` names it.
        handle: Where it is: the function of ``torch.multiprocessing`` that maps it and its arguments, pickled.
    """

    contents: Contents
    place: str
    handle: bytes

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Return copies, which vLLM may keep until a layer is complete."""
        if place_of(device) != self.place:
            raise RolloutError(
                f"weights shared on {self.place} were sent to a model on {place_of(device)}; the transport must be "
                "nccl or object_store"
            )
        rebuild, arguments = pickle.loads(self.handle)
        if self.place.startswith("GPU"):
            import torch

            # torch's arguments name the GPU by its index, which may differ here.
            index = torch.device(device).index
            arguments = (*arguments[:6], torch.cuda.current_device() if index is None else index, *arguments[7:])
        copy = rebuild(*arguments).clone()
        _finish(copy)
        return self.contents.unpacked(copy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A bucket that the first rank of this process's group is about to broadcast."""

    contents: Contents

    def tensors(self, device: Any) -> list[tuple[str, torch.Tensor]]:
        """Wait for the broadcast and return the tensors."""
        import torch

        group = _current
        if group is None:
            raise RolloutError("this process has not joined the group that weights are broadcast to; sync again")
        packed = torch.empty(self.contents.nbytes, dtype=torch.uint8, device=device if group.on_gpus else "cpu")
        group.broadcast(packed).wait()
        return self.contents.unpacked(packed.to(device))


Payload = InProcess | InObjectStore | InSharedMemory | Broadcast
"""A bucket of weights; its method ``tensors`` returns names and tensors in the receiving process."""


def share(contents: Contents, packed: torch.Tensor) -> InSharedMemory:
    """Let other processes on the device map a bucket (uint8); the caller keeps it until they have."""
    import torch.multiprocessing as processes
    from torch.multiprocessing.reductions import reduce_tensor

    _finish(packed)
    strategy, file = processes.get_sharing_strategy(), io.BytesIO()
    # On CPU by name: a file descriptor could only be passed to a child.
    processes.set_sharing_strategy("file_system")
    try:
        ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(reduce_tensor(packed))
    finally:
        processes.set_sharing_strategy(strategy)
    return InSharedMemory(contents=contents, place=place_of(packed.device), handle=file.getvalue())


def _finish(copied: torch.Tensor) -> None:
    """Wait for pending copies of a GPU, since another process reads or overwrites their source."""
    if copied.is_cuda:
        import torch

        torch.cuda.current_stream(copied.device).synchronize()


def place_of(device: Any) -> str:
    """Return a name for a device that is the same in every process: a GPU's UUID, or the machine's name."""
    if not str(device).startswith("cuda"):
        return f"CPU of {socket.gethostname()}"
    import torch

    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The address where the ranks of a group meet; ``seconds`` is the timeout of each broadcast."""

    backend: str
    host: str
    port: int
    world: int
    seconds: float

    @property
    def join_seconds(self) -> float:
        """Timeout of the rendezvous."""
        return min(JOIN_SECONDS, self.seconds)

    def store(self) -> Any:
        """Connect to the sender's store."""
        from torch.distributed import TCPStore

        timeout = timedelta(seconds=self.join_seconds)
        return TCPStore(self.host, self.port, self.world, is_master=False, timeout=timeout, wait_for_workers=False)


class Underway:
    """A broadcast in progress, in its own thread.

    NCCL connects its ranks in the first broadcast, and then waits for ever for a rank that has died.
    """

    def __init__(self, work: Callable[[], Any], seconds: float) -> None:
        self._done, self._seconds = _aside(work), seconds

    def wait(self) -> None:
        """Wait until it has finished."""
        try:
            self._done.result(self._seconds)
        except TimeoutError:
            why = f"it was not over in {self._seconds:g} s"
        except Exception as error:
            why = reason_of(error)
        else:
            return
        raise EngineError(f"a broadcast of weights was cut off ({why}); sync again before sampling")


def _aside(work: Callable[[], Any]) -> Future[Any]:
    """Run something that may hang in a thread that does not keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


class BroadcastGroup:
    """This process's membership of the group; see ``connect``."""

    def __init__(self, key: str, rendezvous: Rendezvous, store: Any, rank: int, check: Callable[[], object]) -> None:
        self.key, self.on_gpus, self._seconds = key, rendezvous.backend == "nccl", rendezvous.seconds
        # Rank 0 hosts the store that the others use.
        self._store = store
        here = [f"here/{each}" for each in range(rendezvous.world)]
        store.set(here[rank], "")
        making, end = None, monotonic() + rendezvous.join_seconds
        while making is None or not making.done():
            check()
            if monotonic() > end:
                absent = [each for each, name in enumerate(here) if not store.check([name])]
                named = f"ranks {', '.join(map(str, absent))} of {len(here)}" if absent else "a rank"
                raise AbsentError(absent, f"{named} did not come in {rendezvous.join_seconds:g} s")
            # torch's own group would wait for a missing rank, and could not be told to leave.
            if making is None and store.check(here):
                making = _aside(lambda: _group(rendezvous, rank))
            sleep(POLL_SECONDS)
        try:
            self._group = making.result()
        except Exception as error:
            raise AbsentError([], reason_of(error)) from None

    def broadcast(self, tensor: Any) -> Underway:
        """Send a tensor from rank 0 to all others."""
        _finish(tensor)
        group, limit = self._group, timedelta(seconds=self._seconds)
        return Underway(lambda: group.broadcast(tensor, 0).wait(limit), self._seconds)

    def close(self) -> None:
        """Leave the group, whatever other ranks do."""
        # gloo's connections end with the group itself.
        group, self._group = self._group, None
        if group is not None:
            with suppress(TimeoutError):
                _aside(group.abort).result(LEAVE_SECONDS)


class AbsentError(EngineError):
    """A group could not be formed."""

    def __init__(self, ranks: list[int], why: str) -> None:
        super().__init__(f"there is no group to broadcast weights to ({why}); sync again before sampling")
        self.ranks = ranks
        """The ranks that are missing; empty if all came but could not be connected."""


_current: BroadcastGroup | None = None


def connect(
    key: str,
    backend: str,
    *,
    host: str,
    world: int,
    seconds: float,
    invite: Callable[[Rendezvous], object],
    check: Callable[[], object],
) -> BroadcastGroup:
    """Return the sender's group for the processes of a key: the existing one, or a new one.

    Args:
        key: Identifies the processes; a restarted process has another key.
        world: Number of ranks, including this one.
        invite: Asks the other ranks to join.
        check: Raises an error if one of them cannot join; it is called repeatedly until all have joined.
    """
    global _current
    if _current is not None and _current.key == key:
        return _current
    leave()
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # A store that opens its own port would listen on every address of the machine.
    with socket.create_server((host, 0), family=family) as server:
        port = int(server.getsockname()[1])
        store = TCPStore(
            host,
            port,
            world,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )
    rendezvous = Rendezvous(backend=backend, host=host, port=port, world=world, seconds=seconds)
    invite(rendezvous)
    try:
        _current = BroadcastGroup(key, rendezvous, store, 0, check)
    except BaseException:
        store.set(TORN, "")
        raise
    return _current


def join(rendezvous: Rendezvous, rank: int) -> None:
    """Join a sender's group, replacing this process's previous one."""
    global _current
    leave()

    def check() -> None:
        if store.check([TORN]):
            raise EngineError("another one did not come")

    try:
        store = rendezvous.store()
        _current = BroadcastGroup("", rendezvous, store, rank, check)
    except Exception as error:
        # Also if the sender, and with it the store, is gone.
        raise EngineError(
            f"rank {rank} of {rendezvous.world} could not join the group that weights are broadcast to "
            f"({reason_of(error)}); sync again before sampling"
        ) from None


def leave() -> None:
    """Close this process's group; ranks that wait for it get an error."""
    global _current
    group, _current = _current, None
    if group is not None:
        group.close()


def _group(rendezvous: Rendezvous, rank: int) -> Any:
    import torch.distributed as dist

    # Use a new connection, since one that waits for a key answers nothing else.
    store, timeout = rendezvous.store(), timedelta(seconds=rendezvous.seconds)
    if rendezvous.backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, rendezvous.world, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, rendezvous.world, options)
