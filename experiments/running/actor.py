"""A worker as a Ray actor.

The worker itself is imported in the actor's process only, so that the process that starts one does not import torch.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cells import Cell, check_problems

if TYPE_CHECKING:
    import polars as pl

    from ..settings import Preset, ResourcesConfig
    from .loaded import Loaded

NAMESPACE = "isocompute"
"""Of our actors in a cluster of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker is opened with.

    Attributes:
        models: Folder or name of each base model, by the hash of its content; they differ in their weights alone.
        generation: How responses are generated and scored (``Preset.generation``).
        resources: With a sampler and an engine that leave nothing to the machine.
    """

    models: Mapping[str, str]
    generation: Mapping[str, Any]
    resources: ResourcesConfig

    @classmethod
    def of(cls, preset: Preset, models: Mapping[str, str]) -> WorkerConfig:
        """What the workers of a preset are opened with."""
        own = preset.resources
        resolved = own.model_copy(update={"sampler": own.resolved_sampler(), "engine": own.resolved_engine()})
        return cls(models=dict(models), generation=preset.generation, resources=resolved)


class WorkerActor:
    """Passes calls on to its worker.

    The worker is opened by a call, since an error of an actor's constructor comes back as its death.
    """

    def __init__(self) -> None:
        self._worker: Any = None
        self._loaded: Loaded | None = None

    def open(self, config: WorkerConfig) -> Loaded:
        """Load the model, unless it is there already; returns what was loaded with it."""
        from .loaded import CodeGuard, Loaded

        guard = CodeGuard.install()
        # Imported under the guard.
        from .worker import Worker

        if self._loaded is None or self._worker.config != config:
            self._worker = Worker(config)
            self._loaded = Loaded.of(config, guard)
        return self._loaded

    def place(self, path: str, text: str) -> tuple[str, bool]:
        """The machine, and whether it sees a file that the driver wrote, with its text."""
        try:
            return socket.gethostname(), Path(path).read_text() == text
        except OSError:
            return socket.gethostname(), False

    def sample(self, problems: pl.DataFrame, settings: Mapping[str, Any]) -> pl.DataFrame:
        """See ``Worker.sample``."""
        answered: pl.DataFrame = self._worker.sample(problems, **settings)
        return answered

    def start(self, cell: Cell, problems: pl.DataFrame, folder: str) -> None:
        """See ``Worker.start``."""
        check_problems(cell, problems)
        self._worker.start(cell, problems, Path(folder))

    def train(self, cell: Cell, problems: pl.DataFrame, home: str, start: str) -> None:
        """See ``Worker.train``."""
        check_problems(cell, problems)
        self._worker.train(cell, problems, Path(home), Path(start))
