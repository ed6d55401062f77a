"""The first process of a sandbox: it sets up what needs privileges, and ends everything with the engine's process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from . import kernel, layers
from .child import ended
from .nursery import nurse
from .watch import LOOK_SECONDS, Watch

POLL_SECONDS = 0.2
"""Interval between looks where the kernel has no file descriptor for a process."""


def launch(settings: dict[str, Any]) -> None:
    """Start the nursery and wait until it ends, or until the engine's process closes its end of the pipe."""
    with contextlib.suppress(OSError):
        # Where the machine's memory is short, a sandbox ends before any engine; it can be started again.
        Path("/proc/self/oom_score_adj").write_text("1000")
    report = layers.enter(settings["readable"], settings["without"])
    os.chdir("/")
    with contextlib.suppress(OSError):
        # Whoever loses its parent becomes a child of this process.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    nursery = os.fork()
    if nursery == 0:
        nurse(settings, report)
        os._exit(0)
    # Asked to end, it still ends all others first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The pipe of replies must end with those that write to it.
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        _wait(nursery, Watch(settings["memory_bytes"]) if settings["executing"] else None)
    finally:
        _end_children()


def _wait(nursery: int, watch: Watch | None) -> None:
    poll = select.poll()
    # Asked for nothing, poll reports that the other end was closed.
    poll.register(0, 0)
    timeout: float | None = None
    try:
        poll.register(os.pidfd_open(nursery), select.POLLIN)
    except (AttributeError, OSError):
        timeout = POLL_SECONDS * 1000
    if watch is not None:
        timeout = LOOK_SECONDS * 1000
    while not poll.poll(timeout):
        _reap(nursery)
        if os.waitid(os.P_PID, nursery, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        if watch is not None:
            watch.look()
    end = os.waitid(os.P_PID, nursery, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is not None and end.si_status:
        print(f"the process that loads the library ended ({_how(end)})", file=sys.stderr, flush=True)


def _reap(nursery: int) -> None:
    """Reap orphans that have ended."""
    while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and end.si_pid != nursery:
        os.waitpid(end.si_pid, 0)


def _how(end: os.waitid_result) -> str:
    return ended(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)


def _end_children() -> None:
    """Kill all descendants: the children, and their children once they are orphans."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in listed.read_text().split():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(child), signal.SIGKILL)
            os.wait()
