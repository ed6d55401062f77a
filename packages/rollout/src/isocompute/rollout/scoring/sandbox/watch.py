"""The memory and the processes of a response together, watched from outside: no limit of the kernel counts them so."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from .layers import PROCESSES

LOOK_SECONDS = 0.025
"""Interval between looks."""
ENOUGH = 2 * PROCESSES
"""Processes that are looked at; they multiply while they are counted."""


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
        found = self._found()
        threads = sum(threads for _, threads in found.values())
        if threads <= PROCESSES and sum(map(self._own, found)) <= self._memory_bytes:
            return
        # A group is killed at once, whatever it is starting; whoever has left it the worker kills. What is found later
        # may be the next response's.
        for group in {group for group, _ in found.values()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _found(self) -> dict[int, tuple[int, int]]:
        """Processes of responses, each with its group and its threads; no more than show that they are too many."""
        found = descendants(os.getpid(), most=ENOUGH)
        return {pid: (group, threads) for pid, (group, threads) in found.items() if group != self._group}

    def _own(self, pid: int) -> int:
        """Bytes that a process holds of its own: neither files nor what it shares as a file."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
            return (resident - shared) * self._page
        return 0


def descendants(ancestor: int, *, most: int | None = None) -> dict[int, tuple[int, int]]:
    """Return the running descendants of a process, each with its process group and its number of threads.

    Args:
        most: How many to look for.
    """
    found: dict[int, tuple[int, int]] = {}
    waiting = _children(ancestor)
    while waiting and (most is None or len(found) < most):
        pid = waiting.pop()
        waiting += _children(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, group, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found[pid] = int(group), int(rest[14])
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found
