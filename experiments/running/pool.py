"""Workers with their engines up, for one stage at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from isocompute.rollout.contract.deaths import death
from isocompute.rollout.contract.files import write_text

from ..errors import ExperimentError
from .actor import WorkerConfig
from .cluster import cause
from .dispatch import backoff
from .loaded import Loaded
from .places import amounts
from .work import WORK

TEND_SECONDS = 1.0
HOPELESS = 3
"""How often in a row a worker that replaces another may fail to load the model while there is none besides."""


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
    """

    index: int
    actor: Any = None
    waits_for: Any = None
    placed: bool = False
    since: float = 0.0
    failures: int = 0
    again_at: float = 0.0


class Pool:
    """Workers of one stage: those that are ready, and others that start meanwhile."""

    def __init__(
        self,
        roster: Callable[..., Any],
        actors: Sequence[Any],
        config: WorkerConfig,
        check: Callable[[Loaded], None],
    ) -> None:
        self._roster, self._config, self._check, self.resources = roster, config, check, config.resources
        self._seen = ((WORK / ".seen-by-all").resolve(), uuid4().hex)
        self._slots = [_Slot(index=i, actor=actor) for i, actor in enumerate(actors)]
        self._idle: deque[_Slot] = deque()
        self._busy: dict[Any, _Slot] = {}
        self._was_ready, self._last_ready, self._problem = False, time.monotonic(), ""

    @property
    def opening(self) -> list[Any]:
        """What workers that start were asked; ``tend`` takes the answers."""
        return [slot.waits_for for slot in self._slots if slot.waits_for is not None]

    def open(self) -> None:
        """Wait until one worker is ready; the others are taken as they come.

        Raises:
            ExperimentError: None was in time, because the cluster has no room, or the model cannot be loaded; or a
                worker does not see the work folder, or loaded something else than this process has.
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
        """Take workers that have become ready, and start others in place of those that died; waits for nothing."""
        import ray

        now = time.monotonic()
        asked = {slot.waits_for: slot for slot in self._slots if slot.waits_for is not None}
        for task in ray.wait(list(asked), num_returns=len(asked), timeout=0)[0] if asked else []:
            self._advance(asked[task], task)
        for slot in self._slots:
            if slot.actor is None and slot.again_at <= now:
                slot.actor = self._roster("replace", slot.index)
                self._ask_place(slot)
            elif slot.waits_for is not None and slot.placed and now - slot.since > self.resources.start_seconds:
                self._remove(slot, f"it did not load the model in {self.resources.start_seconds:g} s")
        if self._idle or self._busy:
            self._last_ready = now
        elif now - self._last_ready > self.resources.start_seconds:
            free, there = ray.available_resources(), ray.cluster_resources()
            last = f"; the last problem: {self._problem}" if self._problem else ""
            raise ExperimentError(
                f"none of {len(self._slots)} workers started and loaded the model in "
                f"{self.resources.start_seconds:g} s; {amounts([free])} free of {amounts([there])}{last}"
            )

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
                self._check_folder(*answer)
                slot.placed, slot.since = True, time.monotonic()
                slot.waits_for = slot.actor.open.remote(self._config)
                return
            self._check(answer)
        except (ray.exceptions.RayError, ExperimentError) as error:
            why = death(error)
            if why is None and (not self._was_ready or self._is_hopeless(slot, error)):
                raise ExperimentError(cause(error)) from None
            self._remove(slot, why or cause(error))
            return
        self._was_ready = True
        self._idle.append(slot)

    def _is_hopeless(self, slot: _Slot, error: Exception) -> bool:
        """Whether there is no other worker, and this one was refused, or failed to load the model again and again.

        A GPU may be free a moment later.
        """
        refused = isinstance(error, ExperimentError)
        return not self._idle and not self._busy and (refused or slot.failures >= HOPELESS)

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
