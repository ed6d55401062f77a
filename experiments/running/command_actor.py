"""The Ray actor that has cells trained by a command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .actor import WorkerActor, WorkerConfig
from .cells import Cell, check_problems
from .foreign import CommandCell

if TYPE_CHECKING:
    import polars as pl

    from .loaded import Loaded


class CommandActor(WorkerActor):
    """Has cells trained by a command, in place of a worker."""

    def open(self, config: WorkerConfig) -> Loaded:
        """Say what this process has loaded; no model is."""
        from .command import train
        from .loaded import CodeGuard, Loaded

        guard = CodeGuard.install()
        self._worker = partial(train, config.models)
        return Loaded.of(config, guard)

    def train(self, cell: Cell, problems: pl.DataFrame, home: str, start: str) -> None:
        """See ``command.train``."""
        if not isinstance(cell, CommandCell):
            raise TypeError(f"{cell.name} is trained by no command")
        check_problems(cell, problems)
        self._worker(cell, problems, Path(home))
