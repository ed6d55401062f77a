"""Transfers a sync's weights to replicas; runs where the weights are, in this process or on learner ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import EngineError, RolloutError
from ..weights import (
    BACKENDS,
    AbsentError,
    Broadcast,
    BroadcastGroup,
    InObjectStore,
    Manifest,
    Rendezvous,
    Underway,
    buckets,
    checked,
    connect,
    leave,
    loading,
    pack,
    place_of,
    rounded,
    share,
)
from .actors import Actors, Event
from .replica import Opened, ReplicaMember

GROUP = "the group that weights are broadcast to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The outcome of one rank's part of a sync. Errors are returned, not raised, since they must not end the ranks.

    Attributes:
        buckets: Number of buckets sent to each replica.
        reached: Replicas that this rank had to reach.
        lost: Why replicas were lost, by index.
        failure: The error that ended it early.
    """

    buckets: int
    reached: Sequence[int]
    lost: Mapping[int, str]
    failure: Exception | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Sends the weights of one sync, bucket by bucket; the next bucket is made while replicas load the previous one.

    ``object_store``, ``gloo`` and ``nccl`` send from the first rank. With ``ipc`` each rank serves the replicas on its
    own GPU; on CPU the first rank serves all replicas on its machine.

    Attributes:
        transport: One of ``pool.TRANSPORTS``.
        receivers: Replicas that receive the weights, with their descriptions; each process has its own copies.
        task: Description of the sync, with a verb.
        size: Most bytes per bucket.
        seconds: Timeout of a replica for one bucket.
    """

    transport: str
    receivers: Sequence[ReplicaMember]
    number: int
    task: str
    wanted: Manifest
    size: int
    seconds: float

    def __call__(self, rank: int, weights: Iterator[tuple[str, Any]]) -> Sent:
        """Send the weights, pairs of a Hugging Face name and a tensor, from one of several ranks; they are read once.

        All ranks read every tensor, since they gather it together.
        """
        own = list(self.receivers) if rank == 0 else []
        if self.transport == "ipc":
            here = place_of(self.device())
            own = [one for one in self.receivers if said(one).place == here and (rank == 0 or here.startswith("GPU"))]
        sending = _Sending(self, own)
        failure: Exception | None = None
        try:
            if own:
                sending.go(weights)
        except Exception as error:
            failure = error
            if self.transport in BACKENDS:
                # The others may be waiting for a bucket that does not come.
                leave()
        for _ in weights:
            pass
        return Sent(buckets=sending.count, reached=[one.index for one in own], lost=sending.lost, failure=failure)

    def device(self) -> str:
        """Return the device on which buckets are packed."""
        if self.transport != "nccl" and (self.transport != "ipc" or said(self.receivers[0]).place.startswith("CPU")):
            return "cpu"
        import torch

        if not torch.cuda.is_available():
            raise RolloutError(
                f"the transport {self.transport} sends from GPU to GPU, and the process that has the weights has none; "
                "it must be object_store"
            )
        return "cuda"


def said(member: ReplicaMember) -> Opened:
    """Return the description of a replica that is up."""
    assert member.opened is not None
    return member.opened


class _Sending:
    """One call of a transfer."""

    def __init__(self, transfer: Transfer, receivers: Sequence[ReplicaMember]) -> None:
        import ray

        self._transfer, self._ray = transfer, ray
        self._actors = Actors(ray, receivers, lambda member: None, seconds=transfer.seconds)
        self.count = 0
        self.lost: dict[int, str] = {}
        self._in_flight: Any = None
        """The bucket that the replicas are reading, or its broadcast."""

    @property
    def _left(self) -> list[ReplicaMember]:
        return [member for member in self._actors.members if member.actor is not None]

    def go(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Send the weights, until no replica is left."""
        transfer = self._transfer
        group = self._group() if transfer.transport in BACKENDS else None
        device = transfer.device()
        arriving = checked(weights, transfer.wanted)
        types = {said(one).dtype for one in self._left}
        if len(types) == 1:
            arriving = rounded(arriving, *types)
        for bucket in buckets(arriving, size=transfer.size):
            with loading():
                contents, packed = pack(bucket, device)
            del bucket
            self._settle()
            if not self._left:
                return
            self._in_flight = packed
            if group is not None:
                payload: Any = Broadcast(contents=contents)
            elif transfer.transport == "ipc":
                payload = share(contents, packed)
            else:
                payload = self._ray.put(InObjectStore(contents=contents, array=packed.numpy()))
            for one in self._left:
                self._actors.ask(one, "take", payload, transfer.number, task=transfer.task)
            if group is not None:
                self._in_flight = group.broadcast(packed)
            self.count += 1
        self._settle()

    def _group(self) -> BroadcastGroup:
        """Connect this process and all workers of all replicas."""
        ranks, world = {}, 1
        for one in self._left:
            ranks[one.index] = range(world, world + said(one).workers)
            world += said(one).workers

        def invite(rendezvous: Rendezvous) -> None:
            for one in self._left:
                task, rank = f"join {GROUP}", ranks[one.index][0]
                # The group's own timeout, which reports who is missing, comes first.
                self._actors.ask(one, "call", "join", rendezvous, rank, task=task, seconds=2 * self._transfer.seconds)

        try:
            group = connect(
                " ".join(f"{said(one).host}:{said(one).process}" for one in self._left),
                self._transfer.transport,
                host=self._ray.util.get_node_ip_address(),
                world=world,
                seconds=self._transfer.seconds,
                invite=invite,
                check=lambda: self._note(self._actors.wait(0.0)),
            )
        except AbsentError as error:
            for one in self._left:
                if {*ranks[one.index]} & {*error.ranks}:
                    self._note([self._actors.lose(one, f"it did not join {GROUP} and was ended")])
            raise
        self._settle()
        return group

    def _settle(self) -> None:
        """Wait for the replicas' answers, and drop those that died or hang."""
        while self._actors.busy:
            self._note(self._actors.wait())
        if isinstance(self._in_flight, Underway):
            self._in_flight.wait()
        self._in_flight = None

    def _note(self, events: Sequence[Event[ReplicaMember]]) -> None:
        for event in events:
            if event.error is not None:
                raise event.error
            if not event.lost:
                continue
            index, why = event.member.index, event.lost
            self.lost[index] = why
            if self._transfer.transport in BACKENDS:
                raise EngineError(f"replica {index} broke {GROUP}: {why}; sync again before sampling")
