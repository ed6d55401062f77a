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
class Meeting:
    """Where the ranks of a link find each other.

    Attributes:
        backend: One of ``BACKENDS``.
        host: Address of the sender's machine.
        port: Port of its store.
        world: Number of ranks.
        seconds: Timeout of the rendezvous and of each broadcast.
    """

    backend: str
    host: str
    port: int
    world: int
    seconds: float


class Link:
    """This process's place in the group.

    Args:
        key: Which processes it connects.
        meeting: Where they met.
        store: The rendezvous store.
        rank: This process's.

    Attributes:
        on_gpus: Whether tensors must be on a GPU.
    """

    def __init__(self, key: str, meeting: Meeting, store: Any, rank: int) -> None:
        self.key, self.on_gpus = key, meeting.backend == "nccl"
        # Rank 0 holds the store that the others ask.
        self._store, self._group = store, _group(meeting, store, rank)

    def broadcast(self, tensor: Any) -> Any:
        """Send a tensor from rank 0 to all others; returns torch's ``Work``."""
        return self._group.broadcast(tensor, 0)

    def close(self) -> None:
        """Leave the group, whatever others do."""
        self._group.abort()


_link: Link | None = None


def here() -> Link:
    """Return this process's link.

    Raises:
        RolloutError: It has none.
    """
    if _link is None:
        raise RolloutError("this process has not joined the group that weights are broadcast to; sync again")
    return _link


def meet(
    key: str, backend: str, *, host: str, world: int, seconds: float, invite: Callable[[Meeting], Callable[[], None]]
) -> Link:
    """Return the link of a sender to the processes of a key: the one there is, or else a new one.

    Args:
        key: Names the processes; a restarted one has another name.
        host: This machine's address.
        world: Number of ranks, this one included.
        seconds: Timeout of the rendezvous and of each broadcast.
        invite: Asks the others to join; what it returns waits until they have.
    """
    global _link
    if _link is not None and _link.key == key:
        return _link
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
    meeting = Meeting(backend=backend, host=host, port=port, world=world, seconds=seconds)
    joined = invite(meeting)
    _link = Link(key, meeting, store, 0)
    joined()
    return _link


def join(meeting: Meeting, rank: int) -> None:
    """Join a sender's link, in place of any that this process had.

    Args:
        rank: From 1.
    """
    global _link
    leave()
    from torch.distributed import TCPStore

    store = TCPStore(
        meeting.host, meeting.port, meeting.world, is_master=False, timeout=timedelta(seconds=meeting.seconds)
    )
    _link = Link("", meeting, store, rank)


def leave() -> None:
    """Close this process's link; ranks that wait for it get an error."""
    global _link
    link, _link = _link, None
    if link is not None:
        link.close()


def _group(meeting: Meeting, store: Any, rank: int) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=meeting.seconds)
    if meeting.backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, meeting.world, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, meeting.world, options)
