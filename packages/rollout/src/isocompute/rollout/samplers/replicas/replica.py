"""One replica in its process, and the driver's view of all replicas."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ...errors import EngineError, RolloutError
from ..actor import Verifiers, resources
from ..base import Feed
from ..sampling import Draw, Sampling
from ..weights import Manifest, Payload, place_of
from .actors import LONGEST_WAIT, Actors, Event, Member

if TYPE_CHECKING:
    from ..base import Sampler

_log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""Time for which a replica collects groups before it sends them; a call costs about a millisecond."""
EMPTY = 1 / 8
"""Fraction of a replica that may be empty meanwhile."""
SILENT_SECONDS = 1.0
"""Time after which a replica without finished groups answers anyway, so that it can get groups that another one
lost."""

Part = tuple[pl.DataFrame, Draw]
"""Problems, and how to answer them."""
Opener = Callable[[], "Sampler"]
"""Opens a replica's sampler in the replica's process; it is pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A replica's description of itself after loading the model: its process, and attributes of ``Sampler``."""

    plan: str
    probe: list[float]
    process: int
    host: str
    place: str
    dtype: str | None
    workers: int
    sleeps: bool
    holds: int
    sync: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A replica's answer after a sync, with a probe of the new weights."""

    sync: int
    probe: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Groups that a replica has finished.

    Attributes:
        ended: Whether they are the last of the groups it was given.
        room: Responses that it has room for, besides those already given.
        unscored: Why problems answered so far cannot be scored, by problem.
        scored: Whether responses to some problem could be scored.
        waiting: Groups that were given but abandoned before they began, by phase, step and problem.
    """

    groups: list[pa.RecordBatch]
    ended: bool
    room: int
    unscored: Mapping[str, str]
    scored: bool
    waiting: Sequence[tuple[str, int, str]] = ()


class Replica:
    """A sampler in a Ray actor that answers only with the weights of the requested sync."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._sampler: Sampler
        self._feed: Feed | None = None
        self._answers: Generator[pa.RecordBatch | None] | None = None
        self._unsent: list[pa.RecordBatch] = []
        """Groups from a call that has not ended or has failed."""
        self._silent = SILENT_SECONDS
        self._sync = 0
        self._buckets = 0
        self._whole = True

    def open(self, sampling: Sampling) -> Opened:
        """Load the model. The constructor does not do it, since Ray would report its errors as the actor's death."""
        self._sampler = self._opener()
        self._sampler.use(sampling)
        # The batch ends only when all replicas have answered their parts, so the sampler must not sleep by itself.
        sleeps, self._sampler.sleeps = self._sampler.sleeps, False
        return Opened(
            plan=self._sampler.plan,
            probe=self._sampler.probe(),
            process=os.getpid(),
            host=socket.gethostname(),
            place=place_of(self._sampler.device),
            dtype=self._sampler.dtype,
            workers=self._sampler.workers,
            sleeps=sleeps,
            holds=self._sampler.holds,
        )

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of the sampler: ``use``, ``sleep`` or ``join``."""
        getattr(self._sampler, method)(*arguments)

    def manifest(self) -> Manifest:
        """Return the tensors that a sync must bring."""
        return self._sampler.manifest

    def lengths(self, problems: pl.DataFrame, verifiers: Verifiers) -> list[int]:
        """Check problems like ``Sampler.sample``; return the lengths of their prompts (tokens)."""
        verifiers.adopt()
        return self._sampler.lengths(problems)

    def begin(self, parts: Sequence[Part], verifiers: Verifiers, sync: int, in_flight: bool, more: bool) -> Answered:
        """Begin to answer problems; see ``go_on``.

        Args:
            sync: Number of the sync whose weights must answer; 0 for the model's own.
            in_flight: Whether new weights may arrive meanwhile, so that no call may last long.
        """
        if sync != self._sync or not self._whole:
            whole = "whole" if self._whole else "torn"
            raise RolloutError(
                f"a replica was asked to answer with the weights of sync {sync}; it has those of sync {self._sync}, "
                f"{whole}: sync again before sampling"
            )
        self.end()
        verifiers.adopt()
        self._feed, self._silent = Feed(), GATHER_SECONDS if in_flight else SILENT_SECONDS
        self._sampler.in_flight = in_flight
        return self.go_on(parts, more)

    def go_on(self, parts: Sequence[Part], more: bool) -> Answered:
        """Continue until a group is complete or there is room for another, and collect what follows soon.

        Args:
            parts: Additional problems to answer.
            more: Whether other groups wait that could be answered here.
        """
        feed, sampler = self._feed, self._sampler
        assert feed is not None
        for problems, draw in parts:
            feed.add(problems, draw)
        if self._answers is None:
            self._answers = sampler.answer(feed)
        groups = self._unsent
        began, room = monotonic(), sampler.holds - feed.unfinished
        for group in self._answers:
            if group is not None:
                groups.append(group)
            room = sampler.holds - feed.unfinished
            empty = room if more else 0
            seconds = GATHER_SECONDS if groups or empty > 0 else self._silent
            if empty > EMPTY * sampler.holds or monotonic() - began > seconds:
                break
        else:
            self._answers = None
        self._unsent = []
        return self._answered(groups, room)

    def abandon(self) -> Answered:
        """Remove unfinished groups from the sampler; return what was generated, as far as the sampler reports it."""
        groups, feed = self._unsent, self._feed
        # A stream that only waits for verdicts would otherwise start a new one that generates these.
        added = [] if feed is None else feed.take()
        waiting = [(draw.phase, draw.step, name) for problems, draw in added for name in problems["problem_id"]]
        with suppress(RolloutError):
            if self._answers is not None and self._sampler.abandon():
                groups.extend(group for group in self._answers if group is not None)
        self.end()
        return replace(self._answered(groups, self._sampler.holds), waiting=waiting)

    def _answered(self, groups: list[pa.RecordBatch], room: int) -> Answered:
        # Scoring faults are judged centrally, over all replicas.
        unscored, scored = self._sampler.faults.hand_over()
        return Answered(groups=groups, ended=self._answers is None, room=room, unscored=unscored, scored=scored)

    def end(self) -> None:
        """Remove unfinished groups from the sampler."""
        answers, self._answers, self._unsent = self._answers, None, []
        if answers is not None:
            answers.close()

    def begin_sync(self, sync: int, in_flight: bool) -> None:
        """Begin to load the weights of a sync; nothing is answered until its end."""
        if not in_flight:
            self.end()
        self._sync, self._buckets, self._whole = sync, 0, False
        self._sampler.begin_sync(in_flight=in_flight)

    def take(self, payload: Payload, sync: int) -> None:
        """Load one bucket of a sync's weights."""
        self._expect(sync)
        self._sampler.take(payload)
        self._buckets += 1

    def end_sync(self, version: int, sync: int, buckets: int) -> Synced:
        """Answer with the weights of a sync from now on, if all ``buckets`` have arrived."""
        self._expect(sync)
        if self._buckets != buckets:
            raise RolloutError(
                f"a replica has taken over {self._buckets} of the {buckets} buckets of weights of version {version}; "
                "sync again before sampling"
            )
        self._sampler.end_sync(version)
        probe = self._sampler.probe()
        self._whole = True
        return Synced(sync=sync, probe=probe)

    def _expect(self, sync: int) -> None:
        if sync != self._sync or self._whole:
            raise RolloutError(f"a replica was sent weights of sync {sync}, and it has not begun that one; sync again")


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaMember(Member):
    """The slot of one replica.

    Attributes:
        opened: Its description after loading the model.
        said: The number of the last sync whose weights it has loaded (0: the model's own), and its probe of them.
        sync: That number, once the probe was compared with the others; None while it must not answer.
        answered: Groups that it has answered, over all its processes.
    """

    opened: Opened | None = None
    said: Opened | Synced | None = None
    sync: int | None = None
    answered: int = 0

    @property
    def idle(self) -> bool:
        """Whether it has loaded the model and has nothing to do."""
        return self.opened is not None and self.call is None


