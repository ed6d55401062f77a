"""The transfer of a sync's weights to replicas; it runs where the weights are, here or on learner ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ...contract.deaths import death
from ...errors import EngineError, RolloutError
from ..weights import (
    BACKENDS,
    AbsentError,
    Broadcast,
    BroadcastGroup,
    Contents,
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

GROUP = "the group that weights are broadcast to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A replica that is to take weights.

    Attributes:
        index: Its place among the others.
        process: Names its process.
        place: The device that its model is on.
        dtype: The type of its weights; None where that is not known.
        workers: Processes that share its model.
    """

    index: int
    actor: Any
    process: str
    place: str
    dtype: str | None
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The outcome of one rank's part of a sync. An error is returned, not raised, since it must not end the ranks.

    Attributes:
        buckets: How many each replica was sent.
        reached: Replicas that this rank had to reach.
        lost: Why replicas were lost, by index.
        kept: References to the buckets in Ray's object store, where they are kept.
        failure: What ended it early.
    """

    buckets: int
    reached: Sequence[int]
    lost: Mapping[int, str]
    kept: Sequence[Any]
    failure: Exception | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Sends the weights of one sync, bucket by bucket; the next one is made while replicas load the one before.

    ``object_store``, ``gloo`` and ``nccl`` send from the first rank; with ``ipc`` each rank serves the replicas on its
    own GPU, and on CPU the first one all that are on its machine.

    Attributes:
        transport: One of ``pool.TRANSPORTS``.
        task: The sync in words, as a verb.
        size: Most bytes in a bucket.
        seconds: How long a replica may take over a bucket.
        keep: Whether the buckets stay in the object store.
    """

    transport: str
    receivers: Sequence[Receiver]
    number: int
    task: str
    wanted: Manifest
    size: int
    seconds: float
    keep: bool

    def __call__(self, rank: int, weights: Iterator[tuple[str, Any]]) -> Sent:
        """Send the weights from one of several ranks; all of them take every tensor, since they gather it together."""
        sent = self.send(rank, weights)
        for _ in weights:
            pass
        return sent

    def send(self, rank: int, weights: Iterable[tuple[str, Any]]) -> Sent:
        """Send the weights.

        Args:
            weights: Pairs of a Hugging Face name and a tensor, read once.
        """
        sending = _Sending(self)
        failure: Exception | None = None
        try:
            sending.go(self._own(rank), weights)
        except Exception as error:
            failure = error
        if failure is not None and self.transport in BACKENDS:
            # The others may be waiting for a bucket that does not come.
            leave()
        return Sent(
            buckets=sending.count, reached=sending.reached, lost=sending.lost, kept=sending.kept, failure=failure
        )

    def device(self) -> str:
        """Return the device on which buckets are packed.

        Raises:
            RolloutError: This process has no GPU, and must have one.
        """
        if self.transport != "nccl" and (self.transport != "ipc" or self.receivers[0].place.startswith("CPU")):
            return "cpu"
        import torch

        if not torch.cuda.is_available():
            raise RolloutError(
                f"the transport {self.transport} sends from GPU to GPU, and the process that has the weights has none; "
                "it must be object_store"
            )
        return "cuda"

    def _own(self, rank: int) -> list[Receiver]:
        """Return the replicas that a rank sends to."""
        if self.transport != "ipc":
            return list(self.receivers) if rank == 0 else []
        here = place_of(self.device())
        return [one for one in self.receivers if one.place == here and (rank == 0 or here.startswith("GPU"))]


