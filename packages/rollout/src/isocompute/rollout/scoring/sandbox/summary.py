"""What the sandbox is made of on this machine, in words: only what a process in it has just been refused."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import ScoringConfig
from .layers import Report, isolated
from .process import ScoringProcess
from .watch import descendants

MEANING = {
    "no_new_privs": "no program gains rights",
    "user": "the user's rights are given up",
    "network": "nothing can be reached",
    "processes": "all end together, none outside is signalled",
    "files": "nothing is written",
    "seccomp": "only system calls that verifiers need pass",
}
"""What each layer is for."""
ATTEMPTS = {
    "gain rights": "no_new_privs", "connect over TCP": "network", "connect to a socket in a folder": "network",
    "signal the engine": "processes", "leave a process behind": "processes", "write a file": "files",
    "change a file's mode": "files", "change a limit": "seccomp", "make shared memory": "seccomp",
    "call chmod or setxattr at all": "seccomp",
}  # fmt: skip
"""What must be refused for a layer to be named (``probes.tried``)."""
READING = "read a file of the user"
ENDING_SECONDS = 1.0
"""Within this time a process that a response has left behind must have ended."""
STANDING = 2
"""Processes that stand when nothing is scored: one that loads the library, and a worker."""


def sandbox_layers(config: ScoringConfig | None = None) -> Report:
    """Start a sandbox and return what each of its layers came to; an empty text where the kernel has none.

    Raises:
        RolloutError: The sandbox does not start.
    """
    process = ScoringProcess("exact", config or ScoringConfig())
    try:
        return process.started()
    finally:
        process.close()


def report(config: ScoringConfig | None = None) -> list[str]:
    """Try in a sandbox what a response must not do; return a line for each layer, each limit, and what that allows.

    Raises:
        RolloutError: The sandbox does not start, or the test process in it gives no answer.
    """
    config = config or ScoringConfig()
    process = ScoringProcess("exact", config)
    try:
        layers = process.started()
        outcomes = _outcomes(process)
        user = _user(process.pid)
    finally:
        process.close()
    said = {name: words(name, layers, outcomes) for name in MEANING}
    if layers["files"] and outcomes.get(READING) != "refused":
        said["files"] += ", but what its user may read can be read"
    said["user"] = f"{layers['user'] or 'missing'}: the engine's own user" if user == os.geteuid() else layers["user"]
    lines = [f"{name} ({meaning}): {said[name]}" for name, meaning in MEANING.items()]
    lines.append(
        f"limits: {config.seconds:g} s of processor time and {config.wall_seconds:g} s by the clock for a response, "
        f"{config.memory_bytes / 2**30:g} GiB of memory; processes for each library: {config.processes}"
    )
    allowed = isolated(layers) or config.allow_unisolated
    lines.append("rules that may execute a response: " + ("allowed" if allowed else "refused, for lack of isolation"))
    return lines


def words(layer: str, layers: Mapping[str, str], outcomes: Mapping[str, str]) -> str:
    """Return what a layer came to, if all that it is there for was refused.

    Args:
        layers: What each came to when it was set up.
        outcomes: ``refused`` or ``done`` for each attempt.
    """
    if not layers.get(layer):
        return "missing"
    done = [attempt for attempt, of in ATTEMPTS.items() if of == layer and outcomes.get(attempt) != "refused"]
    return f"not shown: a test process could {done[0]}" if done else layers[layer]


def _outcomes(process: ScoringProcess) -> dict[str, str]:
    """Have a process of the sandbox try everything, on a file and on sockets made for it."""
    with (
        tempfile.TemporaryDirectory(prefix="isocompute-report-") as folder,
        socket.socket() as listener, socket.socket(socket.AF_UNIX) as here,
    ):  # fmt: skip
        Path(folder).chmod(0o777)
        file = Path(folder) / "file"
        file.write_text("a file of the user")
        file.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        here.bind(str(Path(folder) / "socket"))
        for bound in (listener, here):
            bound.listen()
        places: dict[str, Any] = {
            "folder": folder, "file": str(file), "socket": str(Path(folder) / "socket"),
            "port": listener.getsockname()[1], "engine": os.getpid(),
        }  # fmt: skip
        reply = process.each("probes", [places])[0]
    outcomes: dict[str, str] = json.loads(reply["probes"]) if "probes" in reply else {}
    end = time.monotonic() + ENDING_SECONDS
    while outcomes.get("leave a process behind") == "done" and time.monotonic() < end:
        if sum(1 for _ in descendants(process.pid)) <= STANDING:
            # It was left, and was ended.
            outcomes["leave a process behind"] = "refused"
        time.sleep(ENDING_SECONDS / 100)
    return outcomes


def _user(pid: int) -> int:
    """The user that a process runs as, seen from here."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return os.geteuid()