class ReplicaActors(Actors[ReplicaMember]):
    """The actors of all replicas."""

    last_lost = ""
    """The last replica that died or hung, and why."""

    def wait(self, seconds: float = LONGEST_WAIT) -> list[Event[ReplicaMember]]:
        """Wait for calls to end, and record what replicas report of themselves."""
        events = super().wait(seconds)
        for event in events:
            member, value = event.member, event.value
            if isinstance(value, Opened):
                member.opened = value
            if isinstance(value, Opened | Synced):
                member.said = value
            if event.error is not None and member.opened is None:
                # It has no model.
                self.lose(member, f"it could not {member.task}")
        return events

    def gather(self, members: Sequence[ReplicaMember]) -> dict[int, Any]:
        """Wait until some replicas have no call left; others may still be loading the model.

        Returns their answers by index, without replicas that died or hung. An error of a call is raised once the others
        have answered.
        """
        answers: dict[int, Any] = {}
        refused: Exception | None = None
        while any(member.call is not None for member in members):
            for event in self.wait():
                refused = refused or event.error
                if not event.lost:
                    answers[event.member.index] = event.value
        if refused is not None:
            raise refused
        return {member.index: answers[member.index] for member in members if member.index in answers}

    def late(self, member: ReplicaMember) -> str:
        """Describe a replica that has not answered in time, and the cluster's resources if it may lack a place."""
        room = f"; the cluster may have no room for it (it has {resources(self._ray)})"
        return super().late(member) + (room if member.opened is None else "")

    def lose(self, member: ReplicaMember, why: str) -> Event[ReplicaMember]:
        """Terminate a replica that died or hangs."""
        self.last_lost = f"replica {member.index}: {why}"
        _log.warning("%s", self.last_lost)
        return super().lose(member, self.last_lost)

    def end(self, member: ReplicaMember) -> None:
        """Terminate a replica, whatever it is doing."""
        super().end(member)
        member.opened = member.said = member.sync = None

    def nobody(self, task: str) -> EngineError:
        """Return the error for a task for which no replica is left."""
        return EngineError(
            f"none of {len(self.members)} replicas is left to {task}; the last one lost: {self.last_lost or 'none'}"
        )
