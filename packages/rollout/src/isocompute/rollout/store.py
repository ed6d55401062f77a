"""An append-only SQLite store for a run: each row is written whole and is on disk once it is written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from .contract.files import reason_of
from .errors import RolloutError

WAIT = 60.0
"""Longest wait for another process's lock on a file (s)."""


class Store(contextlib.AbstractContextManager["Store"]):
    """An open SQLite file.

    It uses a truncated journal instead of a write-ahead log, which network file systems do not support, and syncs each
    transaction. Readers and writers wait for each other.

    Args:
        schema: Statements that create its tables if they do not exist.
        alone: Whether others are refused until this is closed or its process ends in any way.
    """

    def __init__(self, path: Path, schema: str, *, alone: bool = False) -> None:
        self.path, self._alone = path, alone
        with self._sentences():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sql = sqlite3.connect(path, timeout=0 if alone else WAIT, isolation_level=None)
            try:
                if alone:
                    self._sql.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT;")
                # Converts a file of an earlier version, which has a write-ahead log.
                (mode,) = self._sql.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
                if mode != "truncate":
                    raise RolloutError(f"{path}: stays in SQLite's journal mode {mode}, and truncate is needed")
                self._sql.executescript(f"PRAGMA synchronous = FULL; {schema}")
            except BaseException:
                self._sql.close()
                raise

    def run(self, statement: str, *values: Any) -> list[Any]:
        """Run one statement as its own transaction, which changes nothing if it fails; return its rows."""
        with self._sentences():
            return self._sql.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the file, so that others can use it."""
        if self._alone:
            # This removes the journal. The file may be damaged or closed already.
            with contextlib.suppress(sqlite3.Error):
                self._sql.execute("PRAGMA journal_mode = DELETE")
        self._sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def damaged(self, why: object) -> RolloutError:
        """Return the error for a file with unexpected contents."""
        return RolloutError(f"{self.path}: is damaged ({why}); remove that file to begin again")

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn errors of SQLite and the system into sentences."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise self.damaged(error) from None
            if name.startswith("SQLITE_BUSY"):
                what = "is at work on it" if self._alone else f"has held a lock on it for {WAIT:g} seconds"
                raise RolloutError(f"{self.path}: another process {what}; let it finish first") from None
            raise RolloutError(f"{self.path}: nothing can be kept there ({reason_of(error)})") from None
