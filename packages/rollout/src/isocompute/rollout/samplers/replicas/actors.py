"""Ray actors in their places, each asked one thing at a time: what they answer, and which died or hang, and why.

Ray's own means fall short of it. ``ray.util.ActorPool`` hands an actor that died out again, and knows no timeouts. With
``max_restarts`` and ``max_task_retries`` a new actor, which no call has opened, gets what the one before died of, and
nobody hears why. A placement group gives actors their devices, and sees none of this.
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
    """The place of one actor.

    Attributes:
        index: Its number among the others.
        actor: Ray's handle; None from its end until another is started.
        call: A call that it has not answered, ``task`` in words, made at ``asked_at`` with a timeout of ``seconds``.
        deaths: How often in a row an actor has ended here; whoever has them sets it back.
        again_at: When another one may be started.
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
    """The end of a call: its answer, or what it raised instead, or why the actor is lost; else that goes on."""

    member: M
    value: Any = None
    error: Exception | None = None
    lost: str = ""


class Actors(Generic[M]):
    """Actors, of which those that die or hang are ended and replaced.

    Args:
        start: Starts an actor in a place, and asks it to open.
        seconds: Timeout of a call that is given none.
        restarts: How often in a row an actor may end in its place, and is replaced.
        backoff: Seconds until one is replaced, from how often in a row it has ended.
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
        """Those that have not answered."""
        return [member for member in self.members if member.call is not None]

    def fill(self) -> None:
        """Start an actor in every empty place whose backoff has passed."""
        for member in self.members:
            if member.actor is None and member.deaths <= self._restarts and member.again_at <= monotonic():
                self._start(member)

    def ask(self, member: M, method: str, *arguments: Any, task: str, seconds: float | None = None) -> None:
        """Call a method of an actor, without waiting for it; ``task`` is the call in words, a verb for messages."""
        member.call = getattr(member.actor, method).remote(*arguments)
        member.task, member.asked_at = task, monotonic()
        member.seconds = self._seconds if seconds is None else seconds

    def wait(self, seconds: float = LONGEST_WAIT) -> list[Event[M]]:
        """Wait for the end of some calls, no longer than some seconds; actors that hang are ended."""
        busy = self.busy
        if not busy:
            return []
        until = min(member.asked_at + member.seconds for member in busy)
        self._ray.wait([member.call for member in busy], timeout=max(0.0, min(seconds, until - monotonic())))
        # Only what is not there counts as late: the caller may have been away for longer than the timeout.
        done = set(self._ray.wait([member.call for member in busy], num_returns=len(busy), timeout=0)[0])
        ended, now = [m for m in busy if m.call in done], monotonic()
        late = [m for m in busy if m.call not in done and m.asked_at + m.seconds <= now]
        return [*map(self._ended, ended), *(self.lose(m, self.late(m)) for m in late)]

    def late(self, member: M) -> str:
        """Say that an actor has not answered in time; begins with "it"."""
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
        """End an actor that died or hangs, ``why`` begins with "it"; another one takes its place in time."""
        self.end(member)
        member.deaths += 1
        member.again_at = monotonic() + self._backoff(member.deaths)
        return Event(member=member, lost=why)

    def end(self, member: M) -> None:
        """End an actor, whatever it is doing."""
        if member.actor is not None and self._ray.is_initialized():
            self._ray.kill(member.actor)
        member.actor = member.call = None

    def close(self) -> None:
        """End all actors."""
        for member in self.members:
            self.end(member)
