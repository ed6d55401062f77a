"""Open files of ledgers: locked against other writers, and held by the process that opened them alone."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

from ..contract import locks
from ..errors import LedgerError
from ..wording import reason

NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})
ANOTHER = "another writer has this ledger open; a run has one writer, so stop the other one first"

_open: set[int] = set()
# Held while a handle is opened or closed, so that no fork comes between a handle and its place in the set.
_opening = threading.RLock()


def open_locked(path: Path, *, create: bool = False) -> int:
    """Open a file for reading and writing, and lock out other writers.

    Raises:
        LedgerError: It cannot be opened, another writer has it, or its file system has no locks.
    """
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT if create else 0)
    try:
        with _opening:
            handle = os.open(path, flags, 0o644)
            _open.add(handle)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be opened for writing ({reason(error)})") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise LedgerError(f"{path}: cannot be opened for writing (it is a special file)")
        _lock(path, handle)
        if not is_same_file(path, handle):
            # Another writer put a new file in its place between the two calls.
            raise LedgerError(f"{path}: {ANOTHER}")
    except BaseException:
        close(handle)
        raise
    return handle


def close(handle: int) -> None:
    """Close a file, and release its lock with it unless another process has the handle too."""
    with _opening:
        _open.discard(handle)
        os.close(handle)


def is_same_file(path: Path, handle: int) -> bool:
    """Whether a path leads to an open file.

    Raises:
        OSError: It cannot be inspected.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False


def sync_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk.

    Raises:
        OSError: The disk refuses.
    """
    if os.name == "nt":
        # Windows opens no folders, and journals names itself.
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(path: Path, handle: int) -> None:
    try:
        locks.lock(handle)
    except BlockingIOError:
        raise LedgerError(f"{path}: {ANOTHER}") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise LedgerError(
            f"{path}: its file system has no locks ({reason(error)}), without which a second writer could not be "
            "kept out; put the ledger on one that has them, such as a local disk"
        ) from None


def _leave_to_parent() -> None:
    """In a fork: close what only the process that opened it may hold, or its lock would outlive it."""
    while _open:
        try:
            os.close(_open.pop())
        except OSError:
            # Closed already, by somebody who did not say so.
            continue
    _opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_leave_to_parent)
