"""Workers with their engines up, for one stage at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from isocompute.rollout.contract.deaths import death
from isocompute.rollout.contract.files import write_text

from ..errors import ExperimentError
from ..settings.model import Preset, ResourcesConfig
from .actor import WorkerActor, WorkerConfig
from .cluster import LOCAL, SESSION, cause, cluster, environment
from .dispatch import backoff
from .identity import Surroundings, digest
from .roster import NAMESPACE, Roster, WorkerSpec
from .work import WORK

TEND_SECONDS = 1.0
HOPELESS = 3
"""How often in a row a worker that replaces another may fail to load the model while there is none besides."""
ANSWER_SECONDS = 60.0
"""How long the holder of the workers may take to start or name them."""


@dataclass(kw_only=True, eq=False)
class _Slot:
    """The place of one worker.

    Attributes:
        actor: Its handle; None from its death until another is started.
        waits_for: What it was asked while it starts: where it is, then to load the model; None once it is ready.
        placed: Whether the cluster has found room for it.
        since: When that was asked.
        failures: How often in a row a worker died here.
        again_at: When another is started, where there is none.
        host: Its machine.
    """

    index: int
    actor: Any = None
    waits_for: Any = None
    placed: bool = False
    since: float = 0.0
    failures: int = 0
    again_at: float = 0.0
    host: str = ""


class Pool:
    """Workers of one stage: those that are ready, and others that start meanwhile.

    Attributes:
        stall_seconds: How long one may show no progress.
        keep_policies: Whose trained policy is kept; see ``ResourcesConfig``.
        checkpoint_gigabytes: Disk limit of what is kept of cells; see ``ResourcesConfig``.
    """

    def __init__(
        self, roster: Callable[..., Any], spec: WorkerSpec, config: WorkerConfig, resources: ResourcesConfig
    ) -> None:
        self._roster, self._config, self._resources = roster, config, resources
        self.stall_seconds = resources.stall_seconds
        self.keep_policies = resources.keep_policies
        self.checkpoint_gigabytes = resources.checkpoint_gigabytes
        self._seen = ((WORK / ".seen-by-all").resolve(), uuid4().hex)
        self._slots = [_Slot(index=i, actor=actor) for i, actor in enumerate(roster("take", spec))]
        self._idle: deque[_Slot] = deque()
        self._busy: dict[Any, _Slot] = {}
        self._was_ready, self._last_ready, self._problem = False, time.monotonic(), ""

    @property
    def actors(self) -> list[Any]:
        """The handles of all workers that were started, ready or not."""
        return [slot.actor for slot in self._slots if slot.actor is not None]

    @property
    def opening(self) -> list[Any]:
        """What workers that start were asked; ``tend`` takes the answers."""
        return [slot.waits_for for slot in self._slots if slot.waits_for is not None]

    def open(self) -> None:
        """Wait until one worker is ready; the others are taken as they come.

        Raises:
            ExperimentError: None was in time, because the cluster has no room, or the model cannot be loaded; or a
                worker does not see the work folder.
        """
        import ray

        path, text = self._seen
        write_text(path, text)
        for slot in self._slots:
            self._ask_place(slot)
        self._last_ready = time.monotonic()
        while not self._idle:
            if self.opening:
                ray.wait(self.opening, timeout=TEND_SECONDS)
            else:
                time.sleep(TEND_SECONDS)
            self.tend()

    def tend(self) -> None:
        """Take workers that have become ready, and start others in place of those that died; waits for nothing.

        Raises:
            ExperimentError: See ``open``.
        """
        import ray

        now = time.monotonic()
        asked = {slot.waits_for: slot for slot in self._slots if slot.waits_for is not None}
        for task in ray.wait(list(asked), num_returns=len(asked), timeout=0)[0] if asked else []:
            self._advance(asked[task], task)
        for slot in self._slots:
            if slot.actor is None and slot.again_at <= now:
                slot.actor = self._roster("replace", slot.index)
                self._ask_place(slot)
            elif slot.waits_for is not None and slot.placed and now - slot.since > self._resources.start_seconds:
                self._remove(slot, f"it did not load the model in {self._resources.start_seconds:g} s")
        if self._idle or self._busy:
            self._last_ready = now
        elif now - self._last_ready > self._resources.start_seconds:
            raise ExperimentError(self._none_in_time())

    def take(self) -> Any:
        """A worker that is ready, or None."""
        if not self._idle:
            return None
        slot = self._idle.popleft()
        self._busy[slot.actor] = slot
        return slot.actor

    def give_back(self, actor: Any) -> None:
        """Take back a worker that has answered."""
        slot = self._busy.pop(actor)
        slot.failures = 0
        self._idle.append(slot)

    def lost(self, actor: Any) -> None:
        """Have another worker started in place of one that died, at once or, the more of them die, the later."""
        self._remove(self._busy.pop(actor), "")

    def kill(self, actor: Any) -> None:
        """End a worker that is busy; its call then ends with its death."""
        import ray

        ray.kill(actor)

    def _ask_place(self, slot: _Slot) -> None:
        path, text = self._seen
        slot.placed, slot.since = False, time.monotonic()
        slot.waits_for = slot.actor.place.remote(str(path), text)

    def _advance(self, slot: _Slot, task: Any) -> None:
        """Take an answer of a worker that starts."""
        import ray

        slot.waits_for = None
        try:
            answer = ray.get(task)
            if not slot.placed:
                slot.host, sees = answer
                self._check_folder(slot.host, sees)
                slot.placed, slot.since = True, time.monotonic()
                slot.waits_for = slot.actor.open.remote(self._config)
                return
        except (ray.exceptions.RayError, ExperimentError) as error:
            why = death(error)
            if why is None and (not self._was_ready or self._is_hopeless(slot)):
                raise ExperimentError(cause(error)) from None
            self._remove(slot, why or cause(error))
            return
        self._was_ready = True
        self._idle.append(slot)

    def _is_hopeless(self, slot: _Slot) -> bool:
        """Whether a worker failed to start again and again, and there is no other; a GPU may be free a moment later."""
        return slot.failures >= HOPELESS and not self._idle and not self._busy

    def _remove(self, slot: _Slot, why: str) -> None:
        """End a worker, and note when another is started in its place."""
        import ray

        ray.kill(slot.actor)
        slot.failures += 1
        seconds = backoff(slot.failures)
        slot.actor, slot.waits_for, slot.again_at = None, None, time.monotonic() + seconds
        if why:
            self._problem = why
            print(f"a worker did not start ({why}); another is started in {seconds:g} s", flush=True)

    @staticmethod
    def _check_folder(host: str, sees: bool) -> None:
        if not sees:
            raise ExperimentError(
                f"the worker on {host} does not see {WORK.resolve()}: cells on several machines need a file system "
                "that all of them see; start from a folder on one"
            )

    def _none_in_time(self) -> str:
        import ray

        free, there = ray.available_resources(), ray.cluster_resources()
        last = f"; the last problem: {self._problem}" if self._problem else ""
        return (
            f"none of {len(self._slots)} workers started and loaded the model in {self._resources.start_seconds:g} s; "
            f"{self._room(free)} free of {self._room(there)}{last}"
        )

    @staticmethod
    def _room(resources: dict[str, float]) -> str:
        return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


@contextmanager
def workers(preset: Preset, model: str, base: str, *, actor: type = WorkerActor) -> Iterator[Pool]:
    """Workers of a preset with their engines up, this stage's alone for as long as this lasts.

    Within a ``repro`` they are those of the stage before, where these will do; a stage run alone starts its own,
    which end with it.

    Args:
        preset: The preset.
        model: The base model's folder or name.
        base: Hash of its content.
        actor: Class of the workers.

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
        key = digest([asdict(config), base, asdict(Surroundings.of(resources))])
        gpus = 1 if resources.device == "cuda" else 0
        spec = WorkerSpec(
            key=key, workers=resources.workers, num_cpus=1, num_gpus=gpus, environment=environment(), actor=actor
        )
        with _roster() as roster:
            pool = Pool(roster, spec, config, resources)
            pool.open()
            yield pool


@contextmanager
def _check_capacity(resources: ResourcesConfig) -> Iterator[None]:
    """Refuse at once what our own cluster of one node could never hold; any other may grow, which is said."""
    import ray

    kind = "GPU" if resources.device == "cuda" else "CPU"
    cluster_has = ray.cluster_resources()
    there, wanted = cluster_has.get(kind, 0.0), resources.processors()
    if there < wanted:
        lack = f"{resources.workers} workers need {wanted} {kind}s, and the cluster has {there:g} in all"
        if LOCAL in cluster_has:
            raise ExperimentError(f"{lack}: set resources.workers lower, or join a larger cluster")
        print(f"{lack}: those that it has room for begin, the others join when it grows", flush=True)
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
