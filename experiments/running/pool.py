"""Workers with their engines up, for one stage at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..errors import ExperimentError
from ..settings.model import Preset, ResourcesConfig
from .actor import WorkerConfig
from .cluster import SESSION, cause, cluster, environment
from .identity import Surroundings, digest
from .loaded import Loaded, check
from .roster import NAMESPACE, Roster, WorkerSpec
from .work import WORK

ANSWER_SECONDS = 60.0
"""How long the holder of the workers may take to start or name them."""


class Pool:
    """Workers of one stage.

    Attributes:
        actors: Their handles.
        stall_seconds: How long one may show no progress.
        keep_policies: Whose trained policy is kept; see ``ResourcesConfig``.
    """

    def __init__(
        self,
        roster: Callable[..., Any],
        spec: WorkerSpec,
        config: WorkerConfig,
        resources: ResourcesConfig,
        check: Callable[[Loaded], None],
    ) -> None:
        self._roster, self._spec, self._config, self._resources = roster, spec, config, resources
        self._check = check
        self.stall_seconds = resources.stall_seconds
        self.keep_policies = resources.keep_policies
        self.actors: list[Any] = roster("take", spec)

    def open(self) -> None:
        """Wait until every worker has loaded the model and sees the work folder.

        Raises:
            ExperimentError: The cluster has no room, a worker cannot load the model or did not start in time, it
                loaded something else than this process has, or it does not see the work folder.
        """
        self._load(self.actors, again=True)

    def replace(self, actor: Any) -> Any:
        """Start another worker in place of one that died or shows no progress."""
        index = self.actors.index(actor)
        self.actors[index] = self._roster("replace", index)
        self._load([self.actors[index]])
        return self.actors[index]

    def _load(self, actors: list[Any], *, again: bool = False) -> None:
        """Wait for workers; one that died in the stage before is replaced where ``again`` says so."""
        import ray

        waiting = {actor.open.remote(self._config): actor for actor in actors}
        done, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=self._resources.start_seconds)
        hosts = {}
        for task in done:
            try:
                loaded = ray.get(task)
                self._check(loaded)
                hosts[loaded.host] = waiting[task]
            except ray.exceptions.RayActorError as error:
                if not again:
                    raise ExperimentError(f"a worker died while it loaded the model ({cause(error)})") from None
                index = self.actors.index(waiting[task])
                self.actors[index] = self._roster("replace", index)
                self._load([self.actors[index]])
            except ray.exceptions.RayError as error:
                raise ExperimentError(cause(error)) from None
        if late:
            free = ray.available_resources()
            raise ExperimentError(
                f"{len(late)} of {len(waiting)} workers did not start and load the model in "
                f"{self._resources.start_seconds:g} s; {self._room(free)} free of {self._room(ray.cluster_resources())}"
            )
        self._check_shared_folder(hosts)

    def _check_shared_folder(self, hosts: dict[str, Any]) -> None:
        """Check that workers of every machine see the work folder."""
        import ray

        path, text = (WORK / ".seen-by-all").resolve(), uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for host, actor in hosts.items():
            try:
                seen = ray.get(actor.sees.remote(str(path), text), timeout=ANSWER_SECONDS)
            except ray.exceptions.RayError as error:
                raise ExperimentError(
                    f"the worker on {host} did not say whether it sees {WORK} ({cause(error)})"
                ) from None
            if not seen:
                raise ExperimentError(
                    f"the worker on {host} does not see {path.parent}: cells on several machines need a file system "
                    "that all of them see; start from a folder on one"
                )

    @staticmethod
    def _room(resources: dict[str, float]) -> str:
        return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


@contextmanager
def workers(preset: Preset, model: str, base: str) -> Iterator[Pool]:
    """Workers of a preset with their engines up, this stage's alone for as long as this lasts.

    Within a ``repro`` they are those of the stage before, where these will do; a stage run alone starts its own,
    which end with it.

    Args:
        preset: The preset.
        model: The base model's folder or name.
        base: Hash of its content.

    Raises:
        ExperimentError: See ``Pool.open``.
    """
    resources = preset.resources
    with (
        cluster(resources.processors()),
        _check_capacity(resources),
        _exclusive(WORK / "workers.lock", resources.start_seconds),
    ):
        config = WorkerConfig(
            model=model,
            generation=preset.generation,
            sampler=resources.resolved_sampler(),
            device=resources.device,
            engine=asdict(resources.resolved_engine()),
            placement=resources.placement,
            learner_ranks=resources.learner_ranks,
            start_seconds=resources.start_seconds,
            answer_seconds=resources.stall_seconds,
            checkpoints=resources.checkpoints.model_dump(),
            keep_policies=resources.keep_policies,
        )
        surroundings = Surroundings.of(resources)
        key = digest([asdict(config), base, asdict(surroundings)])
        gpus = 1 if resources.device == "cuda" else 0
        spec = WorkerSpec(key=key, workers=resources.workers, num_cpus=1, num_gpus=gpus, environment=environment())
        with _roster() as roster:
            pool = Pool(roster, spec, config, resources, partial(check, base=base, surroundings=surroundings))
            pool.open()
            yield pool


@contextmanager
def _check_capacity(resources: ResourcesConfig) -> Iterator[None]:
    """Refuse at once what the whole cluster could never hold; Ray would wait for it without an end."""
    import ray

    kind = "GPU" if resources.device == "cuda" else "CPU"
    there, wanted = ray.cluster_resources().get(kind, 0.0), resources.processors()
    if there < wanted:
        raise ExperimentError(
            f"{resources.workers} workers need {wanted} {kind}s, and the cluster has {there:g} in all: set "
            "resources.workers lower, or join a larger cluster"
        )
    yield


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
