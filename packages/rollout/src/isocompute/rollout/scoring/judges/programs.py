"""A program run in a process of its own, with its input on standard input; what it printed is compared elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import running

LONGEST_PROGRAM = 100_000
"""Bytes of the longest program, which the kernel takes as one argument."""
FILTER = "{filter}"
"""Stands in a command for the file descriptor of a filter of system calls."""
LOOK_SECONDS = 0.05
"""Interval between looks whether a program that keeps its output open has ended, or has used up its time."""
_PART = 1 << 16
LAST_BYTES = 1 << 12
"""Bytes that are kept of the end of what a program says of its errors."""


class ProgramTooLongError(ValueError):
    """A program has more bytes than the kernel takes as one argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Separation of a program from the process that starts it."""

    command: tuple[str, ...] = ()
    """Words before a program's command, with ``FILTER`` in it; empty where the sandbox of this process is enough."""
    filter: bytes = b""
    """A filter of system calls, in the kernel's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Outcome of a program.

    Attributes:
        output: Printed bytes, one byte more than allowed at most.
        code: Its exit code, below 0 for a signal.
        late: Whether it took too long.
        seconds: Its processor time, with that of what it started where this process can see them.
        error: The last line on its standard error, which it may have made up.
    """

    output: bytes
    code: int
    late: bool
    seconds: float
    error: bytes


def run(
    program: str, given: bytes, apart: Apart, *, seconds: float, most: int, processor_seconds: float = math.inf
) -> Ran:
    """Run a Python program.

    Args:
        given: Its standard input.
        seconds: Time by the clock.
        most: Bytes that it may print.
        processor_seconds: Processor time, with that of what it starts where this process can see them.

    Raises:
        OSError: No process can be started.
        ValueError: The program is too long (``ProgramTooLongError``), or no text.
    """
    if len(program.encode()) > LONGEST_PROGRAM:
        raise ProgramTooLongError(f"the program has more than {LONGEST_PROGRAM} bytes")
    python = [sys.executable, "-s", "-P", "-B", "-X", "utf8", "-W", "ignore", "-c", program]
    reading, writing = os.pipe()
    try:
        # It fits into the pipe, and its end is where the filter ends.
        os.write(writing, apart.filter)
        os.close(writing)
        command = [str(reading) if word == FILTER else word for word in apart.command] + python
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(reading,) if apart.filter else (),
        )
    finally:
        os.close(reading)
    end, errors = time.monotonic() + seconds, bytearray()
    seen, before = 0.0, spent()

    def late() -> bool:
        nonlocal seen
        used = running.clock(process.pid)
        if apart.command:
            # What is around it takes none, and its own processes can be seen from here. With their namespace those end
            # that it has not waited for, and nobody counts them any more.
            used = sum(each.used + each.reaped for each in running.descendants(process.pid, ended=True))
        seen = max(seen, used)
        return time.monotonic() > end or seen > processor_seconds

    try:
        output, is_late = _talk(process, given, late, most, errors)
        if not is_late and len(output) <= most:
            is_late = _late(process, late, errors)
    finally:
        killed = False
        # Without a namespace of its own the sandbox may signal nobody: the worker ends the program with the response.
        with contextlib.suppress(PermissionError):
            process.kill()
            killed = True
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    said = bytes(errors).rstrip().rpartition(b"\n")[2]
    code = process.wait() if killed else -signal.SIGKILL
    return Ran(output=output, code=code, late=is_late, seconds=max(seen, spent() - before), error=said)


def spent() -> float:
    """Return the processor time of all programs that this process has run, s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _talk(
    process: subprocess.Popen[bytes], given: bytes, late: Callable[[], bool], most: int, errors: bytearray
) -> tuple[bytes, bool]:
    """Write input and read output until it ends, is too much, or the time is up; return whether it was up."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    left, output = memoryview(given), bytearray()
    os.set_blocking(process.stdin.fileno(), False)
    os.set_blocking(process.stderr.fileno(), False)
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ)
        pipes.register(process.stderr, selectors.EVENT_READ)
        if left:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        looked = time.monotonic()
        while True:
            if time.monotonic() - looked > LOOK_SECONDS:
                if late():
                    return bytes(output), True
                looked = time.monotonic()
            # Seen before what it printed is read, so that nothing printed is missed.
            ended = process.poll() is not None
            ready = {key.fileobj for key, _ in pipes.select(0 if ended else LOOK_SECONDS)}
            if process.stderr in ready and not _heard(process, errors):
                pipes.unregister(process.stderr)
            if process.stdout in ready:
                part = os.read(process.stdout.fileno(), min(_PART, most + 1 - len(output)))
                output += part
                if not part or len(output) > most:
                    return bytes(output), False
            elif ended:
                # Others that it started may hold the pipe open.
                return bytes(output), False
            if process.stdin in ready:
                try:
                    left = left[os.write(process.stdin.fileno(), left[:_PART]) :]
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    pipes.unregister(process.stdin)
                    process.stdin.close()


def _heard(process: subprocess.Popen[bytes], errors: bytearray) -> bool:
    """Read what is there of a program's standard error, and keep the end; return whether there may be more."""
    assert process.stderr is not None
    try:
        part = os.read(process.stderr.fileno(), _PART)
    except BlockingIOError:
        return True
    errors += part
    del errors[:-LAST_BYTES]
    return bool(part)


def _late(process: subprocess.Popen[bytes], late: Callable[[], bool], errors: bytearray) -> bool:
    """Wait for the end of a program that has closed its output; return whether its time was up before."""
    while True:
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            _heard(process, errors)
            if late():
                return True
        else:
            _heard(process, errors)
            return False