@dataclass(slots=True)
class _Sending:
    """One call of a transfer.

    Attributes:
        left: Replicas that are there.
        calls: Calls that they have not answered, by index.
        in_flight: The bucket that these calls read.
        sending: A broadcast that goes on.
    """

    transfer: Transfer
    left: list[Receiver] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    count: int = 0
    lost: dict[int, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    calls: dict[int, Any] = field(default_factory=dict)
    in_flight: Any = None
    sending: Underway | None = None

    def go(self, receivers: list[Receiver], weights: Iterable[tuple[str, Any]]) -> None:
        """Send the weights to some replicas, until none is left."""
        if not receivers:
            return
        self.left, self.reached = receivers, [one.index for one in receivers]
        transfer, send = self.transfer, self._send()
        device = transfer.device()
        arriving = checked(weights, transfer.wanted)
        if len({one.dtype for one in receivers}) == 1:
            arriving = rounded(arriving, receivers[0].dtype)
        for bucket in buckets(arriving, size=transfer.size):
            with loading():
                contents, packed = pack(bucket, device)
            del bucket
            self._settle()
            if not self.left:
                return
            self.in_flight = packed
            send(contents, packed)
            self.count += 1
        self._settle()

    def _send(self) -> Callable[[Contents, Any], None]:
        """Return the function that sends one bucket."""
        if self.transfer.transport == "object_store":
            return self._store
        if self.transfer.transport == "ipc":
            return self._share
        group = self._group()

        def broadcast(contents: Contents, packed: Any) -> None:
            self._ask("take", Broadcast(contents=contents), self.transfer.number)
            self.sending = group.broadcast(packed)

        return broadcast

    def _store(self, contents: Contents, packed: Any) -> None:
        import ray

        reference = ray.put(InObjectStore(contents=contents, array=packed.numpy()))
        if self.transfer.keep:
            self.kept.append(reference)
        self._ask("take", reference, self.transfer.number)

    def _share(self, contents: Contents, packed: Any) -> None:
        self._ask("take", share(contents, packed), self.transfer.number)

    def _ask(self, method: str, *arguments: Any) -> None:
        self.calls = {one.index: getattr(one.actor, method).remote(*arguments) for one in self.left}

    def _group(self) -> BroadcastGroup:
        """Connect this process and all workers of all replicas.

        Raises:
            EngineError: A replica died, or did not come.
        """
        import ray

        ranks, world = {}, 1
        for one in self.left:
            ranks[one.index] = range(world, world + one.workers)
            world += one.workers

        def invite(rendezvous: Rendezvous) -> None:
            self.calls = {one.index: one.actor.join.remote(rendezvous, ranks[one.index][0]) for one in self.left}

        try:
            group = connect(
                " ".join(one.process for one in self.left),
                self.transfer.transport,
                host=ray.util.get_node_ip_address(),
                world=world,
                seconds=self.transfer.seconds,
                invite=invite,
                check=lambda: self._answered(0.0),
            )
        except AbsentError as error:
            for index, own in ranks.items():
                if {*own} & {*error.ranks}:
                    self._note(index, f"it did not join {GROUP} and was ended")
            raise
        self._settle()
        return group

    def _settle(self) -> None:
        """Wait for the replicas' answers, and let go of those that died or hang.

        Raises:
            RolloutError: One refuses the weights.
            EngineError: One is lost that others receive a broadcast with.
        """
        task, seconds = self.transfer.task, self.transfer.seconds
        deadline = monotonic() + seconds
        while self.calls:
            if not self._answered(deadline - monotonic()):
                for index in list(self.calls):
                    del self.calls[index]
                    self._note(index, f"it did not {task} within {seconds:g} s and was ended")
        if self.sending is not None:
            self.sending.wait()
        self.in_flight = self.sending = None

    def _answered(self, seconds: float) -> bool:
        """Take note of the calls that were answered; return whether one was, within some seconds."""
        import ray

        done, _ = ray.wait(list(self.calls.values()), timeout=max(0.0, seconds)) if self.calls else ([], [])
        for index, call in list(self.calls.items()):
            if call in done:
                del self.calls[index]
                self._note(index, _lost(call, self.transfer.task))
        return bool(done)

    def _note(self, index: int, why: str) -> None:
        if not why:
            return
        self.lost[index] = why
        self.left = [one for one in self.left if one.index != index]
        if self.transfer.transport in BACKENDS:
            raise EngineError(f"replica {index} broke {GROUP}: {why}; sync again before sampling")


def _lost(call: Any, task: str) -> str:
    """Return why a replica was lost; empty where it has answered.

    Raises:
        RolloutError: It refused.
    """
    import ray

    try:
        ray.get(call)
    except ray.exceptions.RayError as error:
        if why := death(error):
            return f"it died before it could {task} ({why})"
        if isinstance(getattr(error, "cause", None), ValueError):
            raise error.cause from None
        raise
    return ""
