"""The file of a ledger: an SQLite database with one writer, and the safeguards that SQLite lacks.

It uses a truncated rollback journal, not a write-ahead log, which does not work on network file systems. Each
transaction is synced. Readers and the writer wait for each other. SQLite holds its locks only for a transaction and has
no permanent writer, so a lock on a file beside the ledger (``run.ledger-lock``) keeps other writers out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Self, TypeVar

from ..contract.files import atomic_write
from ..errors import LedgerError, reason
from .fold import APPLICATION, SCHEMA, VERSION

T = TypeVar("T")

WAIT = 60.0
"""Seconds to wait for another process's lock on the file."""

SYNCHRONOUS = "FULL"
"""SQLite's sync level: all of a transaction is synced before it ends."""

HEAD_BYTES = 72
NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})
TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})

# Held while SQLite is used and while a lock is taken: a fork in between would inherit half a transaction, and would
# write the rest when it ends.
_use = threading.RLock()
_held: set[int] = set()


def _leave_to_parent() -> None:
    """In a fork, close what only the opening process may hold; otherwise its lock would outlive it."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())
    _use.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_use.acquire, after_in_parent=_use.release, after_in_child=_leave_to_parent)


class Lock:
    """The one writer's lock on a ledger, which ends with the process."""

    def __init__(self, path: Path) -> None:
        target = Path(os.path.realpath(path))
        self._beside = target.with_name(f"{target.name}-lock")
        self._process = os.getpid()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            while not self._taken():
                # The previous holder removed the file meanwhile.
                self._close()
        except BlockingIOError:
            raise LedgerError(f"{path}: another writer has this ledger open; stop that one first") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise LedgerError(f"{path}: cannot be opened for writing ({reason(error)})") from None
            raise LedgerError(
                f"{path}: its file system has no locks ({reason(error)}), without which a second writer could not be "
                "kept out; put the ledger on one that has them, such as a local disk"
            ) from None

    def release(self) -> None:
        """Let another writer in; in a fork, which does not own the lock, do nothing."""
        if os.getpid() == self._process:
            # Remove the file before unlocking it: afterwards it could belong to another writer.
            with contextlib.suppress(OSError):
                self._beside.unlink()
            _lock(self._handle, release=True)
            self._close()

    def _taken(self) -> bool:
        with _use:
            self._handle = os.open(self._beside, os.O_RDWR | os.O_CREAT, 0o644)
            _held.add(self._handle)
        try:
            _lock(self._handle)
            return _is_at(self._beside, _identity(self._handle))
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        with _use:
            _held.discard(self._handle)
            os.close(self._handle)


def _lock(handle: int, *, release: bool = False) -> None:
    """Lock a file without waiting (POSIX or Windows), or release it, also for forks that hold it.

    A lock held by another process raises ``BlockingIOError``; a file system without locks raises another ``OSError``.
    """
    try:
        import fcntl
    except ImportError:
        msvcrt = import_module("msvcrt")
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_UNLCK if release else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in TAKEN:
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
    else:
        # flock, not lockf: a POSIX lock is released as soon as the process closes the file anywhere.
        fcntl.flock(handle, fcntl.LOCK_UN if release else fcntl.LOCK_EX | fcntl.LOCK_NB)


class Store:
    """A ledger open for writing.

    Only the process that opened it may use it; its threads take turns.
    """

    def __init__(self, path: Path, lock: Lock, sql: sqlite3.Connection, *, made: bool) -> None:
        self.path = path
        self._lock, self._made = lock, made
        self._sql: sqlite3.Connection | None = sql
        self._process, self._file = os.getpid(), _identity(path)
        self._gone = self._writing = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file, created without an attempt if it does not exist, and lock out other writers."""
        lock = Lock(path)
        try:
            made = not os.path.lexists(os.path.realpath(path))
            if made:
                # Create it atomically, so that an empty file is never a ledger in the making.
                whole = atomic_write(os.path.realpath(path), error=LedgerError, replace=False)
                with whole as stream, contextlib.closing(sqlite3.connect(":memory:")) as sql:
                    sql.executescript(SCHEMA)
                    stream.write(sql.serialize())
            with _use:
                return cls(path, lock, _connected(path, writes=True), made=made)
        except BaseException:
            lock.release()
            raise

    def read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Read what was charged so far."""
        with _use:
            sql = self._usable()
            try:
                if not self._writing:
                    _roll_back(sql)
                return act(sql)
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: {_said(self.path, error)}") from None

    def write(self, what: str, act: Callable[[sqlite3.Connection], T]) -> T:
        """Change the ledger in one transaction: when this returns, it is on the disk."""
        with _use:
            sql = self._usable()
            if self._writing:
                raise LedgerError(f"{self.path}: {what} comes from a signal's handler, in the middle of another charge")
            self._check_path()
            # A leftover of an interruption during an interruption.
            _roll_back(sql)
            self._writing = True
            try:
                sql.execute("BEGIN IMMEDIATE")
                done = act(sql)
                sql.execute("COMMIT")
                return done
            except sqlite3.IntegrityError:
                raise LedgerError(f"{self.path}: {what} is not counted, since a sum would exceed 64 bits") from None
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: {what} is not counted: {_said(self.path, error)}") from None
            finally:
                self._writing = False
                _roll_back(sql)

    def close(self, *, abandon: bool = False) -> None:
        """Let another writer in. Closing twice does nothing; a fork has nothing to close.

        If the file is gone, the store is closed and an error is raised, unless it was already reported.

        Args:
            abandon: Whether to remove a newly created file, since nothing was written to it.
        """
        if os.getpid() != self._process or self._sql is None:
            return
        with _use:
            try:
                if not self._gone:
                    self._check_path()
                    with contextlib.suppress(sqlite3.Error):
                        # This removes the journal.
                        self._sql.execute("PRAGMA journal_mode = DELETE")
            finally:
                sql, self._sql = self._sql, None
                sql.close()
                if abandon and self._made:
                    Path(os.path.realpath(self.path)).unlink(missing_ok=True)
                self._lock.release()

    def _usable(self) -> sqlite3.Connection:
        if self._sql is None:
            raise LedgerError(f"{self.path}: the ledger is closed")
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self.path}: was opened by process {self._process} and is used by its fork {os.getpid()}; a ledger "
                "has one writer, so charge through the process that opened it"
            )
        return self._sql

    def _check_path(self) -> None:
        try:
            self._gone = not _is_at(self.path, self._file)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be inspected ({reason(error)}), so nothing is charged") from None
        if self._gone:
            raise LedgerError(f"{self.path}: was removed or replaced while it was open, and takes no more charges")


