"""Unfinished work on disk: groups of responses are appended as they finish and read back after a kill."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO

import pyarrow as pa

from .contract.files import reason_of, write_text
from .errors import RolloutError

logger = logging.getLogger(__name__)
Key = tuple[str, int]
"""What a group answers: a problem, and the index of its first response."""


class Journal:
    """The groups of one run that is to become the file ``OUT``, in the folder ``OUT.partial/RUN_ID`` beside it.

    Every process that works on the run appends to a file of its own there, an Arrow IPC stream (``00000.arrows``,
    ``00001.arrows``, ...), one batch per group. A process that is killed leaves at most one incomplete batch, at the
    end of its file; whatever follows the last complete batch of a file is ignored. Of two groups that answer the same
    the later one counts. The folders of other runs beside the same ``OUT`` are left alone.

    One process at a time works on one ``OUT``: it holds a lock, which the system frees when the process ends, however
    it ends. Where the file system knows no locks, a warning says so.

    Args:
        out: The file that the groups will be written to.
        asked: What the run was asked for, kept in ``asked.json`` for whoever finds the folder.

    Raises:
        RolloutError: Another process works on the same file, or the folder cannot be made.
    """

    def __init__(self, out: Path, run_id: str, asked: Mapping[str, Any]) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        self._run = self.folder / run_id
        self._run_id = run_id
        self._sink: BinaryIO | None = None
        try:
            self._lock = _locked(self.folder, out)
            self._run.mkdir(exist_ok=True)
            write_text(self._run / "asked.json", json.dumps(asked, indent=2, sort_keys=True, default=str) + "\n")
        except OSError as error:
            raise RolloutError(f"{self.folder}: unfinished work cannot be kept there ({reason_of(error)})") from None
        self._groups = {_key(batch): batch for batch in self._read()}

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def group(self, problem_id: str, *, first_sample: int, samples: int) -> pa.RecordBatch | None:
        """Return the rows of a group that was finished, or None.

        Args:
            first_sample: Index of its first response.
            samples: Responses that the group must have.
        """
        batch = self._groups.get((problem_id, first_sample))
        return batch if batch is not None and batch.num_rows == samples else None

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep a finished group; once this returns, only a failure of the machine can lose it.

        Args:
            batch: The group's rows of the ``rollouts`` table, by sample.

        Raises:
            RolloutError: It cannot be written.
        """
        try:
            if self._sink is None:
                path = self._run / f"{len(list(self._run.glob('*.arrows'))):05d}.arrows"
                self._sink = path.open("xb")
                self._sink.write(batch.schema.serialize())
            self._sink.write(batch.serialize())
            self._sink.flush()
        except OSError as error:
            raise RolloutError(f"{self._run}: a group cannot be kept ({reason_of(error)})") from None
        self._groups[_key(batch)] = batch

    @property
    def holds_groups(self) -> bool:
        """Whether groups of this run are kept."""
        return bool(self._groups)

    @property
    def others(self) -> list[str]:
        """Ids of other runs whose unfinished work lies beside the same file."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and path != self._run)

    def close(self) -> None:
        """Let another process go on; where nothing was appended, leave nothing behind."""
        if self._lock.closed:
            return
        with contextlib.suppress(OSError):
            if self._sink is not None:
                # No end of stream is written: after a batch that was cut off it would pass for the rest of it.
                self._sink.close()
        self._sink = None
        if not any(self._run.glob("*.arrows")):
            self._remove()
        self._lock.close()

    def discard(self) -> None:
        """Remove what was kept, once the file is written."""
        for path in self._run.glob("*.arrows"):
            path.unlink()
        self.close()

    def _remove(self) -> None:
        shutil.rmtree(self._run, ignore_errors=True)
        with contextlib.suppress(OSError):
            if not self.others:
                (self.folder / "lock").unlink(missing_ok=True)
                self.folder.rmdir()

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Yield the complete groups of all files, the earliest first."""
        for path in sorted(self._run.glob("*.arrows")):
            try:
                with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                    while True:
                        batch = stream.read_next_batch()
                        batch.validate(full=True)
                        if not _is_group(batch, self._run_id):
                            break
                        yield batch
            except (StopIteration, pa.ArrowException, OSError):
                # The end of the file, or a batch that its process did not live to complete.
                continue


def _locked(folder: Path, out: Path) -> TextIO:
    """Lock a folder for this process; a lock of the process's own, which no child that outlives it can hold."""
    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = path.open("w")
        except FileNotFoundError:
            # A process that has finished removed the folder in between.
            continue
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            handle.close()
            raise RolloutError(
                f"{out}: another process is at work on it; let it finish, or choose another --out"
            ) from None
        except OSError as error:
            # Some network file systems are mounted without locks.
            logger.warning(
                "%s cannot be locked (%s): take care that no second process works on %s", folder, reason_of(error), out
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()


def _key(batch: pa.RecordBatch) -> Key:
    return batch["problem_id"][0].as_py(), batch["sample"][0].as_py()


def _is_group(batch: pa.RecordBatch, run_id: str) -> bool:
    """Whether a batch is the responses to one problem, one after another."""
    samples = batch["sample"].to_pylist()
    return bool(
        samples
        and samples == list(range(samples[0], samples[0] + len(samples)))
        and len(set(batch["problem_id"].to_pylist())) == 1
        and set(batch["run_id"].to_pylist()) == {run_id}
    )
