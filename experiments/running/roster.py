"""Starts and stops workers: a plain class, which one ``repro`` holds in an actor of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .actor import WorkerActor

NAMESPACE = "isocompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Which workers are wanted.

    Attributes:
        key: Hash of the code, the base model and the settings that they are opened with.
    """

    key: str
    workers: int
    num_cpus: float
    num_gpus: float
    environment: Mapping[str, Any]
    actor: type = WorkerActor


class Roster:
    """Starts actors and keeps them until others are wanted.

    Its actors belong to the process that it is in, and end with it. Their names carry that session and the hash
    of what they were started for, so that they are not confused with other actors.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._spec: WorkerSpec | None = None
        self._actors: list[Any] = []
        self._classes: dict[type, Any] = {}
        self._started = 0

    def take(self, spec: WorkerSpec) -> list[Any]:
        """The workers of a spec: those that are there, or new ones in place of another spec's."""
        if self._spec is None or self._spec.key != spec.key or len(self._actors) != spec.workers:
            self.dismiss()
            self._spec = spec
            self._actors = [self._start(spec) for _ in range(spec.workers)]
        return list(self._actors)

    def replace(self, index: int) -> Any:
        """Start a worker in place of one that died, or that shows no progress."""
        import ray

        if self._spec is None:
            raise ValueError("there is no spec in which a worker could be replaced")
        ray.kill(self._actors[index])
        self._actors[index] = self._start(self._spec)
        return self._actors[index]

    def dismiss(self) -> None:
        """End every worker."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._spec, self._actors = None, []

    def _start(self, spec: WorkerSpec) -> Any:
        import ray

        self._started += 1
        if spec.actor not in self._classes:
            # Ray disassembles a class to know it again, which takes longer than to start an actor.
            self._classes[spec.actor] = ray.remote(spec.actor)
        name = f"worker-{self._session.removeprefix('roster-')}-{spec.key}-{self._started}"
        return self._classes[spec.actor].options(
            name=name, namespace=NAMESPACE, runtime_env=dict(spec.environment), num_cpus=spec.num_cpus,
            num_gpus=spec.num_gpus,
        ).remote()  # fmt: skip
