"""Threads that keep the processes of a lane busy while an engine goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...errors import RolloutError
from ..config import ScoringConfig
from .canaries import Group
from .frames import Reply
from .layers import Report
from .process import CLOSED, ScoringProcess

LARGEST_BATCH = 1024
"""Responses sent to a process at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Something to be asked of a process.

    Attributes:
        groups: Responses to be scored; or empty.
        ask: What else is asked.
    """

    groups: Sequence[Group] = ()
    ask: Callable[[ScoringProcess], Any] | None = None
    future: Future[Any]

    @property
    def size(self) -> int:
        """Responses in it."""
        return sum(len(group[4]) for group in self.groups)


class Lane:
    """The processes of one library, each with a thread that feeds it."""

    def __init__(self, name: str, config: ScoringConfig) -> None:
        self._name = name
        self._lock, self._closed = threading.Lock(), False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._processes = [ScoringProcess(name, config) for _ in range(config.processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name=f"scoring {name}", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def score(self, groups: Sequence[Group]) -> Future[list[Reply]]:
        """Score responses in the background."""
        return self._put(_Job(groups=groups, future=Future()))

    def each(self, kind: str, values: Sequence[Any]) -> Future[list[Reply]]:
        """Ask for something else, as ``ScoringProcess.each``."""
        return self._put(_Job(ask=lambda process: process.each(kind, values), future=Future()))

    def report(self) -> Future[Report]:
        """Start a process and return the layers of its sandbox."""
        return self._put(_Job(ask=lambda process: process.started(), future=Future()))

    def close(self) -> None:
        """End the processes; what was asked and not answered gets an error."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.stop()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _put(self, job: _Job) -> Future[Any]:
        with self._lock:
            if self._closed:
                job.future.set_exception(RolloutError(CLOSED))
            else:
                self._jobs.put(job)
        return job.future

    def _serve(self, process: ScoringProcess) -> None:
        while True:
            jobs, last = self._batch()
            if jobs:
                _do(jobs, process)
            if last:
                process.close()
                return

    def _batch(self) -> tuple[list[_Job], bool]:
        """Wait for a job; return it with those that came meanwhile and can be sent along, and whether it is the end."""
        job = self._jobs.get()
        jobs: list[_Job] = []
        size = 0
        while job is not None:
            jobs.append(job)
            size += job.size
            # Other processes of the lane get a share of what is waiting.
            if job.ask is not None or size >= LARGEST_BATCH or len(self._processes) > 1:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True


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
