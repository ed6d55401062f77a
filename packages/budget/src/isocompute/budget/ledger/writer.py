"""The file of a ledger: locked by its one writer, written, synced and taken back, and read record by record."""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..checks import reason
from ..contract import locks
from ..contract.files import atomic_write
from ..errors import LedgerError
from . import frames
from .fold import Fold
from .frames import Origin, decode_origin

NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})
ANOTHER = "another writer has this ledger open; a run has one writer, so stop the other one first"

_open: set[int] = set()
# Held while a handle is opened or closed, so that no fork comes between a handle and its entry in the set.
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
        close_handle(handle)
        raise
    return handle


def close_handle(handle: int) -> None:
    """Close a file, and release its lock with it unless another process has the handle too."""
    with _opening:
        _open.discard(handle)
        os.close(handle)


def is_same_file(path: Path, handle: int) -> bool:
    """Return whether a path leads to an open file.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Charges in the order in which they were made, a column each.

    Attributes:
        attempt: Number of the attempt, from 1.
        step: Update step.
        cohort: Index of the cohort in ``COHORTS``.
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens.
        response_tokens: Response tokens.
    """

    attempt: array[int]
    step: array[int]
    cohort: array[int]
    rollouts: array[int]
    prompt_tokens: array[int]
    response_tokens: array[int]

    def columns(self) -> tuple[array[int], ...]:
        """The columns, in the order above."""
        return (self.attempt, self.step, self.cohort, self.rollouts, self.prompt_tokens, self.response_tokens)


class Reading:
    """The state of a ledger after the records taken so far.

    Attributes:
        fold: Their sums, up to the last ``end_attempt``.
        run_id: The run; empty before the first attempt.
        charges: Every charge, up to the last ``end_attempt``.
        times: Attempt, step and device-seconds of the charges that took device time.
        origins: When and where each attempt began; None where the file does not say.
    """

    def __init__(self, where: str) -> None:
        self.fold = Fold()
        self.run_id = ""
        self.charges = Charges(**{name: array("q") for name in Charges.__slots__})
        self.times: list[tuple[int, int, float]] = []
        self.origins: list[Origin | None] = []
        self._where = where
        self._entries: list[bytes] = []

    def take(self, payload: bytes, number: int) -> None:
        """Take the next record, or several charges as one.

        Raises:
            LedgerError: It is of another run, or not a record that this version knows; an unknown ancillary one
                is left out.
        """
        try:
            self._take(payload)
        except LedgerError:
            raise
        except (struct.error, ValueError) as error:
            raise LedgerError(f"{self._where}: record {number} is not one that this version knows ({error})") from None

    def end_attempt(self) -> None:
        """Fold the attempt's charges; the times and empty steps among them do not depend on their order.

        Raises:
            LedgerError: A charge is not one that this version knows.
        """
        attempt = len(self.fold.resumed_from)
        try:
            columns = frames.entry_columns(b"".join(self._entries))
        except ValueError as error:
            raise LedgerError(
                f"{self._where}: a charge of attempt {attempt} is not one that this version knows ({error})"
            ) from None
        self._entries = []
        self.fold.charge_all(*columns)
        attempts = array("q", [attempt]) * len(columns[0])
        for whole, part in zip(self.charges.columns(), (attempts, *columns), strict=True):
            whole.extend(part)

    def _take(self, payload: bytes) -> None:
        kind = payload[0] if payload else None
        if kind == frames.ATTEMPT:
            self._begin(*frames.decode_attempt(payload))
        elif kind in (frames.LIMIT, frames.TIMED_LIMIT):
            self.fold.limits = frames.decode_limits(payload)
        elif kind == frames.ORIGIN_KIND and self.origins:
            self.origins[-1] = decode_origin(payload)
        elif kind in frames.ANCILLARY:
            return
        elif not self.run_id:
            raise ValueError("an attempt must begin before anything is charged")
        elif kind == frames.CHARGE:
            self._entries.append(frames.decode_entries(payload))
        elif kind == frames.TIMED_CHARGE:
            step, seconds = frames.decode_time(payload)
            self.times.append((len(self.fold.resumed_from), step, seconds))
            self.fold.take_time(step, seconds)
            self._entries.append(frames.decode_entries(payload))
        elif kind == frames.EMPTY:
            self.fold.reach(frames.decode_step(payload))
        elif kind == frames.ENDED:
            self.end_attempt()
            self.fold.end(frames.decode_step(payload))
        else:
            raise ValueError("there is no such kind of record")

    def _begin(self, run_id: str, resumed_from: int) -> None:
        self.end_attempt()
        if self.run_id not in ("", run_id):
            names = " and ".join(sorted({self.run_id, run_id}))
            raise LedgerError(f"{self._where}: holds charges of the runs {names}; a ledger is of one run")
        self.run_id = run_id
        self.fold.begin(resumed_from)
        self.origins.append(None)


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
        target = Path(os.path.realpath(path))
        made = not os.path.lexists(target)
        if made:
            # Whole at once, so that an empty file is never a ledger that is only beginning.
            try:
                with atomic_write(target, error=LedgerError, replace=False) as stream:
                    stream.write(frames.head(frames.HEAD_BYTES))
            except LedgerError:
                if not os.path.lexists(target):
                    raise
                # Another writer was quicker.
                made = False
        return cls(path, open_locked(path), made=made)

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._handle is None

    @property
    def unusable(self) -> bool:
        """True once it refuses everything, because a sync failed or its file is gone."""
        return bool(self._failure)

    @property
    def forked(self) -> bool:
        """True in a fork of the process that it belongs to."""
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
            self._check_path()
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
        self._check_path()
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
            close_handle(handle)

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

    def _check_path(self) -> None:
        try:
            there = is_same_file(self.path, self.check())
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
