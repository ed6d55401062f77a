"""A process for one response, killed with everything that it started.

What it executes shares its memory, and nothing in one memory is safe from the rest of it. So the child has no way to
the engine: it holds a pipe to the worker, on which exactly one reply counts, which the worker reads as a verdict and
makes anew. That reply begins with a number drawn for this response, which waits in another pipe until the verifier has
returned. A response that a rule executes in the child can end it or write to the pipe, which earns nothing. Written
for this sandbox, it can read the number first and forge a reply, as it could make the verifier return what it likes:
nothing here excludes that, and it changes no other response's verdict.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn

from . import landlock, layers, seccomp, syscalls
from .frames import NO_VERDICT, FrameError, Reply, reply_in

HEAD = struct.Struct("=16sI")
"""What a reply begins with: the number drawn, and the length of the rest."""
LARGEST_REPLY = 4096
MOST_FILES = 4096
"""File descriptors that a library may have opened before its number was limited are below this."""
GONE_SECONDS = 5.0
"""How long processes that were killed are waited for."""
FORK_SECONDS = 1.0
"""How long a process is tried to be forked, while the machine or its user has too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a child may take.

    Attributes:
        contained: The sandbox has a process namespace: all that a child leaves behind can be killed at once.
        landlock: Version of Landlock that the sandbox has, 0 for none; it can be nested.
        filter: What it may call of the kernel (``seccomp.compiled``); empty where the sandbox filters no calls.
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
        """The reply for a response that took more by the clock."""
        return {"error": f"deadline: more than {self.wall_seconds:g} s by the clock"}


def limits_in(report: layers.Report, *, seconds: float, wall_seconds: float, processes: int) -> Limits:
    """Return the limits of children in a sandbox."""
    contained = layers.contained(report)
    version = landlock.version_in(report["files"])
    filtered = b""
    if report["seccomp"]:
        signals = contained and version >= landlock.FIRST_WITH_SIGNALS
        filtered = seccomp.compiled(syscalls.of_response(signals=signals, groups=contained))
    return Limits(
        seconds=seconds, wall_seconds=wall_seconds, contained=contained, landlock=version, filter=filtered,
        processes=processes,
    )  # fmt: skip


class NoProcessError(Exception):
    """No process can be started: the machine or its user has too many, or too little memory."""


def in_a_child(
    work: Callable[[], bytes],
    limits: Limits,
    *,
    kinds: Collection[str] = ("error", "fault"),
    largest: int = LARGEST_REPLY,
) -> Reply:
    """Run a function in a forked process; return its reply, or one that says how it broke.

    Args:
        kinds: What its reply may say besides a score.
        largest: Bytes of the longest line.

    Raises:
        NoProcessError: It cannot be forked.
    """
    secret = os.urandom(16)
    child, reading, writing, key = _forked(secret)
    if child == 0:
        _run(work, writing, key, limits)
    os.close(writing)
    os.close(key)
    data, late = _read(reading, child, HEAD.size + largest, limits.wall_seconds)
    _kill(child, contained=limits.contained)
    _, status, used = os.wait4(child, 0)
    _wait_for_others(child, contained=limits.contained)
    data += _left(reading)
    os.close(reading)
    if late:
        return limits.late
    if not data:
        return {"error": _broken(status, used.ru_utime + used.ru_stime, limits)}
    if len(data) >= HEAD.size:
        number, length = HEAD.unpack_from(data)
        if number == secret and length == len(data) - HEAD.size:
            with contextlib.suppress(FrameError):
                return reply_in(data[HEAD.size :], kinds)
    return {"error": NO_VERDICT}


def _broken(status: int, spent: float, limits: Limits) -> str:
    """How a child ended that said nothing."""
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGPROF, -signal.SIGXCPU) or spent >= limits.seconds:
        return f"deadline: more than {limits.seconds:g} s of processor time"
    why = ": too many processes, or too much memory together" if code == -signal.SIGKILL else ""
    return f"the verifier's process ended ({ended(code)}{why})"


def ended(code: int) -> str:
    """Say how a process ended.

    Args:
        code: Its exit code, below 0 for a signal.
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _forked(secret: bytes) -> tuple[int, int, int, int]:
    """Fork; return the child (0 in the child), the ends of a pipe from it, and the end of one with the secret."""
    end = time.monotonic() + FORK_SECONDS
    while True:
        opened: list[int] = []
        try:
            opened += os.pipe()
            opened += os.pipe()
            os.write(opened[3], secret)
            os.close(opened.pop())
            return os.fork(), opened[0], opened[1], opened[2]
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            if time.monotonic() > end:
                raise NoProcessError(f"no process can be started to score a response ({error.strerror})") from None
        time.sleep(FORK_SECONDS / 20)


def _run(work: Callable[[], bytes], writing: int, key: int, limits: Limits) -> NoReturn:
    # Taken before anything is executed: a response may replace what modules and builtins hold.
    read, write, leave, head, length = os.read, os.write, os._exit, HEAD.pack, len
    try:
        confine(limits, keep=(writing, key))
        line = work()
        write(writing, head(read(key, 16), length(line)) + line)
    finally:
        leave(0)


def confine(limits: Limits, keep: Collection[int]) -> None:
    """Restrict this process for executing a response: after this it can set no limit, open no socket, change no file.

    Args:
        keep: The only file descriptors above 2 that stay open.

    Raises:
        OSError: A layer that the sandbox has cannot be entered.
    """
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, MOST_FILES)
    layers.die_with_parent()
    os.setpgid(0, 0)
    if limits.landlock:
        landlock.nest()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
    # The first limit is exact, the second cannot be ignored.
    whole = math.floor(limits.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    if limits.filter:
        # Last: it refuses all that was done here.
        seccomp.restrict(limits.filter)


def _read(reading: int, child: int, most: int, seconds: float) -> tuple[bytes, bool]:
    """Read a whole reply, or what comes before the child ends or before the time is up; say whether it was."""
    try:
        # Others that the child has started may keep its pipe open.
        ending = [os.pidfd_open(child)]
    except (AttributeError, OSError):
        ending = []
    try:
        return _read_until(reading, ending, most, time.monotonic() + seconds)
    finally:
        for descriptor in ending:
            os.close(descriptor)


def _read_until(reading: int, ending: list[int], most: int, end: float) -> tuple[bytes, bool]:
    data = b""
    while True:
        left = end - time.monotonic()
        ready = select.select([reading, *ending], [], [], left)[0] if left > 0 else []
        if not ready:
            return data, True
        if reading not in ready:
            return data, False
        part = os.read(reading, most + 1 - len(data))
        data += part
        if not part or len(data) > most:
            return data, False
        if len(data) >= HEAD.size and len(data) >= HEAD.size + HEAD.unpack_from(data)[1]:
            return data, False


def _left(reading: int) -> bytes:
    """What a child has written besides its reply."""
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(reading, 1)
    return b""


def _wait_for_others(child: int, *, contained: bool) -> None:
    """Wait until all that a child has started is gone: its memory must not count as the next response's."""
    end = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            if contained:
                os.kill(-1, 0)
            else:
                os.killpg(child, 0)
            time.sleep(0.001)


def _kill(child: int, *, contained: bool) -> None:
    if contained:
        # Everybody in the namespace but its first process and this one.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
