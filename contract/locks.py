"""Locks on files, of POSIX and of Windows: whole files, advisory, released when the process ends.

Libraries lock another file beside it (filelock) or, on Windows, the bytes that readers need (portalocker); a ledger is
read while it is written.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import Any

BYTE = 2**31 - 2
"""The byte that is locked on Windows, where a locked byte cannot be read: the last one that its C library locks."""

TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})


def lock(handle: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file.

    Args:
        shared: Whether others may hold a shared lock too; on Windows all locks are exclusive.

    Raises:
        BlockingIOError: Another holds it, and this does not wait.
        OSError: Its file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        _lock_byte(handle, wait=wait)
        return
    # flock, not lockf: a POSIX lock is released as soon as the process closes the file after reading it.
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def unlock(handle: int) -> None:
    """Release a lock, also for the forks that hold the descriptor."""
    try:
        import fcntl
    except ImportError:
        msvcrt = _at_byte(handle)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
        return
    fcntl.flock(handle, fcntl.LOCK_UN)


def _lock_byte(handle: int, *, wait: bool) -> None:
    msvcrt = _at_byte(handle)
    while True:
        try:
            # LK_LOCK tries for ten seconds.
            msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
            if not wait:
                raise BlockingIOError(error.errno, error.strerror) from None
        else:
            return


def _at_byte(handle: int) -> Any:
    os.lseek(handle, BYTE, os.SEEK_SET)
    return import_module("msvcrt")
