"""The weights of one sync to all replicas: a bucket is put into Ray's object store once, and all of them read it.

On GPUs they pass through the memory of the replicas' hosts, too: this is where a transport over NCCL or CUDA IPC would
take the buckets' place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RolloutError
from ..buckets import buckets
from ..manifest import Arriving, Manifest, check_tied
from ..models import first_line
from .crew import Crew, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """One sync.

    Attributes:
        number: Which one, from 1; unlike versions, numbers never repeat.
        version: Policy version of the weights.
    """

    number: int
    version: int


class Sender:
    """Sends weights to replicas.

    Args:
        ray: Ray, connected.
        crew: The replicas.
        size: Most bytes in a bucket.
        keep: Whether the buckets stay in the object store until the next sync, for replicas that come later.
    """

    def __init__(self, ray: Any, crew: Crew, *, size: int, keep: bool) -> None:
        self._ray, self._crew, self._size, self._keep = ray, crew, size, keep
        self._kept: list[Any] = []
        self._kept_of: Sync | None = None

    def send(self, sync: Sync, weights: Iterable[tuple[str, Any]], wanted: Manifest) -> dict[int, list[float]]:
        """Send weights to every replica that is up; those that die or hang meanwhile are ended.

        The next bucket is made while the replicas load the one before, so that two are in memory at a time.

        Args:
            weights: Pairs of a Hugging Face name and a tensor, read once.
            wanted: The model's tensors.

        Returns:
            The probe of each replica that has taken all of them over, by its index.

        Raises:
            RolloutError: The weights are not those of the model, or a replica refuses them.
            EngineError: No replica is left.
        """
        self._kept, self._kept_of = [], None
        task = f"take over the weights of version {sync.version}"
        members = [member for member in self._crew.members if member.idle]
        for member in members:
            member.sync = None
        self._ask(members, "begin_sync", sync.number, task=task)
        arriving, count, kept = Arriving(wanted), 0, []
        for bucket in buckets(_checked(weights, arriving, wanted), size=self._size):
            reference = self._ray.put(bucket)
            del bucket
            self._ask(self._answering(members, task), "take", reference, sync.number, task=task)
            count += 1
            if self._keep:
                kept.append(reference)
        arriving.end()
        self._ask(self._answering(members, task), "end_sync", sync.version, sync.number, count, task=task)
        probes = {index: answer.probe for index, answer in self._crew.gather(members).items()}
        if not probes:
            raise self._crew.nobody(task)
        if self._keep:
            self._kept, self._kept_of = kept, sync
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
        # Calls of an actor are carried out in their order; where one of these fails, the last one says so.
        task = f"take over the weights of version {sync.version}"
        self._crew.ask(member, "end_sync", sync.version, sync.number, len(self._kept), task=task)

    def _ask(self, members: Sequence[Member], method: str, *arguments: Any, task: str) -> None:
        for member in members:
            self._crew.ask(member, method, *arguments, task=task)

    def _answering(self, members: Sequence[Member], task: str) -> list[Member]:
        """Wait for what replicas were asked; return those that are still there.

        Raises:
            EngineError: None of them is.
        """
        answered = self._crew.gather(members)
        left = [member for member in members if member.index in answered]
        if not left:
            raise self._crew.nobody(task)
        return left


def _checked(weights: Iterable[tuple[str, Any]], arriving: Arriving, wanted: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a sync, on the CPU, and refuse what the model does not have or ties otherwise."""
    tied = {*wanted.tied, *wanted.tied.values()}
    first: dict[str, Any] = {}
    for name, tensor in weights:
        arriving.add(name, tuple(tensor.shape))
        try:
            copy = tensor.detach().cpu().contiguous()
        except Exception as error:
            raise RolloutError(
                f"the engine did not take over the weights ({type(error).__name__}: {first_line(error)}); "
                "sync again before sampling"
            ) from error
        if name in tied:
            # One tensor, and its other names when they come.
            first[name] = copy
            pairs = {n: s for n, s in wanted.tied.items() if n in first and s in first and name in (n, s)}
            check_tied(pairs, first.items())
        yield name, copy


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
