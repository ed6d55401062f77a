"""Who starts workers, and stops them: a plain class, which one ``repro`` holds in an actor of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .actor import WorkerActor

NAMESPACE = "isocompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Which workers are wanted.

    Attributes:
        key: Hash of the code, the base model and the settings that they are opened with.
        workers: How many.
        num_cpus: CPUs that each holds.
        num_gpus: GPUs that each holds.
        environment: Their runtime environment.
    """

    key: str
    workers: int
    num_cpus: float
    num_gpus: float
    environment: Mapping[str, Any]


class Roster:
    """Starts actors and keeps them until others are wanted.

    Its actors belong to the process that it is in, and end with it. Their names carry that session and the hash
    of what they were started for, so that nobody takes them for others.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._crew: Crew | None = None
        self._actors: list[Any] = []
        self._started = 0

    def take(self, crew: Crew) -> list[Any]:
        """The workers of a crew: those that are there, or new ones in place of another crew's."""
        if self._crew is None or self._crew.key != crew.key or len(self._actors) != crew.workers:
            self.dismiss()
            self._crew = crew
            self._actors = [self._start(crew) for _ in range(crew.workers)]
        return list(self._actors)

    def replace(self, index: int) -> Any:
        """Start a worker in place of one that died, or that shows no progress."""
        import ray

        if self._crew is None:
            raise ValueError("there is no crew in which a worker could be replaced")
        ray.kill(self._actors[index])
        self._actors[index] = self._start(self._crew)
        return self._actors[index]

    def dismiss(self) -> None:
        """End every worker."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._crew, self._actors = None, []

    def _start(self, crew: Crew) -> Any:
        import ray

        self._started += 1
        remote: Any = ray.remote(num_cpus=crew.num_cpus, num_gpus=crew.num_gpus)(WorkerActor)
        name = f"worker-{self._session.removeprefix('roster-')}-{crew.key}-{self._started}"
        return remote.options(name=name, namespace=NAMESPACE, runtime_env=dict(crew.environment)).remote()
