"""Limits of the sandbox and their supervision: memory, processor time, wall time, processes and open files.

If the engine may create a control group for a sandbox, the kernel itself limits the sandbox's memory.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import resource
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import running
from ..running import Running, descendants, memory
from . import kernel, layers
from .frames import Reply
from .layers import FIRST_FREE_USER, Report

FILES = 64
"""Files that a process may have open."""
PROCESSES = 32
"""Processes of the sandbox at a time; each thread counts as one."""
MORE_PROCESSES = 256
"""Growth in a user's processes that is allowed during a request, if the kernel counts them all.

The engine may start some of these, and a response the rest: by doubling, at 1 ms each until they are killed.
"""
COUNTS_BY_NAMESPACE = (5, 14)
"""The first Linux version that counts the processes of each user namespace separately."""
MOST_FILES = 4096
"""Bound on file descriptors that a library may have opened before their number was limited."""
BUFFERS = FILES * 208 * 1024
"""Bytes that a process may hold in socket and pipe buffers, which are shown nowhere."""
LOOK_SECONDS, CLOSE_SECONDS = 0.025, 0.005
"""Interval between checks of a response, and the shortest one near a limit."""
FILLED = 4 * 2**30
"""Bytes that a processor can fill per second."""
SLACK_SECONDS = 0.1
"""Processor time by which the processes of a response may exceed the limit together, since they are checked at
intervals."""

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CONTROLLERS = frozenset({"memory", "pids"})
GROUP_NAME = "isocompute"
_numbers = itertools.count(1)


def limit(memory_bytes: int, *, alone: bool) -> None:
    """Limit this process and its children: memory, open files, processes; no file may grow and no core be dumped.

    Args:
        memory_bytes: Address space of each process, including what is already loaded.
        alone: Whether the processes are ``counted_alone``, so that their number is limited.
    """
    limits = [
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]
    if alone:
        limits.append((resource.RLIMIT_NPROC, PROCESSES))
    for name, value in limits:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(name, (value, value))


def counted_alone(report: Report) -> bool:
    """Return whether the kernel counts the sandbox's processes separately from the user's others.

    It counts threads per user, and from Linux 5.14 on per user namespace. If the engine's are included, a limit would
    keep the sandbox from starting any process whenever the engine starts some.
    """
    if report["user"] == "namespace":
        kernel_version = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
        return kernel_version >= COUNTS_BY_NAMESPACE
    return report["user"].startswith(f"uid {FIRST_FREE_USER // 10**8}")


def most_processes(report: Report) -> int:
    """Return the process limit for a response, plus this user's other processes if the kernel counts them together."""
    if counted_alone(report):
        return PROCESSES
    return MORE_PROCESSES + sum(found.threads for found in running.of_user(os.geteuid()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a child.

    Attributes:
        contained: Whether the sandbox has a process namespace, so that all that a child leaves behind can be killed at
            once.
        landlock: The sandbox's version of Landlock, 0 for none; it can be nested.
        filter: System-call filter (``kernel.compiled``); empty if the sandbox has none.
        processes: Processes that the kernel may count when it starts another.
    """

    seconds: float
    wall_seconds: float
    contained: bool
    landlock: int
    filter: bytes
    processes: int

    @property
    def late(self) -> Reply:
        """The reply for a response that exceeded the wall time."""
        return {"error": f"deadline: more than {self.wall_seconds:g} s by the clock"}


def limits_in(report: Report, *, seconds: float, wall_seconds: float, processes: int) -> Limits:
    """Return the limits of children in a sandbox."""
    contained = layers.contained(report)
    files = report["files"]
    version = int(files.removeprefix(layers.LANDLOCK)) if files.startswith(layers.LANDLOCK) else 0
    filtered = b""
    if report["seccomp"]:
        signals = contained and version >= kernel.FIRST_WITH_SIGNALS
        filtered = kernel.compiled(kernel.of_response(signals=signals, groups=contained))
    return Limits(
        seconds=seconds,
        wall_seconds=wall_seconds,
        contained=contained,
        landlock=version,
        filter=filtered,
        processes=processes,
    )


def confine(limits: Limits, keep: Collection[int]) -> None:
    """Restrict this process before it executes a response: it can then set no limit, open no socket and change no file.

    Of its file descriptors above 2, only those in ``keep`` stay open.
    """
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, MOST_FILES)
    layers.die_with_parent()
    os.setpgid(0, 0)
    # Children of a process that ignores their end would not be counted; the filter prevents that.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if limits.landlock:
        kernel.nest()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
    # The timer is exact, and RLIMIT_CPU cannot be ignored.
    whole = math.floor(limits.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    if limits.filter:
        # Last, since it refuses everything done here.
        kernel.enter_filter(limits.filter)


class Watch:
    """Kills all processes of a response when together they use too much; no kernel limit counts them together.

    A response is executed by its own process group (``confine``), which a process can leave only for a new one. All
    other processes here are in this process's group. The response's first process is a child of the worker, which also
    becomes the parent of orphans. So none is lost, and the time of all is counted: of running and of reaped ones.

    Args:
        memory_bytes: Memory that they may hold together; memory shared by forks or mappings counts for each.
        seconds: Processor time that they may use together.
    """

    def __init__(self, memory_bytes: int, seconds: float) -> None:
        self._memory_bytes = memory_bytes
        self._seconds = seconds + SLACK_SECONDS
        self._group = os.getpgrp()
        self._first: Running | None = None
        self._before = 0.0
        self._processors = len(os.sched_getaffinity(0))

    def look(self) -> float:
        """Check once; return the seconds until the next check."""
        standing: dict[int, Running] = {}
        found: list[Running] = []
        threads = 0
        for process in descendants(os.getpid(), ended=True):
            if process.group == self._group:
                standing[process.pid] = process
                continue
            found.append(process)
            threads += 0 if process.ended else process.threads
            if threads > PROCESSES:
                # Stop once there are clearly too many: they multiply, and checking each delays this process.
                break
        first = self._first_of(standing, found)
        if first is None:
            return LOOK_SECONDS
        if threads <= PROCESSES:
            held = sum(memory(process.pid) + BUFFERS for process in found if not process.ended)
            spent = self._spent(first, standing, found)
            if held <= self._memory_bytes and spent <= self._seconds:
                # The remainder cannot be used up sooner.
                left = min(self._seconds - spent, (self._memory_bytes - held) / FILLED) / self._processors
                return min(LOOK_SECONDS, CLOSE_SECONDS + left)
        # A group is killed at once, whatever it is starting; the worker kills processes that have left it. Processes
        # found later may belong to the next response.
        for group in {first.group, *(process.group for process in found)}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        return CLOSE_SECONDS

    def _first_of(self, standing: Mapping[int, Running], found: Sequence[Running]) -> Running | None:
        """Return the first process of the response, which the kernel may omit from a changing list."""
        known = running.process(self._first.pid) if self._first else None
        if self._first and known and (known.start, known.group) == (self._first.start, self._first.group):
            return known
        children = [process for process in found if process.parent in standing]
        self._first = min(children, key=lambda process: (process.start, process.pid), default=None)
        if self._first is not None:
            # By now the worker has reaped everything of the previous response, and little of this one.
            worker = running.process(self._first.parent)
            self._before = worker.reaped if worker else 0.0
        return self._first

    def _spent(self, first: Running, standing: Mapping[int, Running], found: Sequence[Running]) -> float:
        """Return the processor time of the response (s), including orphans that its worker has reaped."""
        worker = standing.get(first.parent)
        orphans = worker.reaped - self._before if worker else 0.0
        every = {process.pid: process for process in (*found, first)}.values()
        return max(0.0, orphans) + sum(process.used + process.reaped for process in every)


def make_group() -> str:
    """Create a control group (version 2), next to this process's or inside it; return its folder, or an empty text.

    The limits must be delegated: enabled in the parent folder, which this user may write. Groups of engines that were
    killed are removed.
    """
    with contextlib.suppress(OSError):
        own = next(line[3:] for line in OWN.read_text().splitlines() if line.startswith("0::"))
        place = ROOT / own.lstrip("/")
        for folder in (place, place.parent):
            if folder.is_relative_to(ROOT) and _delegated(folder):
                for old in folder.glob(f"{GROUP_NAME}-*"):
                    if not Path("/proc", old.name.split("-")[1]).exists():
                        remove_group(str(old))
                made = folder / f"{GROUP_NAME}-{os.getpid()}-{next(_numbers)}"
                made.mkdir()
                return str(made)
    return ""


def _delegated(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        on = (folder / "cgroup.subtree_control").read_text().split()
        return set(on) >= CONTROLLERS and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return False


def remove_group(folder: str) -> None:
    """Remove a control group whose processes have ended."""
    if folder:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


class ControlGroup:
    """A control group's files, opened while that is allowed; none without a folder."""

    def __init__(self, folder: str) -> None:
        self._files: dict[str, int] = {}
        if folder:
            with contextlib.suppress(OSError):
                for name in ("cgroup.procs", "memory.current", "memory.max", "memory.swap.max", "pids.max"):
                    mode = os.O_RDONLY if name.endswith("current") else os.O_WRONLY
                    self._files[name] = os.open(f"{folder}/{name}", mode)

    def enter(self) -> None:
        """Put this process and its future children into the group."""
        self._write("cgroup.procs", 0)

    def limit(self, memory_bytes: int, processes: int) -> bool:
        """Limit processes started from now on, beyond what exists already; return whether the kernel does."""
        if "memory.current" not in self._files:
            return False
        held = int(os.pread(self._files["memory.current"], 64, 0) or 0)
        self._write("memory.swap.max", 0)
        self._write("pids.max", processes)
        return held > 0 and self._write("memory.max", held + memory_bytes)

    def _write(self, name: str, value: int) -> bool:
        with contextlib.suppress(OSError, KeyError):
            return os.write(self._files[name], str(value).encode()) > 0
        return False
