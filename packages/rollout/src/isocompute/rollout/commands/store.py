"""The store of an unfinished run: its settings and its finished groups, in one SQLite file beside ``OUT``."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..contract.files import reason_of
from ..errors import RolloutError

# Whoever reads or writes first holds the lock until the connection is closed.
SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS settings (text TEXT);
CREATE TABLE IF NOT EXISTS groups (
    problem_id TEXT, first_sample INTEGER, samples INTEGER, rows BLOB, checksum INTEGER,
    PRIMARY KEY (problem_id, first_sample)
);
"""


class Store(contextlib.AbstractContextManager["Store"]):
    """Keeps the groups of one run that is to become the file ``OUT``, in ``OUT.partial``.

    A group is all responses of one call to one problem: a row with an Arrow IPC stream, written in a transaction of its
    own, so that a killed process loses the groups in flight and no other. The file is locked until it is closed, and by
    the system until the process ends, however it ends. Closed without a group, it leaves no file.

    Args:
        out: The file that the groups will be written to.
        settings: All that the run's rows depend on; a store that holds others is refused.

    Raises:
        RolloutError: Another process works on the file, or it is damaged, holds other settings or cannot be made.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.path = out.with_name(f"{out.name}.partial")
        with self._faults(), contextlib.ExitStack() as stack:
            out.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.path, timeout=0, isolation_level=None)
            stack.enter_context(contextlib.closing(self._base))
            self._base.executescript(SCHEMA)
            self._agree(json.loads(json.dumps(settings, default=str)))
            stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._faults():
            return int(self._base.execute("SELECT count(*) FROM groups").fetchone()[0])

    def group(self, problem_id: str, *, first_sample: int, samples: int) -> pa.RecordBatch | None:
        """Return the rows of a finished group, by sample, or None where there is none of so many responses.

        Raises:
            RolloutError: The store is damaged.
        """
        query = "SELECT rows, checksum FROM groups WHERE problem_id = ? AND first_sample = ? AND samples = ?"
        with self._faults():
            row = self._base.execute(query, (problem_id, first_sample, samples)).fetchone()
        if row is None:
            return None
        if zlib.crc32(row[0]) != row[1]:
            raise self._damaged(f"the rows of problem {problem_id} are not those that were written")
        with pa.ipc.open_stream(row[0]) as stream:
            return stream.read_next_batch()

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep a finished group; once this returns, only a failure of the machine can lose it.

        Args:
            batch: Its rows of the ``rollouts`` table, by sample.

        Raises:
            RolloutError: It cannot be written.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        rows = sink.getvalue().to_pybytes()
        key = (batch["problem_id"][0].as_py(), batch["sample"][0].as_py(), batch.num_rows)
        with self._faults():
            self._base.execute("INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?)", (*key, rows, zlib.crc32(rows)))

    def discard(self) -> None:
        """Remove the file, once its groups are written elsewhere."""
        with self._faults():
            self._base.execute("DELETE FROM groups")
        self.close()

    def close(self) -> None:
        """Let another process continue the run."""
        empty = False
        # Damaged, or closed already.
        with contextlib.suppress(RolloutError):
            empty = not len(self)
        self._base.close()
        if empty:
            self.path.unlink(missing_ok=True)

    def _agree(self, settings: Mapping[str, Any]) -> None:
        """Write the settings down, or refuse those that differ from what is written."""
        row = self._base.execute("SELECT text FROM settings").fetchone()
        if row is None:
            self._base.execute("INSERT INTO settings VALUES (?)", (json.dumps(settings, sort_keys=True),))
            return
        written = json.loads(row[0])
        others = sorted(name for name in {*written, *settings} if written.get(name) != settings.get(name))
        if others:
            raise RolloutError(
                f"{self.path}: holds unfinished work with another {' and another '.join(others)}; finish it with its "
                "own settings, choose another --out, or remove that file"
            )

    def _damaged(self, reason: object) -> RolloutError:
        return RolloutError(f"{self.path}: is damaged ({reason}); remove that file to begin again")

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Say in a sentence what SQLite or the system says."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise self._damaged(error) from None
            if name.startswith("SQLITE_BUSY"):
                raise RolloutError(
                    f"{self.path}: another process is at work on it; let it finish, or choose another --out"
                ) from None
            raise RolloutError(f"{self.path}: unfinished work cannot be kept there ({reason_of(error)})") from None
