"""Running processes, as /proc shows them: their families, processor time and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

PART = 8192
"""Bytes read of a file of the kernel at once."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Parts of a second in which /proc counts."""
_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmPTE:", b"VmSwap:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process.

    Attributes:
        start: When it was started, in ticks.
        used: Its processor time, in ticks.
        reaped: That of its descendants that it has waited for, in ticks.
        ended: Whether it only waits to be reaped.
    """

    pid: int
    parent: int
    group: int
    threads: int
    start: int
    used: int
    reaped: int
    ended: bool


def process(pid: int) -> Running | None:
    """Return a process; None where there is none, or it cannot be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, parent, group, *rest = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        own, system, reaped, reaped_system = map(int, rest[8:12])
        return Running(
            pid=pid,
            parent=int(parent),
            group=int(group),
            threads=int(rest[14]),
            start=int(rest[16]),
            used=own + system,
            reaped=reaped + reaped_system,
            ended=state in b"ZX",
        )
    return None


def descendants(ancestor: int, *, ended: bool = False) -> Iterator[Running]:
    """Yield the descendants of a process, each after its parent.

    Args:
        ended: Whether those that only wait to be reaped are among them.
    """
    waiting = _children(ancestor)
    while waiting:
        pid = waiting.pop()
        found = process(pid)
        waiting += _children(pid)
        if found is not None and (ended or not found.ended):
            yield found


def memory(pid: int) -> int:
    """Return the bytes that a process holds: its own, shared ones that are no file's, and its page tables."""
    kilobytes = 0
    with contextlib.suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(_MEMORY):
                kilobytes += int(line.split()[1])
    return kilobytes << 10


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            with contextlib.suppress(OSError):
                found += map(int, _read(f"{task.path}/children").split())
    return found


def _read(path: str) -> bytes:
    """Read a file with few system calls: this competes with the processes that it watches."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, PART), b""))
    finally:
        os.close(file)
