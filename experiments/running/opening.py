"""Opens the workers of a stage: on which cluster, whose they are, and that no other stage has them meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from filelock import FileLock, Timeout

from ..errors import ExperimentError
from ..settings import CommandTrainer, Preset, ResourcesConfig
from .actor import NAMESPACE, WorkerActor, WorkerConfig
from .cells import Cell, check_problems
from .cluster import LOCAL, SESSION, Roster, cause, cluster, environment
from .identity import Surroundings, digest
from .loaded import CodeGuard, Loaded, check
from .pool import Pool
from .work import WORK

if TYPE_CHECKING:
    import polars as pl

ANSWER_SECONDS = 60.0
"""How long the holder of the workers may take to start or name them."""


class CommandActor(WorkerActor):
    """Has cells trained by a command, in place of a worker."""

    def open(self, config: WorkerConfig) -> Loaded:
        """Say what this process has loaded; no model is."""
        guard = CodeGuard.install()
        # Imported under the guard.
        from .command import train

        self._worker = partial(train, config.models)
        return Loaded.of(config, guard)

    def train(self, cell: Cell, problems: pl.DataFrame, home: str, start: str) -> None:
        """See ``command.train``."""
        check_problems(cell, problems)
        self._worker(cell, problems, Path(home))


@contextmanager
def workers(preset: Preset, models: Mapping[str, str], *, training: bool = False) -> Iterator[Pool]:
    """Workers of a preset with their engines up, this stage's alone for as long as this lasts.

    Within a ``repro`` they are those of the stage before, where these will do; a stage run alone starts its own,
    which end with it.

    Args:
        models: Folder or name of each base model, by the hash of its content.
        training: Whether they train cells, for which those of a preset with a command run it.
    """
    resources = preset.resources
    commands = training and isinstance(preset.trainer, CommandTrainer)
    held = preset.devices_of_a_worker() if commands else resources.processors_of_a_worker()
    wanted = resources.workers * held
    with ExitStack() as stack:
        stack.enter_context(cluster(wanted))
        _check_capacity(resources, wanted)
        stack.enter_context(_exclusive(WORK / "workers.lock", resources.start_seconds))
        config = WorkerConfig.of(preset, models)
        surroundings = Surroundings.of(resources)
        actor = CommandActor if commands else WorkerActor
        # A command's processors are its worker's; ranks and engines of ours have their own.
        each = held if commands else 1
        on_gpus, gpus = resources.device == "cuda", held if commands else resources.own_gpus
        opened = [config.models, config.generation, resources.model_dump(mode="json")]
        key = digest([*opened, asdict(surroundings), actor.__qualname__, each])
        options = {
            "num_cpus": 1 if on_gpus else each, "num_gpus": gpus if on_gpus else 0, "runtime_env": environment(),
        }  # fmt: skip
        roster = stack.enter_context(_roster())
        actors = roster("take", key, resources.workers, actor, options)
        pool = Pool(roster, actors, config, partial(check, bases=tuple(models), surroundings=surroundings))
        pool.open()
        yield pool


def _check_capacity(resources: ResourcesConfig, wanted: int) -> None:
    """Refuse at once what our own cluster of one node could never hold; any other may grow, which is said."""
    import ray

    kind = "GPU" if resources.device == "cuda" else "CPU"
    cluster_has = ray.cluster_resources()
    there = cluster_has.get(kind, 0.0)
    if there < wanted:
        lack = f"{resources.workers} workers need {wanted} {kind}s, and the cluster has {there:g} in all"
        if LOCAL in cluster_has:
            raise ExperimentError(f"{lack}: set resources.workers lower, or join a larger cluster")
        print(f"{lack}: those that it has room for begin, the others join when it grows", flush=True)


@contextmanager
def _roster() -> Iterator[Callable[..., Any]]:
    """The roster of the ``repro`` that this stage is part of, or one of this process."""
    import ray

    session = os.environ.get(SESSION)
    if not session:
        own = Roster(f"roster-{uuid4().hex[:12]}")
        try:
            yield lambda method, *arguments: getattr(own, method)(*arguments)
        finally:
            own.dismiss()
        return
    try:
        holder = ray.get_actor(session, namespace=NAMESPACE)
    except ValueError:
        raise ExperimentError(f"the `repro` that this stage is part of is not there any more ({session})") from None

    def ask(method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(holder, method).remote(*arguments), timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            raise ExperimentError(f"the holder of the workers did not {method} them ({cause(error)})") from None

    yield ask


@contextmanager
def _exclusive(path: Path, patience: float) -> Iterator[None]:
    """Hold the workers of this folder alone; another stage's hold ends with its process."""
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print("waiting for another stage of this folder to give back the workers", flush=True)
        try:
            held = lock.acquire(timeout=patience, poll_interval=0.5)
        except Timeout:
            raise ExperimentError(
                f"another stage has held the workers of this folder for {patience:g} s ({path}): "
                "wait for it to end, or end it"
            ) from None
    with held:
        yield
