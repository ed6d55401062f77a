"""What attacks reach for, and whether they reached it: files, sockets, shared memory, processes, an engine's limits."""

import contextlib
import ctypes
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from scoring.attacks import Attack

SECRET = "a-token-of-the-engine"
QUIET_SECONDS = 3.0
"""How long processes that were killed may take to be gone."""
_C = ctypes.CDLL(None)


class Outside:
    """Things that no response may change, in a folder of their own, watched from the process that is the engine.

    Args:
        module: A module of verifiers, in a folder of its own that the sandbox may read.
        memory_bytes: Memory that a response may have.
        seconds: Processor time that it may have.
        everyone: Whom an attack on all processes signals.
    """

    def __init__(self, module: Path, *, memory_bytes: int, seconds: float, everyone: int = -1) -> None:
        # Not below pytest's folder: the address of a socket's file may have 107 bytes.
        self.folder, self.module = Path(tempfile.mkdtemp(prefix="outside", dir="/tmp")), module
        self.folder.chmod(0o777)
        self.known = self.folder / "known"
        self.known.write_text(SECRET)
        self.known.chmod(0o640)
        with contextlib.suppress(OSError):
            os.setxattr(self.known, "user.known", b"1")
        for path in (self.known, self.module):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        # The module's folder is the working folder of many.
        for name in ("problems.jsonl", ".env", ".git/config", "neighbour.py"):
            (module.parent / name).parent.mkdir(exist_ok=True)
            (module.parent / name).write_text(f'SECRET = "{SECRET}"' if name.endswith(".py") else SECRET)
        if not (module.parent / "link").is_symlink():
            (module.parent / "link").symlink_to(self.known)
        self._key = 0x5C00_0000 | (os.getpid() & 0xFFFF) << 8
        self._marks = (str(module.parent), f"{10**8 + os.getpid()}.{time.monotonic_ns()}")
        self._listeners = self._listening()
        port = self._listeners["TCP"].getsockname()[1]
        self._names = {
            "known": str(self.known),
            "module": str(module),
            "folder": str(self.folder),
            "made": str(self.folder / "made"),
            "engine": str(os.getpid()),
            "everyone": str(everyone),
            "key": str(self._key),
            "memory": str(memory_bytes),
            "seconds": str(seconds),
            "work": str(module.parent),
            "marker": self._marks[1],
            "port": str(port),
            "unix": str(self.folder / "socket"),
            "abstract": self._marks[1],
        }
        os.environ["ISOCOMPUTE_SECRET"] = SECRET

    def text(self, attack: Attack, right: str, *, number: int = 0) -> str:
        """The response; a number makes it another one, and its processes are known by the mark at its end."""
        text = attack.text
        for name, value in {**self._names, "right": repr(right)}.items():
            text = text.replace("{" + name + "}", value)
        return text if attack.kind == "parsers" else f"{text}\n# {self._marks[1]} {number}"

    def state(self) -> dict[str, Any]:
        """All that must stay as it is."""
        paths = [self.folder, self.module, *sorted(self.folder.rglob("*"))]
        return {
            **{str(path): _described(path) for path in paths},
            "the engine": _rights(os.getpid()),
            "shared memory": self._shared(),
            **{f"process {pid}": _rights(pid) for pid in self.processes()},
        }

    def changes(self, before: dict[str, Any]) -> list[str]:
        """What is otherwise than before; a process that was replaced is no change, one more is."""
        end = time.monotonic() + QUIET_SECONDS
        most = sum(name.startswith("process ") for name in before)
        while len(self.processes()) > most and time.monotonic() < end:
            time.sleep(0.05)
        after = self.state()
        found = [f"left {len(self.processes()) - most} processes"] if len(self.processes()) > most else []
        for name in sorted({*before, *after}):
            if name.startswith("process ") and (name not in before or name not in after):
                continue
            if before.get(name) != after.get(name):
                found.append(f"changed {name}: {_difference(before.get(name), after.get(name))}")
        return found + [f"reached {name}" for name in self._reached()]

    def processes(self) -> list[int]:
        """The processes of a sandbox and of responses; one that only waits to be reaped is none."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                ours = any(mark.encode() in command for mark in self._marks) and int(folder.name) != os.getpid()
                if ours and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(folder.name))
        return sorted(found)

    def close(self) -> None:
        """Remove all, also what attacks left."""
        for listener in self._listeners.values():
            listener.close()
        for k in range(10):
            _C.shmctl(_C.shmget(self._key + k, 0, 0), 0, None)
        _C.msgctl(_C.msgget(self._key, 0), 0, None)
        _C.semctl(_C.semget(self._key, 0, 0), 0, 0, None)
        _C.mq_unlink(f"/isocompute-{self._key}".encode())
        Path(f"/dev/shm/isocompute-{self._key}").unlink(missing_ok=True)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        shutil.rmtree(self.folder)
        os.environ.pop("ISOCOMPUTE_SECRET", None)

    def _listening(self) -> dict[str, socket.socket]:
        found = {
            "TCP": socket.socket(),
            "UDP": socket.socket(type=socket.SOCK_DGRAM),
            "a socket's file": socket.socket(socket.AF_UNIX),
            "an abstract socket": socket.socket(socket.AF_UNIX),
        }
        found["TCP"].bind(("127.0.0.1", 0))
        found["UDP"].bind(found["TCP"].getsockname())
        found["a socket's file"].bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        found["an abstract socket"].bind("\0" + self._marks[1])
        for name, listener in found.items():
            listener.setblocking(False)
            if name != "UDP":
                listener.listen()
        return found

    def _reached(self) -> list[str]:
        found = []
        for name, listener in self._listeners.items():
            with contextlib.suppress(BlockingIOError):
                if name == "UDP":
                    listener.recv(9)
                else:
                    listener.accept()[0].close()
                found.append(name)
        return found

    def _shared(self) -> list[str]:
        keys = {str(self._key + k) for k in range(10)}
        tables = [Path(f"/proc/sysvipc/{kind}") for kind in ("shm", "msg", "sem")]
        lines = [line for table in tables for line in table.read_text().splitlines() if line.split()[0] in keys]
        return lines + [str(path) for path in Path("/dev/shm").glob(f"isocompute-{self._key}*")]


def _described(path: Path) -> Any:
    status = path.lstat()
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path)}
    what = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    # Connecting to a socket does not change it, and a folder's size and times tell what its list tells.
    times = status.st_mtime_ns if path.is_file() else 0
    return status.st_mode, status.st_uid, status.st_gid, status.st_nlink, times, attributes, what


def _rights(pid: int) -> Any:
    """Limits and priority of a process, without what changes by itself."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        worst = Path(f"/proc/{pid}/oom_score_adj").read_text()
        ranks = (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), _C.syscall(252, 1, pid))
        return [*limits, worst, ranks, sorted(os.sched_getaffinity(pid))]
    except OSError:
        return None


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        return "; ".join(f"{a!r} is now {b!r}"[:160] for a, b in zip(before, after, strict=True) if a != b)
    return f"{before!r} is now {after!r}"[:160]
