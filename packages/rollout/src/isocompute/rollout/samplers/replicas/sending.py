"""The weights of one sync to all replicas: which way they go, and what is done about replicas that are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RolloutError
from ..manifest import Manifest
from .crew import Crew, Member
from .transfer import Receiver, Sent, Transfer

TRANSPORTS = ("object_store", "gloo", "nccl", "ipc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """One sync.

    Attributes:
        number: Which one, from 1; unlike versions, numbers never repeat.
    """

    number: int
    version: int


def transport_of(asked: str, *, num_gpus: float, keep: bool = False) -> str:
    """Return how weights travel: of ``auto``, what the replicas' devices suggest.

    Args:
        asked: ``auto`` or one of ``TRANSPORTS``. ``auto`` is ``object_store`` for replicas without a GPU, ``nccl`` for
            those with GPUs of their own, and ``ipc`` for those that have a share of one, which they share with a rank.
        keep: Whether the weights are kept in the object store.

    Raises:
        RolloutError: There is no such transport, or the replicas cannot use it.
    """
    if asked not in ("auto", *TRANSPORTS):
        raise RolloutError(f"transport is {asked!r}; it must be auto or one of {', '.join(TRANSPORTS)}")
    if asked == "nccl" and not num_gpus:
        raise RolloutError("transport is 'nccl', and the replicas have no GPU; it must be object_store or gloo")
    if keep and asked not in ("auto", "object_store"):
        raise RolloutError(
            f"transport is {asked!r}, and keep_weights keeps what Ray's object store holds; it must be object_store"
        )
    if asked != "auto":
        return asked
    if keep or not num_gpus:
        return "object_store"
    return "nccl" if num_gpus >= 1 else "ipc"


class Sender:
    """Sends weights to replicas.

    Args:
        transport: One of ``TRANSPORTS``.
        size: Most bytes in a bucket.
        seconds: How long a replica may take over a bucket.
        keep: Whether the buckets stay in the object store until the next sync, for replicas that come later.
    """

    def __init__(self, ray: Any, crew: Crew, *, transport: str, size: int, seconds: float, keep: bool) -> None:
        self._ray, self._crew, self._size, self._keep = ray, crew, size, keep
        self._transport, self._seconds = transport, seconds
        self._kept: list[Any] = []
        self._kept_of: Sync | None = None

    def send(self, sync: Sync, weights: Iterable[tuple[str, Any]], wanted: Manifest) -> dict[int, list[float]]:
        """Send weights to every replica that is up; those that die or hang meanwhile are ended.

        Args:
            weights: Pairs of a Hugging Face name and a tensor, read once. Where it has a method ``on_ranks``, as the
                weights of learner ranks do, they are sent from these, and none passes through this process.

        Returns:
            The probe of each replica that has taken all of them over, by its index.

        Raises:
            RolloutError: The weights are not those of the model, or a replica refuses them.
            EngineError: No replica is left, or one was lost that others receive a broadcast with.
        """
        self._kept, self._kept_of = [], None
        task = f"take over the weights of version {sync.version}"
        members = [member for member in self._crew.members if member.idle]
        for member in members:
            member.sync = None
            self._crew.ask(member, "begin_sync", sync.number, task=task)
        answered = self._crew.gather(members)
        members = [member for member in members if member.index in answered]
        if not members:
            raise self._crew.nobody(task)
        transfer = Transfer(
            transport=self._transport, receivers=[_receiver(member) for member in members], number=sync.number,
            task=task, wanted=wanted, size=self._size, seconds=self._seconds, keep=self._keep,
        )  # fmt: skip
        # What a rank puts into the object store would end with it.
        on_ranks = None if self._keep else getattr(weights, "on_ranks", None)
        sent = [transfer.send(0, weights)] if on_ranks is None else on_ranks(transfer)
        members = self._taken(sent, members)
        if not members:
            raise self._crew.nobody(task)
        count = max(one.buckets for one in sent)
        for member in members:
            self._crew.ask(member, "end_sync", sync.version, sync.number, count, task=task)
        probes = {index: answer.probe for index, answer in self._crew.gather(members).items()}
        if not probes:
            raise self._crew.nobody(task)
        if self._keep:
            self._kept, self._kept_of = list(sent[0].kept), sync
        return probes

    def keeps(self, number: int) -> bool:
        """Whether the weights of a sync are still there."""
        return self._kept_of is not None and self._kept_of.number == number

    def send_again(self, member: Member) -> None:
        """Send the weights that were kept to one replica, without waiting for it; it answers with ``Synced``."""
        assert self._kept_of is not None
        sync = self._kept_of
        member.sync = None
        member.actor.begin_sync.remote(sync.number)
        for reference in self._kept:
            member.actor.take.remote(reference, sync.number)
        task = f"take over the weights of version {sync.version}"
        self._crew.ask(member, "end_sync", sync.version, sync.number, len(self._kept), task=task)

    def _taken(self, sent: Sequence[Sent], members: Sequence[Member]) -> list[Member]:
        """End the replicas that were lost; return those that were sent all weights."""
        lost = {index: why for one in sent for index, why in one.lost.items()}
        for member in members:
            if member.index in lost:
                self._crew.lose(member, lost[member.index])
        for one in sent:
            if one.failure is not None:
                raise one.failure
        reached = {index for one in sent for index in one.reached}
        for member in members:
            if member.index not in reached and member.opened is not None:
                raise RolloutError(
                    f"no rank that has the weights is on the {member.opened.place} of replica {member.index}; the "
                    "transport must be nccl or object_store"
                )
        return [member for member in members if member.index not in lost]


def _receiver(member: Member) -> Receiver:
    opened = member.opened
    assert opened is not None
    return Receiver(
        index=member.index, actor=member.actor, process=f"{opened.host}:{opened.process}", place=opened.place,
        workers=opened.workers,
    )  # fmt: skip


def agreed(probes: dict[int, list[float]], *, tolerance: float) -> list[float]:
    """Return what all replicas say of their weights.

    Args:
        probes: ``Sampler.probe`` of each by its index.
        tolerance: How far log-probabilities may lie apart (nats).

    Raises:
        RolloutError: They do not agree, so not all have taken over the same weights.
    """
    first, *others = sorted(probes.items())
    for index, probe in others:
        apart = max((abs(a - b) for a, b in zip(first[1], probe, strict=True)), default=0.0)
        # Not a number is no agreement, unless both have it.
        if apart > tolerance or [a != a for a in first[1]] != [b != b for b in probe]:
            raise RolloutError(
                f"replicas {first[0]} and {index} do not sample from the same weights: their log-probabilities after "
                f"the same prompts lie {apart:.3g} nats apart, and may by {tolerance:g}; sync again before sampling"
            )
    return first[1]
