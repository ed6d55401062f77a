"""The file of a ledger and its one writer: bytes are written, synced and taken back, whatever they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from ..contract import locks
from ..contract.files import atomic_write
from ..errors import LedgerError
from ..wording import reason
from . import frames, handles

UNSYNCED = "it could not be synced to the disk"


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
        """Open a file, created with a head and no records if it does not exist, and lock out other writers.

        Raises:
            LedgerError: It cannot be opened, another writer has it, or its file system has no locks.
        """
        place = Path(os.path.realpath(path))
        made = not os.path.lexists(place)
        if made:
            # Whole at once, so that an empty file is never a ledger that is only beginning.
            try:
                with atomic_write(place, error=LedgerError, replace=False) as stream:
                    stream.write(frames.head(frames.HEAD_BYTES))
            except LedgerError:
                if not os.path.lexists(place):
                    raise
                # Another writer was quicker.
                made = False
        return cls(path, handles.open_locked(path), made=made)

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
            whole: Length of the part that is whole.

        Raises:
            OSError: It cannot be written.
        """
        handle = self.check()
        os.ftruncate(handle, whole)
        _write(handle, data[synced:whole], synced)
        self.size, self.synced = whole, synced

    def append(self, record: bytes, what: str, *, sync: bool) -> None:
        """Add a record to the file, whole or not at all.

        Args:
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
        # A fork has left it to the process that opened it.
        if not self.forked:
            # Forks by other means than Python's hold the handle too, and would keep other writers out.
            locks.unlock(handle)
            handles.close(handle)

    def abandon(self) -> None:
        """Close, and remove a file that was created and holds no record."""
        if self._made and self._handle is not None and os.fstat(self._handle).st_size <= frames.HEAD_BYTES:
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
            there = handles.is_same_file(self.path, self.check())
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be inspected ({reason(error)}), so nothing is charged") from None
        if not there:
            self._failure = "its file was removed or replaced while it was open"
            raise LedgerError(
                f"{self.path}: was removed or replaced while it was open, so what is charged to it could not be read; "
                "this ledger takes no more charges"
            )


def _write(handle: int, content: bytes, position: int) -> None:
    """Write at a position, in one call unless the disk is full, which the next call then reports."""
    written = 0
    while written < len(content):
        if hasattr(os, "pwrite"):
            written += os.pwrite(handle, content[written:], position + written)
        else:
            # Windows; only one thread writes at a time.
            os.lseek(handle, position + written, os.SEEK_SET)
            written += os.write(handle, content[written:])
