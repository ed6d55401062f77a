"""Control groups (version 2): where the engine may make one for a sandbox, the kernel itself limits its memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CONTROLLERS = frozenset({"memory", "pids"})
NAME = "isocompute"
_numbers = itertools.count(1)


def make() -> str:
    """Make a group, beside this process's or in it; return its folder, an empty text where that is not possible.

    The limits must be delegated: on in the folder above, which this user may write. Those of engines that were killed
    are removed.
    """
    with contextlib.suppress(OSError):
        own = next(line[3:] for line in OWN.read_text().splitlines() if line.startswith("0::"))
        place = ROOT / own.lstrip("/")
        for folder in (place, place.parent):
            if folder.is_relative_to(ROOT) and _delegated(folder):
                for old in folder.glob(f"{NAME}-*"):
                    if not Path("/proc", old.name.split("-")[1]).exists():
                        remove(str(old))
                made = folder / f"{NAME}-{os.getpid()}-{next(_numbers)}"
                made.mkdir()
                return str(made)
    return ""


def _delegated(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        on = (folder / "cgroup.subtree_control").read_text().split()
        return set(on) >= CONTROLLERS and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return False


def remove(folder: str) -> None:
    """Remove a group whose processes have ended."""
    if folder:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


class Group:
    """A group's files, opened while that is allowed; none without a folder."""

    def __init__(self, folder: str) -> None:
        self._files: dict[str, int] = {}
        if folder:
            with contextlib.suppress(OSError):
                for name in ("cgroup.procs", "memory.current", "memory.max", "memory.swap.max", "pids.max"):
                    mode = os.O_RDONLY if name.endswith("current") else os.O_WRONLY
                    self._files[name] = os.open(f"{folder}/{name}", mode)

    def enter(self) -> None:
        """Put this process and what it will start into the group."""
        self._write("cgroup.procs", 0)

    def limit(self, memory_bytes: int, processes: int) -> bool:
        """Limit what is started from now on, besides what is there already; return whether the kernel does."""
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
