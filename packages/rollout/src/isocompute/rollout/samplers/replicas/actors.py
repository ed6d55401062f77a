"""Supervises Ray actors, each with one call at a time: their answers, and which of them died or hang, and why.

Ray's own tools do not suffice. ``ray.util.ActorPool`` reuses an actor that died, and has no timeouts. With
``max_restarts`` and ``max_task_retries`` a new actor that was never opened repeats the call that its predecessor died
of, and the reason is lost. A placement group gives actors their devices, but does not monitor them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from ...contract.deaths import death

LONGEST_WAIT = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """The slot of one actor.

    Attributes:
        index: Its number among the slots.
        actor: Ray's handle; None after its end until another actor is started.
        call: A call that it has not answered, described by ``task``, made at ``asked_at`` with a timeout of
            ``seconds``.
        deaths: Actors in a row that have ended in this slot; the owner resets it.
        again_at: Time from which another actor may be started.
    """

    index: int
    actor: Any = None
    call: Any = None
    task: str = ""
    seconds: float = inf
    asked_at: float = 0.0
    deaths: int = 0
    again_at: float = 0.0


M = TypeVar("M", bound=Member)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Generic[M]):
    """The end of a call: its answer, the error it raised, or why the actor was lost; otherwise the actor stays."""

    member: M
    value: Any = None
    error: Exception | None = None
    lost: str = ""


class Actors(Generic[M]):
    """Actors; those that die or hang are terminated and replaced.

    Args:
        start: Starts an actor in a slot, and calls it to open.
        seconds: Default timeout of a call.
        restarts: Number of actors in a row that may end in a slot and are replaced.
        backoff: Delay before a replacement (s), given the number of actors in a row that have ended.
    """

    def __init__(
        self,
        ray: Any,
        members: Sequence[M],
        start: Callable[[M], None],
        *,
        seconds: float = inf,
        restarts: float = inf,
        backoff: Callable[[int], float] = lambda deaths: 0.0,
    ) -> None:
        self._ray, self.members, self._start = ray, members, start
        self._seconds, self._restarts, self._backoff = seconds, restarts, backoff

    @property
    def busy(self) -> list[M]:
        """Actors that have not answered."""
        return [member for member in self.members if member.call is not None]

    def fill(self) -> None:
        """Start an actor in every empty slot after its backoff."""
        for member in self.members:
            if member.actor is None and member.deaths <= self._restarts and member.again_at <= monotonic():
                self._start(member)

    def ask(self, member: M, method: str, *arguments: Any, task: str, seconds: float | None = None) -> None:
        """Call a method of an actor without waiting; ``task`` describes the call with a verb, for messages."""
        member.call = getattr(member.actor, method).remote(*arguments)
        member.task, member.asked_at = task, monotonic()
        member.seconds = self._seconds if seconds is None else seconds

    def wait(self, seconds: float = LONGEST_WAIT) -> list[Event[M]]:
        """Wait up to ``seconds`` for calls to end; actors that hang are terminated."""
        busy = self.busy
        if not busy:
            return []
        until = min(member.asked_at + member.seconds for member in busy)
        self._ray.wait([member.call for member in busy], timeout=max(0.0, min(seconds, until - monotonic())))
        # Only calls without an answer count as late, since the caller may have been away for longer than the timeout.
        done = set(self._ray.wait([member.call for member in busy], num_returns=len(busy), timeout=0)[0])
        ended, now = [m for m in busy if m.call in done], monotonic()
        late = [m for m in busy if m.call not in done and m.asked_at + m.seconds <= now]
        return [*map(self._ended, ended), *(self.lose(m, self.late(m)) for m in late)]

    def late(self, member: M) -> str:
        """Describe an actor that has not answered in time; begins with "it"."""
        return f"it did not {member.task} within {member.seconds:g} s and was ended"

    def _ended(self, member: M) -> Event[M]:
        call, member.call = member.call, None
        try:
            return Event(member=member, value=self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            if why := death(error):
                return self.lose(member, f"it died before it could {member.task} ({why})")
            cause = getattr(error, "cause", None)
            return Event(member=member, error=cause if isinstance(cause, ValueError) else error)

    def lose(self, member: M, why: str) -> Event[M]:
        """Terminate an actor that died or hangs (``why`` begins with "it"); another one will take its slot."""
        self.end(member)
        member.deaths += 1
        member.again_at = monotonic() + self._backoff(member.deaths)
        return Event(member=member, lost=why)

    def end(self, member: M) -> None:
        """Terminate an actor, whatever it is doing."""
        if member.actor is not None and self._ray.is_initialized():
            self._ray.kill(member.actor)
        member.actor = member.call = None

    def close(self) -> None:
        """Terminate all actors."""
        for member in self.members:
            self.end(member)
