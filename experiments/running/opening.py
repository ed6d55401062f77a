"""Opens the workers of a stage: on which cluster, whose they are, and that no other stage has them meanwhile."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..errors import ExperimentError
from ..settings import CommandTrainer, Preset, ResourcesConfig
from .actor import WorkerActor, WorkerConfig
from .cluster import LOCAL, SESSION, cause, cluster, environment
from .command_actor import CommandActor
from .identity import Surroundings, digest
from .loaded import check
from .pool import Pool
from .roster import NAMESPACE, Roster, WorkerSpec
from .work import WORK

ANSWER_SECONDS = 60.0
"""How long the holder of the workers may take to start or name them."""


def training_workers(preset: Preset, models: Mapping[str, str]) -> AbstractContextManager[Pool]:
    """Workers that train the cells of a preset: our learner's, or those that run its command; see ``workers``."""
    if isinstance(preset.trainer, CommandTrainer):
        return workers(preset, models, actor=CommandActor, processors=preset.devices_of_a_worker())
    return workers(preset, models)


@contextmanager
def workers(
    preset: Preset, models: Mapping[str, str], *, actor: type = WorkerActor, processors: int | None = None
) -> Iterator[Pool]:
    """Workers of a preset with their engines up, this stage's alone for as long as this lasts.

    Within a ``repro`` they are those of the stage before, where these will do; a stage run alone starts its own,
    which end with it.

    Args:
        models: Folder or name of each base model, by the hash of its content.
        actor: Their class.
        processors: How many one of them holds for the command that it runs; None where it runs none.
    """
    resources = preset.resources
    wanted = resources.workers * (processors or resources.processors_of_a_worker())
    with ExitStack() as stack:
        stack.enter_context(cluster(wanted))
        _check_capacity(resources, wanted)
        stack.enter_context(_exclusive(WORK / "workers.lock", resources.start_seconds))
        config = WorkerConfig.of(preset, models)
        surroundings = Surroundings.of(resources)
        each = processors or 1
        on_gpus = resources.device == "cuda"
        key = digest([asdict(config), asdict(surroundings), actor.__qualname__, each])
        spec = WorkerSpec(
            key=key, workers=resources.workers, num_cpus=1 if on_gpus else each, num_gpus=each if on_gpus else 0,
            environment=environment(), actor=actor,
        )  # fmt: skip
        roster = stack.enter_context(_roster())
        pool = Pool(roster, spec, config, resources, partial(check, bases=tuple(models), surroundings=surroundings))
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        begun, said = time.monotonic(), False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - begun > patience:
                    raise ExperimentError(
                        f"another stage has held the workers of this folder for {patience:g} s ({path}): "
                        "wait for it to end, or end it"
                    ) from None
                if not said:
                    print("waiting for another stage of this folder to give back the workers", flush=True)
                said = True
                time.sleep(0.5)
        yield
