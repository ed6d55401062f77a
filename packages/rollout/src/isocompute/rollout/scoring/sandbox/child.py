"""A process for one response, killed with everything that it started.

What it executes shares its memory, and nothing in one memory is safe from the rest of it. So the child has no way to
the engine: it holds one pipe, to the worker, on which a single reply counts that begins with a number drawn for this
response. A response that is executed inside a verifier can end the child or write to the pipe, which earns nothing; it
would have to find that number in the interpreter's own stack to forge a reply.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from . import landlock, layers, seccomp, syscalls

HEAD = struct.Struct("=16sI")
"""What a reply begins with: the number drawn, and the length of the rest."""
LARGEST_REPLY = 4096
FORK_SECONDS = 1.0
"""How long a process is tried to be forked, while the machine or its user has too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a child may take.

    Attributes:
        seconds: Processor time.
        wall_seconds: Time by the clock.
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
    def late(self) -> bytes:
        """The line for a response that took more by the clock."""
        return said({"error": f"deadline: more than {self.wall_seconds:g} s by the clock"})


def limits_in(report: layers.Report, *, seconds: float, wall_seconds: float, processes: int) -> Limits:
    """Return the limits of children in a sandbox.

    Args:
        report: The layers of the sandbox.
        seconds: As in ``Limits``.
        wall_seconds: As in ``Limits``.
        processes: As in ``Limits``.
    """
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


def said(reply: Any) -> bytes:
    """Return a reply as a line."""
    return json.dumps(reply).encode() + b"\n"


def in_a_child(work: Callable[[], bytes], limits: Limits, *, largest: int = LARGEST_REPLY) -> bytes:
    """Run a function in a forked process; return its line, or one that says how it broke.

    Args:
        work: Returns a line.
        limits: What it may take.
        largest: Bytes of the longest line.
    """
    secret = os.urandom(16)
    try:
        child, reading, writing = _forked()
    except OSError as error:
        return said({"fault": f"no process can be started to score a response ({error.strerror})"})
    if child == 0:
        _run(work, secret, writing, limits)
    os.close(writing)
    data, late = _read(reading, HEAD.size + largest, limits.wall_seconds)
    os.close(reading)
    _kill(child, contained=limits.contained)
    _, status, used = os.wait4(child, 0)
    if late:
        return limits.late
    if not data:
        spent = used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGPROF, -signal.SIGXCPU) or spent >= limits.seconds:
            return said({"error": f"deadline: more than {limits.seconds:g} s of processor time"})
        return said({"error": f"the verifier's process ended ({ended(code)})"})
    if len(data) >= HEAD.size:
        number, length = HEAD.unpack_from(data)
        if number == secret and length == len(data) - HEAD.size:
            return data[HEAD.size :]
    return said({"error": "the verifier's process wrote something that is not a verdict"})


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


def _forked() -> tuple[int, int, int]:
    """Fork; return the child (0 in the child) and the two ends of a pipe."""
    end = time.monotonic() + FORK_SECONDS
    while True:
        reading = writing = -1
        try:
            reading, writing = os.pipe()
            return os.fork(), reading, writing
        except OSError:
            for descriptor in (reading, writing):
                if descriptor >= 0:
                    os.close(descriptor)
            if time.monotonic() > end:
                raise
        time.sleep(FORK_SECONDS / 20)


def _run(work: Callable[[], bytes], secret: bytes, writing: int, limits: Limits) -> NoReturn:
    # Taken before anything is executed: a response may replace what modules and builtins hold.
    write, leave, head, length = os.write, os._exit, HEAD.pack, len
    try:
        confine(limits, writing)
        line = work()
        write(writing, head(secret, length(line)) + line)
    finally:
        leave(0)


def confine(limits: Limits, keep: int) -> None:
    """Restrict this process for executing a response: after this it can set no limit, open no socket, change no file.

    Args:
        limits: What it may take.
        keep: The only file descriptor above 2 that stays open.

    Raises:
        OSError: A layer that the sandbox has cannot be entered.
    """
    os.closerange(3, keep)
    os.closerange(keep + 1, layers.FILES)
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


def _read(reading: int, most: int, seconds: float) -> tuple[bytes, bool]:
    """Read a whole reply, or what comes before the end or before the time is up; say whether it was."""
    end = time.monotonic() + seconds
    data = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return data, True
        part = os.read(reading, most + 1 - len(data))
        data += part
        if not part or len(data) > most:
            return data, False
        if len(data) >= HEAD.size and len(data) >= HEAD.size + HEAD.unpack_from(data)[1]:
            return data, False


def _kill(child: int, *, contained: bool) -> None:
    if contained:
        # Everybody in the namespace but its first process and this one.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