def read(path: Path, act: Callable[[sqlite3.Connection], T]) -> T:
    """Read a ledger as it is at one moment; a run may be charging it meanwhile.

    Transactions that a killed process left unfinished are rolled back first.
    """
    with _use:
        sql = _connected(path)
        try:
            sql.execute("BEGIN")
            return act(sql)
        except sqlite3.Error as error:
            raise LedgerError(f"{path}: {_said(path, error)}") from None
        finally:
            sql.close()


def is_ledger(path: Path) -> bool:
    """Return whether a file begins like a ledger."""
    try:
        # When a process closes a file, it loses the locks that SQLite holds on that file.
        with _use, path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None
    return head.startswith(b"SQLite format 3\0") and head[68:] == APPLICATION.to_bytes(4)


def _connected(path: Path, *, writes: bool = False) -> sqlite3.Connection:
    """Open a ledger; a reader may write too, so that it can roll back an unfinished transaction."""
    _check_file(path)
    sql = None
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        sql = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False)
        (application,), (version,) = (sql.execute(f"PRAGMA {n}").fetchone() for n in ("application_id", "user_version"))
        if application != APPLICATION:
            raise LedgerError(
                f"{path}: not a ledger, but an SQLite database of something else"
                if path.stat().st_size
                else f"{path}: is empty, which a ledger never is: what it held is gone; restore it from a copy, or "
                "remove it to begin a new one"
            )
        if version != VERSION:
            raise LedgerError(f"{path}: has tables of version {version}, and this package reads version {VERSION}")
        if writes:
            (mode,) = sql.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
            if mode != "truncate":
                raise LedgerError(f"{path}: stays in journal mode {mode}, and a ledger needs truncate")
            sql.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    except BaseException as error:
        if sql is not None:
            sql.close()
        if isinstance(error, sqlite3.Error):
            raise LedgerError(f"{path}: {_said(path, error)}") from None
        raise
    return sql


def _roll_back(sql: sqlite3.Connection) -> None:
    """End an open transaction; if it cannot be rolled back now, that happens when the file is next opened."""
    if sql.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            sql.execute("ROLLBACK")


def _check_file(path: Path) -> None:
    try:
        if not path.is_file():
            path.stat()
            raise LedgerError(f"{path}: cannot be opened (it is a {'folder' if path.is_dir() else 'special file'})")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be opened ({reason(error)})") from None


def _identity(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)  # noqa: PTH116
    return found.st_dev, found.st_ino


def _is_at(path: Path, identity: tuple[int, int]) -> bool:
    try:
        return _identity(path) == identity
    except (FileNotFoundError, NotADirectoryError):
        return False


def _said(path: Path, error: sqlite3.Error) -> str:
    """The meaning of an SQLite error, in words."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_BUSY"):
        return f"another program has held a lock on it for {WAIT:g} seconds; end what reads or copies it"
    if name == "SQLITE_NOTADB":
        return "not a ledger"
    if name.startswith("SQLITE_CORRUPT") or name == "SQLITE_ERROR":
        return (
            f"is damaged ({reason(error)}): restore it from a copy, or save what is whole with "
            f"sqlite3 {path.name} .recover"
        )
    journal, left = Path(f"{os.path.realpath(path)}-journal"), 0
    with contextlib.suppress(OSError):
        left = journal.stat().st_size
    if left and name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR_DELETE")):
        return (
            f"a process was killed while it charged, and what it left half-done, in {journal.name}, must be undone "
            f"first ({reason(error)}): read it once where this folder may be written to"
        )
    return f"cannot be read or written ({reason(error)}, {name})"
