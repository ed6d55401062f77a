"""The file of a ledger and its one writer: bytes are written, synced and taken back, whatever they mean."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from ..errors import LedgerError
from ..wording import reason
from . import frames

NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})
UNSYNCED = "it could not be synced to the disk"
ANOTHER = "another writer has this ledger open; a run has one writer, so stop the other one first"


class Writer:
    """A ledger's file, locked.

    Only the process that opened it may use it, and after a failed sync no process may, since the system forgets which
    bytes it could not put on the disk.

    Attributes:
        path: The file.
        size: Length of what is whole.
        synced: Length of what is known to be on the disk.
    """

    def __init__(self, path: Path, handle: int, *, made: bool) -> None:
        self.path = path
        self.size = 0
        self.synced = 0
        self._made = made
        self._handle: int | None = handle
        self._process = os.getpid()
        self._failure = ""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file, created empty if it does not exist, and lock out other writers.

        Raises:
            LedgerError: It cannot be opened, another writer has it, or its file system has no locks.
        """
        made = not os.path.lexists(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise LedgerError(f"{path}: cannot be opened for writing ({reason(error)})") from None
        try:
            _lock(path, handle)
            if not _is_same_file(path, handle):
                # Another writer put a new file in its place between the two calls.
                raise LedgerError(f"{path}: {ANOTHER}")
        except BaseException:
            os.close(handle)
            raise
        return cls(path, handle, made=made)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._handle is None

    @property
    def unusable(self) -> bool:
        """Whether it refuses everything, because a sync failed or its file is gone."""
        return bool(self._failure)

    @property
    def forked(self) -> bool:
        """Whether it belongs to another process, of which this one is a fork."""
        return os.getpid() != self._process

    def check(self) -> int:
        """The handle.

        Raises:
            LedgerError: It is closed, belongs to another process, or a sync failed.
        """
        if self._handle is None:
            raise LedgerError(f"{self.path}: the ledger is closed")
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self.path}: was opened by process {self._process} and is used by its fork {os.getpid()}; a ledger "
                "has one writer, so charge through the process that opened it"
            )
        if self._failure:
            raise LedgerError(
                f"{self.path}: takes no more charges, because {self._failure}; open it again once that is fixed"
            )
        return self._handle

    def read(self) -> bytes:
        """The whole file.

        Raises:
            OSError: It cannot be read.
        """
        handle = self.check()
        with os.fdopen(os.dup(handle), "rb") as stream:
            stream.seek(0)
            return stream.read()

    def resume(self, data: bytes, *, whole: int, synced: int) -> None:
        """Continue after the whole part, and cut off the rest.

        Bytes past the watermark are written again: a sync may have failed, after which the system treats bytes as
        written that never reached the disk.

        Args:
            data: The file's content.
            whole: Length of the part that is whole.
            synced: The watermark.

        Raises:
            OSError: It cannot be written.
        """
        handle = self.check()
        os.ftruncate(handle, whole)
        _write(handle, data[synced:whole], synced)
        self.size, self.synced = whole, synced

    def renew(self, content: bytes) -> None:
        """Replace the file by a synced one of the current version, whole or not at all.

        Args:
            content: What follows the head.

        Raises:
            OSError: It cannot be written.
        """
        old = self.check()
        place = Path(os.path.realpath(self.path))
        aside = place.with_name(f".{place.name}.new")
        handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _lock(aside, handle)
            os.fchmod(handle, os.fstat(old).st_mode & 0o777)
            _write(handle, frames.head() + content, 0)
            self._handle, self.size = handle, frames.HEAD_BYTES + len(content)
            self._flush(handle, self.size)
            aside.replace(place)
        except BaseException:
            self._handle = old
            os.close(handle)
            aside.unlink(missing_ok=True)
            raise
        os.close(old)

    def append(self, record: bytes, what: str, *, sync: bool) -> None:
        """Add a record to the file, whole or not at all.

        Args:
            record: The record.
            what: What the record is, for error messages.
            sync: Whether to return only once it is on the disk, and everything before.

        Raises:
            LedgerError: The file cannot be written or synced, is gone, or the writer may not be used.
        """
        handle = self.check()
        if sync:
            self._check_place()
        try:
            _write(handle, record, self.size)
        except OSError as error:
            kept = self._take_back(handle)
            raise LedgerError(f"{self.path}: {what} could not be written ({reason(error)}) and {kept}") from None
        if sync:
            try:
                self._flush(handle, self.size + len(record))
            except OSError as error:
                # Before anything else, so that no interruption comes between.
                self._failure = UNSYNCED
                kept = self._take_back(handle)
                raise LedgerError(
                    f"{self.path}: {what} could not be synced to the disk ({reason(error)}) and {kept}; this ledger "
                    "takes no more charges, so open it again once the disk works again"
                ) from None
        self.size += len(record)

    def sync(self) -> None:
        """Return once everything is on the disk.

        Raises:
            LedgerError: The disk refuses, the file is gone, or the writer may not be used.
        """
        handle = self.check()
        self._check_place()
        try:
            self._flush(handle, self.size)
        except OSError as error:
            self._failure = UNSYNCED
            raise LedgerError(
                f"{self.path}: cannot be synced to the disk ({reason(error)}); this ledger takes no more charges, so "
                "open it again once the disk works again"
            ) from None

    def close(self) -> None:
        """Release the lock, without a sync. Closing twice does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if not self.forked:
            # Forks hold the handle too, and would keep other writers out.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def abandon(self) -> None:
        """Close, and remove a file that was created and never written to."""
        if self._made and self._handle is not None and not os.fstat(self._handle).st_size:
            self.path.unlink(missing_ok=True)
        self.close()

    def _flush(self, handle: int, size: int) -> None:
        os.fsync(handle)
        if size != self.synced:
            _write(handle, frames.encode_watermark(size), frames.WATERMARK_AT)
            self.synced = size

    def _take_back(self, handle: int) -> str:
        """Cut off what was added after the last whole record, and return what became of it, in words."""
        try:
            os.ftruncate(handle, self.size)
        except OSError as error:
            self._failure = self._failure or f"a record could not be taken back ({reason(error)})"
            return "may be counted or not, because it could not be taken back"
        return "is not counted"

    def _check_place(self) -> None:
        try:
            there = _is_same_file(self.path, self.check())
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be inspected ({reason(error)}), so nothing is charged") from None
        if not there:
            self._failure = "its file was removed or replaced while it was open"
            raise LedgerError(
                f"{self.path}: was removed or replaced while it was open, so what is charged to it could not be read; "
                "this ledger takes no more charges"
            )


def _lock(path: Path, handle: int) -> None:
    try:
        # flock, not lockf: a POSIX lock is released as soon as the process closes the file after reading it.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LedgerError(f"{path}: {ANOTHER}") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise LedgerError(
            f"{path}: its file system has no locks ({reason(error)}), without which a second writer could not be "
            "kept out; put the ledger on one that has them, such as a local disk"
        ) from None


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write(handle: int, content: bytes, position: int) -> None:
    """Write at a position, in one call unless the disk is full, which the next call then reports."""
    written = 0
    while written < len(content):
        written += os.pwrite(handle, content[written:], position + written)


def sync_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk.

    Raises:
        OSError: The disk refuses.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
