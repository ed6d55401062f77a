"""Threads that keep the processes of a lane busy while an engine goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...errors import RolloutError
from ..config import ScoringConfig
from .layers import Report
from .process import CLOSED, Group, Reply, ScoringProcess

LARGEST_BATCH = 1024
"""Responses sent to a process at a time."""
ENOUGH = 512
"""Held responses that are sent without waiting for more."""
HELD_SECONDS = 0.25
"""How long after others held responses are sent at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Something to be asked of a process.

    Attributes:
        groups: Responses to be scored; or empty.
        ask: What else is asked.
        future: The replies.
        hold: It may wait for others.
    """

    groups: Sequence[Group] = ()
    ask: Callable[[ScoringProcess], Any] | None = None
    future: Future[Any]
    hold: bool = False

    @property
    def size(self) -> int:
        """Responses in it."""
        return sum(len(group[4]) for group in self.groups)


class Lane:
    """The processes of one library, each with a thread that feeds it.

    Args:
        name: As for ``ScoringProcess``.
        config: How many, and their limits.
    """

    def __init__(self, name: str, config: ScoringConfig) -> None:
        self._name = name
        self._changed, self._closed = threading.Condition(), False
        self._jobs: deque[_Job] = deque()
        self._held, self._hurry, self._sent = 0, False, 0.0
        self._processes = [ScoringProcess(name, config) for _ in range(config.processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name=f"scoring {name}", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def score(self, groups: Sequence[Group], *, hold: bool = False) -> Future[list[Reply]]:
        """Score responses in the background.

        Args:
            groups: Responses by problem.
            hold: They may wait for others that can be sent along, until ``flush``.
        """
        return self._put(_Job(groups=groups, future=Future(), hold=hold))

    def flush(self) -> None:
        """Send what is held."""
        with self._changed:
            self._hurry = bool(self._jobs)
            self._changed.notify()

    def each(self, kind: str, values: Sequence[Any]) -> Future[list[Reply]]:
        """Ask for something else, as ``ScoringProcess.each``.

        Args:
            kind: Which.
            values: What is asked, one by one.
        """
        return self._put(_Job(ask=lambda process: process.each(kind, values), future=Future()))

    def report(self) -> Future[Report]:
        """Start a process and return the layers of its sandbox."""
        return self._put(_Job(ask=lambda process: process.started(), future=Future()))

    def close(self) -> None:
        """End the processes; what was asked and not answered gets an error."""
        with self._changed:
            self._closed = True
            for process in self._processes:
                process.stop()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _put(self, job: _Job) -> Future[Any]:
        with self._changed:
            if self._closed:
                job.future.set_exception(RolloutError(CLOSED))
                return job.future
            self._jobs.append(job)
            self._held += job.size
            first = len(self._jobs) == 1
            self._hurry = self._hurry or not job.hold or self._held >= ENOUGH
            # Waking a thread takes the interpreter from the engine's.
            if first or self._hurry:
                self._changed.notify()
        return job.future

    def _serve(self, process: ScoringProcess) -> None:
        while jobs := self._batch():
            _do(jobs, process)
        process.close()

    def _batch(self) -> list[_Job]:
        """Wait for jobs that are due and can be sent together; none when the lane is closed and all are done."""
        with self._changed:
            while not (self._hurry or self._closed):
                left = HELD_SECONDS - (time.monotonic() - self._sent)
                if self._jobs and left <= 0:
                    break
                self._changed.wait(left if self._jobs else None)
            jobs, size = [], 0
            while self._jobs:
                job = self._jobs.popleft()
                jobs.append(job)
                size += job.size
                # Other processes of the lane get a share of what is waiting.
                if job.ask is not None or size >= LARGEST_BATCH or len(self._processes) > 1:
                    break
            self._held -= size
            self._sent = time.monotonic()
            if not self._jobs:
                self._hurry = False
            elif len(self._processes) > 1:
                self._changed.notify()
            return jobs


def _do(jobs: Sequence[_Job], process: ScoringProcess) -> None:
    """Answer scores together, and everything else one by one."""
    scores = [job for job in jobs if job.ask is None]
    try:
        replies = process.score([group for job in scores for group in job.groups]) if scores else []
    except Exception as error:
        for job in scores:
            job.future.set_exception(_error(error))
    else:
        start = 0
        for job in scores:
            job.future.set_result(replies[start : start + job.size])
            start += job.size
    for job in jobs:
        if job.ask is not None:
            try:
                job.future.set_result(job.ask(process))
            except Exception as error:
                job.future.set_exception(_error(error))


def _error(error: Exception) -> Exception:
    """The error for whoever waits; each has a traceback of its own."""
    return RolloutError(str(error)) if isinstance(error, RolloutError) else error
