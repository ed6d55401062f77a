"""Replicas as their driver sees them: processes that are started, asked, and ended when they die or hang."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ...contract.deaths import death
from ...errors import EngineError
from ..actor import resources
from .replica import Opened, Opener, Replica, Synced

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a replica may take (s).

    Attributes:
        start: To be placed and to load the model.
        answer: For the next group, or one step of a sync.
    """

    start: float
    answer: float


@dataclass(slots=True)
class Member:
    """One replica.

    Attributes:
        index: Its place among the others.
        actor: Ray's handle; None when it has ended.
        opened: What it said when it had loaded the model.
        said: The number of the sync whose weights it has taken over last (0: the model's own), and its probe of them.
        sync: That number, once what it said was compared with the others; None while it must not answer.
        call: What it was asked and has not answered.
        task: That call in words.
        deadline: When it counts as hanging (s, ``monotonic``).
        deaths: How often it has ended since it last answered a group or took over a sync.
        answered: Groups that it has answered, with all its processes.
    """

    index: int
    actor: Any = None
    opened: Opened | None = None
    said: Opened | Synced | None = None
    sync: int | None = None
    call: Any = None
    task: str = ""
    deadline: float = 0.0
    deaths: int = 0
    answered: int = 0

    @property
    def idle(self) -> bool:
        """Whether it has loaded the model and has nothing to do."""
        return self.opened is not None and self.call is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The end of a call.

    Attributes:
        member: Who was asked.
        value: Its answer.
        lost: Why it ended instead, if it did.
    """

    member: Member
    value: Any = None
    lost: str = ""


class Crew:
    """Starts replicas in their places, asks them, and replaces those that die or hang.

    Args:
        opener: Opens a replica's sampler, in its process.
        places: For each replica the options of its Ray actor: its place and its devices.
    """

    def __init__(
        self, ray: Any, opener: Opener, places: Sequence[dict[str, Any]], timeouts: Timeouts, *, restarts: int
    ) -> None:
        self._ray, self._opener, self._places = ray, opener, places
        self._timeouts, self._restarts = timeouts, restarts
        self.members = [Member(index=index) for index in range(len(places))]
        self.last_lost = ""

    def start(self, member: Member, sampling: Any) -> None:
        """Start a replica's process and let it load the model, without waiting for it."""
        if member.deaths > self._restarts:
            return
        actor: Any = self._ray.remote(Replica)
        member.actor = actor.options(**self._places[member.index]).remote(self._opener)
        self.ask(member, "open", sampling, task="load the model", seconds=self._timeouts.start)

    def ask(self, member: Member, method: str, *arguments: Any, task: str, seconds: float | None = None) -> None:
        """Call a method of an idle replica, without waiting for it.

        Args:
            task: The call in words, as a verb for the message.
            seconds: Its timeout; by default that for an answer.
        """
        member.call = getattr(member.actor, method).remote(*arguments)
        member.task = task
        member.deadline = monotonic() + (self._timeouts.answer if seconds is None else seconds)

    def next(self) -> Event:
        """Wait until some call ends, or some replica dies or hangs, which is ended.

        Raises:
            RolloutError: The call was refused.
        """
        asked = [member for member in self.members if member.call is not None]
        first = min(member.deadline for member in asked)
        self._ray.wait([member.call for member in asked], timeout=max(0.0, first - monotonic()))
        # Only what is not there counts as late: the caller may have been away for longer than the timeout.
        done = set(self._ray.wait([m.call for m in asked], num_returns=len(asked), timeout=0)[0])
        late = [member for member in asked if member.call not in done and member.deadline <= monotonic()]
        if late:
            member = late[0]
            return self.lose(member, self._late(member))
        ready = [member for member in asked if member.call in done]
        return self._outcome(ready[0]) if ready else self.next()

    def poll(self) -> list[Event]:
        """Return the calls that have ended by now, without waiting."""
        found: list[Event] = []
        for member in self.members:
            if member.call is not None and self._ray.wait([member.call], timeout=0)[0]:
                found.append(self._outcome(member))
        return found

    def gather(self, members: Sequence[Member]) -> dict[int, Any]:
        """Wait for the calls of some replicas.

        Returns:
            Their answers by index, without those that died or hung.

        Raises:
            RolloutError: A call was refused; the others are waited for first.
        """
        indices = {member.index for member in members}
        answers: dict[int, Any] = {}
        refused: Exception | None = None
        while any(member.call is not None for member in members):
            try:
                event = self.next()
            except Exception as error:
                refused = refused or error
                continue
            if event.member.index in indices and not event.lost:
                answers[event.member.index] = event.value
        if refused is not None:
            raise refused
        return answers

    def close(self) -> None:
        """End all replicas, whatever they are doing."""
        for member in self.members:
            self.end(member)

    def nobody(self, task: str) -> EngineError:
        """What to raise where no replica is left for a task."""
        return EngineError(
            f"none of {len(self.members)} replicas is left to {task}; the last one lost: {self.last_lost or 'none'}"
        )

    def _outcome(self, member: Member) -> Event:
        call, member.call = member.call, None
        try:
            value = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            if why := death(error):
                return self.lose(member, f"it died before it could {member.task} ({why})")
            if member.opened is None:
                # It has no model.
                self.end(member)
                member.deaths += 1
            if isinstance(getattr(error, "cause", None), ValueError):
                raise error.cause from None
            raise
        if isinstance(value, Opened):
            member.opened = value
        if isinstance(value, Opened | Synced):
            member.said = value
        return Event(member=member, value=value)

    def _late(self, member: Member) -> str:
        if member.opened is None:
            return (
                f"it did not {member.task} within {self._timeouts.start:g} s; the cluster may have no room for it "
                f"(it has {resources(self._ray)})"
            )
        return f"it did not {member.task} within {self._timeouts.answer:g} s and was ended"

    def lose(self, member: Member, why: str) -> Event:
        """End a replica that died or hangs; ``why`` begins with "it"."""
        self.end(member)
        member.deaths += 1
        self.last_lost = f"replica {member.index}: {why}"
        _log.warning("%s", self.last_lost)
        return Event(member=member, lost=self.last_lost)

    def end(self, member: Member) -> None:
        """End a replica, whatever it is doing."""
        if member.actor is not None and self._ray.is_initialized():
            self._ray.kill(member.actor)
        member.actor = member.opened = member.said = member.sync = member.call = None
