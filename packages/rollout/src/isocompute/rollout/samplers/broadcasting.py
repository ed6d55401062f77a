"""A process group between the process that sends weights and those that take them, apart from torch's default one.

The sender is rank 0. It keeps the group from one sync to the next, as long as the same processes take the weights. gloo
was run on CPU; NCCL, which is the same calls, was not (*unverified on a GPU*). vLLM's own sender over NCCL would need
the names, types and shapes of the whole model before it begins, sends to one engine, and runs on GPUs only.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..errors import RolloutError

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a group find each other.

    Attributes:
        backend: One of ``BACKENDS``.
        seconds: Timeout of the rendezvous and of each broadcast.
    """

    backend: str
    host: str
    port: int
    world: int
    seconds: float


class BroadcastGroup:
    """This process's place in the group.

    Args:
        key: Which processes it connects.

    Attributes:
        on_gpus: Whether tensors must be on a GPU.
    """

    def __init__(self, key: str, rendezvous: Rendezvous, store: Any, rank: int) -> None:
        self.key, self.on_gpus = key, rendezvous.backend == "nccl"
        # Rank 0 holds the store that the others ask.
        self._store, self._group = store, _group(rendezvous, store, rank)

    def broadcast(self, tensor: Any) -> Any:
        """Send a tensor from rank 0 to all others; returns torch's ``Work``."""
        return self._group.broadcast(tensor, 0)

    def close(self) -> None:
        """Leave the group, whatever others do."""
        self._group.abort()


_current: BroadcastGroup | None = None


def current() -> BroadcastGroup:
    """Return this process's group.

    Raises:
        RolloutError: It has none.
    """
    if _current is None:
        raise RolloutError("this process has not joined the group that weights are broadcast to; sync again")
    return _current


def connect(
    key: str, backend: str, *, host: str, world: int, seconds: float, invite: Callable[[Rendezvous], Callable[[], None]]
) -> BroadcastGroup:
    """Return the group of a sender to the processes of a key: the one there is, or else a new one.

    Args:
        key: Names the processes; a restarted one has another name.
        host: This machine's address.
        world: Number of ranks, this one included.
        seconds: Timeout of the rendezvous and of each broadcast.
        invite: Asks the others to join; what it returns waits until they have.
    """
    global _current
    if _current is not None and _current.key == key:
        return _current
    leave()
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # A store that opens its own port listens on every address of the machine.
    with socket.create_server((host, 0), family=family) as server:
        port = int(server.getsockname()[1])
        store = TCPStore(
            host, port, world, is_master=True, timeout=timedelta(seconds=seconds), wait_for_workers=False,
            master_listen_fd=server.detach(),
        )  # fmt: skip
    rendezvous = Rendezvous(backend=backend, host=host, port=port, world=world, seconds=seconds)
    joined = invite(rendezvous)
    _current = BroadcastGroup(key, rendezvous, store, 0)
    joined()
    return _current


def join(rendezvous: Rendezvous, rank: int) -> None:
    """Join a sender's group, in place of any that this process had.

    Args:
        rank: From 1.
    """
    global _current
    leave()
    from torch.distributed import TCPStore

    timeout = timedelta(seconds=rendezvous.seconds)
    store = TCPStore(rendezvous.host, rendezvous.port, rendezvous.world, is_master=False, timeout=timeout)
    _current = BroadcastGroup("", rendezvous, store, rank)


def leave() -> None:
    """Close this process's group; ranks that wait for it get an error."""
    global _current
    group, _current = _current, None
    if group is not None:
        group.close()


def _group(rendezvous: Rendezvous, store: Any, rank: int) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=rendezvous.seconds)
    if rendezvous.backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, rendezvous.world, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, rendezvous.world, options)
