"""Finished work of a sampling command: its settings and groups, in one SQLite file beside ``OUT``."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import RolloutError
from ..store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (text TEXT);
CREATE TABLE IF NOT EXISTS groups (
    problem_id TEXT, first_sample INTEGER, samples INTEGER, rows BLOB, checksum INTEGER,
    PRIMARY KEY (problem_id, first_sample)
);
"""


class Groups(Store):
    """The finished groups of a run with output file ``OUT``, in ``OUT.partial``.

    A group is all responses of one call to one problem, as an Arrow IPC stream. If closed without a group, it leaves no
    file. It refuses a file with other settings, which cover everything that the run's rows depend on.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(out.with_name(f"{out.name}.partial"), SCHEMA, alone=True)
        try:
            self._agree(json.loads(json.dumps(settings, default=str)))
        except BaseException:
            super().close()
            raise

    def __len__(self) -> int:
        return int(self.run("SELECT count(*) FROM groups")[0][0])

    def group(self, problem_id: str, *, first_sample: int, samples: int) -> pa.RecordBatch | None:
        """Return the rows of a finished group, by sample, or None if there is none with ``samples`` responses."""
        query = "SELECT rows, checksum FROM groups WHERE problem_id = ? AND first_sample = ? AND samples = ?"
        for rows, checksum in self.run(query, problem_id, first_sample, samples):
            if zlib.crc32(rows) != checksum:
                raise self.damaged(f"the rows of problem {problem_id} are not those that were written")
            with pa.ipc.open_stream(rows) as stream:
                return stream.read_next_batch()
        return None

    def append(self, batch: pa.RecordBatch) -> None:
        """Save a finished group."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        rows = sink.getvalue().to_pybytes()
        key = (batch["problem_id"][0].as_py(), batch["sample"][0].as_py(), batch.num_rows)
        self.run("INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?)", *key, rows, zlib.crc32(rows))

    def discard(self) -> None:
        """Remove the file once its groups are written elsewhere."""
        self.run("DELETE FROM groups")
        self.close()

    def close(self) -> None:
        """Close the file, so that another process can continue the run."""
        empty = False
        # Damaged, or closed already.
        with contextlib.suppress(RolloutError):
            empty = not len(self)
        super().close()
        if empty:
            self.path.unlink(missing_ok=True)

    def _agree(self, settings: Mapping[str, Any]) -> None:
        """Save the settings, or refuse them if they differ from the saved ones."""
        found = self.run("SELECT text FROM settings")
        if not found:
            self.run("INSERT INTO settings VALUES (?)", json.dumps(settings, sort_keys=True))
            return
        try:
            written = dict(json.loads(found[0][0]))
        except (ValueError, TypeError) as error:
            raise self.damaged(error) from None
        others = sorted(name for name in {*written, *settings} if written.get(name) != settings.get(name))
        if others:
            raise RolloutError(
                f"{self.path}: holds unfinished work with another {' and another '.join(others)}; finish it with its "
                "own settings, choose another --out, or remove that file"
            )
