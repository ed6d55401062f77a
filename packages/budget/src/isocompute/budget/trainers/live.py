"""A log that a trainer's logger is still writing, read again whenever it has changed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..contract.errors import TrackingError
from ..contract.tracking import DEFAULT_URI, STORES, is_of_mlflow
from ..errors import BudgetError
from .doctor import join_restarts, reader_of
from .logs.log import Log, TwoRunsError
from .logs.sources import EVENTS, STATE, has_metrics, opened, read_logs
from .registry import TRAINERS
from .search import LOGS, SKIPPED, log_sources, once, read_source
from .trainer import Trainer

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The content of a log at one look; settled, and so complete, if nothing was written since the previous look."""

    logs: tuple[Log, ...] = ()
    problem: str = ""
    settled: bool = False


class LiveLog:
    """A log that a logger is still writing and that may not exist yet; its trainer, once known."""

    def __init__(self, source: str, trainer: Trainer | None = None, *, step_column: str | None = None) -> None:
        if trainer is not None:
            reader_of(trainer)
        self.source, self.trainer = source, trainer
        self._step_column = step_column
        self._stamp: Stamp | None = None
        self._last = Look()

    @property
    def remote(self) -> bool:
        """True if it is not a file or folder."""
        return is_of_mlflow(self.source)

    @property
    def problem(self) -> str:
        """Why the content at the last look could not be read, or an empty text."""
        return self._last.problem

    def look(self) -> Look:
        """Return the current content; unchanged files are not read again.

        Raises:
            TwoRunsError: One log holds the entries of two runs.
        """
        path: Path | None = Path(self.source)
        if self.remote:
            own = self.source if self.source.startswith(STORES) else ""
            uri = own or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
            # A server has no file.
            path = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
        if self.remote and path is not None:
            made = False
            with suppress(sqlite3.Error), opened(path) as (database, tables):
                made = has_metrics(database, tables)
            if not made:
                # Reading a store while it is being created makes both sides fail.
                return self._last
        stamp = None if path is None else tuple(_stamps(path))
        if stamp is not None and stamp == self._stamp:
            self._last = replace(self._last, settled=True)
            return self._last
        logs, problem = self._read()
        # A server has no file times.
        settled = stamp is None and logs == self._last.logs
        self._stamp, self._last = stamp, Look(logs=logs, problem=problem, settled=settled)
        return self._last

    def _read(self) -> tuple[tuple[Log, ...], str]:
        logs: list[Log] = []
        problem = ""
        try:
            below = log_sources(self.source)[0] if self.remote or Path(self.source).exists() else []
        except OSError as error:
            return (), f"{self.source}: cannot be read ({error})"
        # A checkpoint's state lags behind every logger's log.
        states = [source for source in below if Path(source).name == STATE]
        for source in [source for source in below if source not in states] or states:
            try:
                logs += self._read_source(source)
            except TwoRunsError:
                raise
            except (BudgetError, TrackingError, OSError) as error:
                problem = problem or str(error)
        if self.trainer is None or not logs:
            return (), problem
        reader = reader_of(self.trainer)
        return tuple(join_restarts(once(logs, reader), reader)), problem

    def _read_source(self, source: str) -> list[Log]:
        """Read the runs of one source, and determine their trainer if it is not known yet."""
        if self.trainer is None:
            found, unread = read_source(source)
            self.trainer = TRAINERS[next(iter(found))] if found else None
            if unread and self.trainer is None:
                raise BudgetError(f"{unread[0].source}: {unread[0].reason}")
        if self.trainer is None:
            return []
        reader = reader_of(self.trainer)
        path = Path(source)
        logs = read_logs(source, reader.layout, step_column=self._step_column)
        if path.name == STATE:
            run = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
            logs = [replace(log, name=str(run)) for log in logs]
        return [log for log in logs if any(map(reader.marks.match, log.keys))]


def _stamps(path: Path) -> Iterator[tuple[str, int, int]]:
    """Sizes and times of files that may be logs."""
    paths = [path, path.with_name(f"{path.name}-wal")]
    if path.is_dir():
        paths = []
        for folder, below, files in os.walk(path):
            below[:] = sorted(d for d in below if d not in SKIPPED)
            # A database in use has files beside it.
            logs = [f for f in sorted(files) if f.startswith((EVENTS, STATE)) or f.endswith(LOGS) or ".db-" in f]
            paths += [Path(folder, name) for name in logs]
    for file in paths:
        with suppress(OSError):
            status = file.stat()
            yield str(file), status.st_size, status.st_mtime_ns
