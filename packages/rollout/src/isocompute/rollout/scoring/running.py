"""Running processes from /proc: their families, processor time and memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PART = 8192
"""Bytes read from a kernel file at once."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second."""
_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmPTE:", b"VmSwap:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process.

    Attributes:
        start: Start time, in kernel ticks.
        used: Its processor time (s).
        reaped: Processor time of descendants that it has waited for (s).
        ended: Whether it has ended and only waits to be reaped.
    """

    pid: int
    parent: int
    group: int
    threads: int
    start: int
    used: float
    reaped: float
    ended: bool


def process(pid: int) -> Running | None:
    """Return a process; None if it does not exist or is not visible."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, parent, group, *rest = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        own, system, reaped, reaped_system = map(int, rest[8:12])
        return Running(
            pid=pid,
            parent=int(parent),
            group=int(group),
            threads=int(rest[14]),
            start=int(rest[16]),
            used=clock(pid) or (own + system) / TICKS,
            reaped=(reaped + reaped_system) / TICKS,
            ended=state in b"ZX",
        )
    return None


def clock(pid: int) -> float:
    """Return the processor time of a process (s) to the nanosecond; 0 if there is none.

    /proc counts in whole ticks, and each of many processes loses up to one.
    """
    with contextlib.suppress(OSError):
        # Computes the clock id like clock_getcpuclockid.
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def descendants(ancestor: int, *, ended: bool = False) -> Iterator[Running]:
    """Yield the descendants of a process, each after its parent, with or without those that only wait to be reaped."""
    waiting = _children(ancestor, threads=0)
    while waiting:
        pid = waiting.pop()
        found = process(pid)
        waiting += _children(pid, threads=found.threads if found else 0)
        if found is not None and (ended or not found.ended):
            yield found


def of_user(user: int) -> Iterator[Running]:
    """Yield the processes of a user, except for those that hide their owner."""
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and place.stat().st_uid == user and (found := process(int(place.name))):
                yield found


def memory(pid: int) -> int:
    """Return the memory of a process (bytes): private, shared without a file, and page tables."""
    kilobytes = 0
    with contextlib.suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(_MEMORY):
                kilobytes += int(line.split()[1])
    return kilobytes << 10


def address_space() -> int:
    """Return the size of this process's address space (bytes); 0 if not visible."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_read("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _children(pid: int, *, threads: int) -> list[int]:
    """Return the children of a process, over all its threads; ``threads`` is 0 if their number is unknown."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        # One more since it was counted would not be the one that is known.
        for task in (str(pid),) if threads == 1 else [task.name for task in Path(f"/proc/{pid}/task").iterdir()]:
            with contextlib.suppress(OSError):
                found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    return found


def _read(path: str) -> bytes:
    """Read a file with few system calls, since this competes with the watched processes."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, PART), b""))
    finally:
        os.close(file)
