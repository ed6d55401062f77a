"""Jobs on workers that may die: begun where one is free, begun again where one died, and listed where they fail."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isocompute.rollout.contract.deaths import death

from ..errors import ExperimentError
from . import stopping
from .cluster import cause

if TYPE_CHECKING:
    from .pool import Pool

POLL_SECONDS = 2.0
"""How often what runs is looked at."""
WAIT_SECONDS = 0.5
"""How long the answer of a worker is waited for at a time, and a signal for it."""
ATTEMPTS = 6
"""How often a job is begun in a row without having come further; a worker that dies each time may be its fault."""
BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0


def backoff(times: int) -> float:
    """Seconds until what died ``times`` times in a row is tried again: twice as long each time."""
    return min(LONGEST_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0 ** (times - 1))


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is called for.

    Attributes:
        key: Its own, among jobs that run together.
        begin: Calls a worker; returns the reference of the result.
        end: Takes the result. A ``ValueError`` or ``OSError`` is the job's failure.
        position: A value that changes while the job gets on.
        kept: A value that changes when it has come further than where it would begin again.
        stop: Asks it to save its state and end.
    """

    key: str
    name: str
    begin: Callable[[Any], Any]
    end: Callable[[Any], object] = lambda result: None
    position: Callable[[], object] = lambda: None
    kept: Callable[[], object] = lambda: None
    stop: Callable[[], None] = lambda: None


@dataclass(kw_only=True, eq=False)
class _Attempt:
    """A job, and how often it was begun in vain."""

    job: Job
    deaths: int = 0
    not_before: float = 0.0
    actor: Any = None
    kept: object = None
    position: object = None
    moved: float = 0.0


class Dispatch:
    """Runs jobs on the workers of a pool."""

    def __init__(self, pool: Pool, title: str) -> None:
        self._pool, self._title = pool, title
        self._waiting: deque[_Attempt] = deque()
        self._later: list[_Attempt] = []
        self._running: dict[Any, _Attempt] = {}
        self._failed: dict[str, str] = {}
        self._stopping = False

    def run(
        self, jobs: Iterable[Job], *, poll: Callable[[Sequence[Job]], None] = lambda running: None
    ) -> dict[str, str]:
        """Run jobs, begun in their order, and return why each that failed did, by its key.

        Raises:
            ExperimentError: No worker is left and none came in time, or the cluster is lost.
            Stopped: A signal came; what ran was asked to save its state, and has ended.
        """
        import ray

        self._waiting.extend(_Attempt(job=job) for job in jobs)
        self._failed = {}
        polled = time.monotonic()
        try:
            with stopping.deferred() as signalled:
                while self._waiting or self._later or self._running:
                    if signalled():
                        self._stop()
                    self._pool.tend()
                    self._begin()
                    for task in self._wait():
                        if task in self._running:
                            self._ended(task, self._running.pop(task))
                    if time.monotonic() - polled >= POLL_SECONDS:
                        poll([each.job for each in self._running.values()])
                        self._kill_stalled()
                        polled = time.monotonic()
        except ray.exceptions.RayError as error:
            raise ExperimentError(f"{self._title}: the Ray cluster does not answer ({cause(error)})") from None
        return self._failed

    def _wait(self) -> list[Any]:
        """Wait for a worker to answer, not beyond the time when something else is due."""
        import ray

        due = [each.not_before - time.monotonic() for each in self._later]
        seconds = max(0.05, min([WAIT_SECONDS, *due]))
        watched = [*self._running, *self._pool.opening]
        if watched:
            done: list[Any] = ray.wait(watched, timeout=seconds)[0]
            return done
        time.sleep(seconds)
        return []

    def _begin(self) -> None:
        now = time.monotonic()
        due = [each for each in self._later if each.not_before <= now]
        self._waiting.extendleft(due)
        self._later = [each for each in self._later if each.not_before > now]
        while self._waiting and (actor := self._pool.take()) is not None:
            each = self._waiting.popleft()
            each.actor, each.kept = actor, each.job.kept()
            each.position, each.moved = each.job.position(), now
            self._running[each.job.begin(actor)] = each

    def _ended(self, task: Any, each: _Attempt) -> None:
        import ray

        try:
            each.job.end(ray.get(task))
        except (ray.exceptions.RayError, ValueError, OSError) as error:
            why = death(error)
            if why is not None:
                self._pool.lost(each.actor)
                self._begin_again(each, why)
                return
            self._fail(each, cause(error))
        self._pool.give_back(each.actor)

    def _begin_again(self, each: _Attempt, why: str) -> None:
        if self._stopping:
            return
        each.deaths = each.deaths + 1 if each.job.kept() == each.kept else 1
        if each.deaths >= ATTEMPTS:
            self._fail(each, f"its worker died {each.deaths} times, the last time because: {why}")
            return
        seconds = backoff(each.deaths)
        again = f"it continues on another one in {seconds:g} s"
        print(f"{self._title}: the worker of {each.job.name} died ({why}); {again}", flush=True)
        each.not_before = time.monotonic() + seconds
        self._later.append(each)

    def _fail(self, each: _Attempt, why: str) -> None:
        self._failed[each.job.key] = why
        print(f"{self._title}: {each.job.name} failed, and the others go on ({why})", flush=True)

    def _kill_stalled(self) -> None:
        """Kill workers whose job has not got on for too long; they are then found dead."""
        import ray

        now, patience = time.monotonic(), self._pool.resources.stall_seconds
        for each in self._running.values():
            position = each.job.position()
            if position != each.position:
                each.position, each.moved = position, now
            elif now - each.moved > patience:
                print(f"{self._title}: {each.job.name} showed no progress in {patience:g} s", flush=True)
                ray.kill(each.actor)
                each.moved = now

    def _stop(self) -> None:
        """Begin nothing more, and ask what runs to save its state, once."""
        if not self._stopping:
            self._stopping = True
            print(
                f"{self._title}: stopping; what runs saves its state, and a second signal ends it at once", flush=True
            )
            for each in self._running.values():
                # On a full disk it is not asked; a second signal ends it.
                with suppress(OSError):
                    each.job.stop()
        self._waiting.clear()
        self._later.clear()
