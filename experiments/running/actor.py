"""A worker as a Ray actor.

The worker itself is imported in the actor's process only, so that the process that starts one does not import torch.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cells import Cell, check_problems

if TYPE_CHECKING:
    import polars as pl

    from ..settings.model import Preset
    from .loaded import Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker is opened with.

    Attributes:
        models: Folder or name of each base model, by the hash of its content; they differ in their weights alone.
        generation: How responses are generated and scored (``Preset.generation``).
        start_seconds: How long an engine in a process of its own may take to load the model.
        answer_seconds: How long an engine or a rank in a process of its own may take over a batch.
    """

    models: Mapping[str, str]
    generation: Mapping[str, Any]
    sampler: str
    device: str = "cpu"
    engine: Mapping[str, Any] = field(default_factory=dict)
    placement: str = "colocated"
    replicas: int = 1
    transport: str = "auto"
    learner_ranks: int = 1
    start_seconds: float = 900.0
    answer_seconds: float = 1800.0
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    keep_policies: str = "none"

    @classmethod
    def of(cls, preset: Preset, models: Mapping[str, str]) -> WorkerConfig:
        """What the workers of a preset are opened with."""
        resources = preset.resources
        return cls(
            models=dict(models),
            generation=preset.generation,
            sampler=resources.resolved_sampler(),
            device=resources.device,
            engine=asdict(resources.resolved_engine()),
            placement=resources.placement,
            replicas=resources.replicas,
            transport=resources.transport,
            learner_ranks=resources.learner_ranks,
            start_seconds=resources.start_seconds,
            answer_seconds=resources.stall_seconds,
            checkpoints=resources.checkpoints.model_dump(),
            keep_policies=resources.keep_policies,
        )


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
