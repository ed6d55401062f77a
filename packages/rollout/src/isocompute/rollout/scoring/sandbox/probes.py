"""What a response must not be able to do, tried in a process that is restricted as for executing one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_GET_NO_NEW_PRIVS = 39
IPC_PRIVATE, IPC_REMOVE = 0, 0
SECONDS = 600.0
"""How long a process that is left behind would go on."""


def tried(places: dict[str, Any]) -> dict[str, str]:
    """Try everything; return ``done`` or ``refused`` for each attempt.

    Args:
        places: What ``summary`` offers: ``folder``, ``file`` and ``socket`` (paths), ``port``, and the number of the
            engine's process.
    """
    attempts: dict[str, Callable[[dict[str, Any]], object]] = {
        "gain rights": _gain, "connect over TCP": _connect, "connect to a socket in a folder": _connect_here,
        "signal the engine": _signal, "leave a process behind": _leave, "write a file": _write,
        "change a file's mode": _chmod, "read a file of the user": _read, "change a limit": _limit,
        "make shared memory": _share, "call chmod or setxattr at all": _call,
    }  # fmt: skip
    return {name: _outcome(attempt, places) for name, attempt in attempts.items()}


def _outcome(attempt: Callable[[dict[str, Any]], object], places: dict[str, Any]) -> str:
    try:
        attempt(places)
    except (OSError, ValueError):
        return "refused"
    return "done"


def _gain(places: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        raise PermissionError(errno.EPERM, "no_new_privs is set")


def _connect(places: dict[str, Any]) -> None:
    with socket.socket() as own:
        own.settimeout(2)
        own.connect(("127.0.0.1", places["port"]))


def _connect_here(places: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(places["socket"])


def _signal(places: dict[str, Any]) -> None:
    os.kill(places["engine"], 0)


def _leave(places: dict[str, Any]) -> None:
    """Leave a process; whether it outlives this one, the engine's process sees."""
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        if os.fork() == 0:
            time.sleep(SECONDS)
        os._exit(0)


def _write(places: dict[str, Any]) -> None:
    failed = 0
    for path, mode in ((Path(places["folder"]) / "made", "w"), (Path(places["file"]), "a")):
        try:
            path.open(mode).close()
        except OSError:
            failed += 1
    if failed == 2:
        raise PermissionError(errno.EPERM, "neither can be written")


def _chmod(places: dict[str, Any]) -> None:
    Path(places["file"]).chmod(0o777)


def _read(places: dict[str, Any]) -> None:
    Path(places["file"]).read_bytes()


def _limit(places: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard - 1))


def _share(places: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(IPC_PRIVATE, 4096, 0o600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(number, IPC_REMOVE, None)


def _call(places: dict[str, Any]) -> None:
    """Call with a path that does not exist: the kernel says so where it lets the call pass."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, values in (
        ("chmod", (b"/nowhere/at/all", 0o777)),
        ("setxattr", (b"/nowhere/at/all", b"user.a", b"", 0, 0)),
    ):
        if libc[name](*values) == -1 and ctypes.get_errno() != errno.EPERM:
            return
    raise PermissionError(errno.EPERM, "both are refused")
