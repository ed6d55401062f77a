"""The memory and the processes of a response together, watched from outside: no limit of the kernel counts them so."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .layers import PROCESSES

LOOK_SECONDS = 0.025
"""Interval between looks."""
PART = 8192
"""Bytes read of a file of the kernel at once."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that runs, its process group, and its number of threads."""

    pid: int
    group: int
    threads: int


class Watch:
    """Kills all processes of a response when together they take too much.

    What executes a response is a group of processes of its own (``child.confine``), which it can leave for another new
    one only; all others here are in this process's group.

    Args:
        memory_bytes: Memory of their own that they may hold together; what forks share counts for each of them.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._group = os.getpgrp()

    def look(self) -> None:
        """Look once."""
        found: list[Running] = []
        threads = 0
        for process in descendants(os.getpid()):
            if process.group != self._group:
                found.append(process)
                threads += process.threads
            if threads > PROCESSES:
                # No more than shows that they are too many: they multiply, and each takes this process's turns.
                break
        if threads <= PROCESSES and sum(map(self._own, found)) <= self._memory_bytes:
            return
        # A group is killed at once, whatever it is starting; whoever has left it the worker kills. What is found later
        # may be the next response's.
        for group in {process.group for process in found}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _own(self, process: Running) -> int:
        """Bytes that a process holds of its own: neither files nor what it shares as a file."""
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = map(int, _read(f"/proc/{process.pid}/statm").split())
            return (resident - shared) * self._page
        return 0


def descendants(ancestor: int) -> Iterator[Running]:
    """Yield the running descendants of a process."""
    waiting = _children(ancestor)
    while waiting:
        pid = waiting.pop()
        waiting += _children(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, group, *rest = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            if state not in b"ZX":
                yield Running(pid, int(group), int(rest[14]))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            with contextlib.suppress(OSError):
                found += map(int, _read(f"{task.path}/children").split())
    return found


def _read(path: str) -> bytes:
    """A file, with few system calls: this competes with what it watches."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, PART), b""))
    finally:
        os.close(file)
