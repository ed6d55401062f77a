"""Replicas in virtual time, to see scheduling without a GPU: engines that cost time, and a Ray whose clock jumps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from heapq import heappop, heappush
from math import exp, inf, log, sqrt
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
from isocompute.rollout import Sampling, response_seed
from isocompute.rollout.samplers.base import Feed, Sampler
from isocompute.rollout.samplers.replicas import actors, pool, replica
from isocompute.rollout.samplers.sampling import Draw
from isocompute.rollout.samplers.weights import Manifest

LONGEST = 8192


@cache
def length_of(seed: int, problem_id: str, shared: float) -> int:
    """The tokens of a response, by its seed: lognormal, with a share of the variance between problems."""
    own, problem = Random(seed).gauss(), Random(problem_id).gauss()
    return min(LONGEST, int(exp(log(1500.0) + sqrt(1 - shared) * own + sqrt(shared) * problem)) + 1)


class LatencyEngine(Sampler):
    """An engine that batches continuously; a decoding step takes ``step + each × responses alive`` seconds.

    Args:
        clock: Its attribute ``now`` is moved on.
        limit: Most responses alive.
        tick: Seconds after which it says that it goes on, where no response has ended.
    """

    def __init__(
        self,
        clock: Any,
        *,
        step: float = 9e-3,
        each: float = 2e-5,
        limit: int = 2**31,
        shared: float = 0.0,
        tick: float = inf,
    ) -> None:
        super().__init__("latency", Sampling(max_new_tokens=LONGEST))
        self.clock, self.step, self.each, self.holds, self.shared = clock, step, each, limit, shared
        self.tick = tick
        self.busy, self.most, self.asked = 0.0, 0, list[str]()
        """Seconds in which it decoded, most responses that it held, and the problems that it was given."""
        self.begun: dict[str, float] = {}
        """When it began with each problem."""
        self.alive: list[tuple[float, int]] = []
        """From when on how many responses were alive."""

    @property
    def manifest(self) -> Manifest:
        return Manifest(shapes={}, tied={})

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        return [1] * len(problems)

    def probe(self) -> list[float]:
        return [0.0]

    def _answers(self, feed: Feed) -> Iterator[pa.RecordBatch | None]:
        waiting: deque[tuple[Draw, str, int]] = deque()
        alive: list[tuple[float, int, str, int, int, Draw]] = []
        """By their ends: the number of their step, problem, sample and version."""
        ended: dict[tuple[str, int], dict[int, int]] = {}
        steps = 0.0
        while feed or waiting or alive:
            for problems, draw in feed.take():
                self.asked.extend(problems["problem_id"])
                for problem_id in problems["problem_id"]:
                    numbers = range(draw.first_sample, draw.first_sample + draw.samples)
                    waiting.extend((draw, problem_id, sample) for sample in numbers)
            self.most = max(self.most, feed.unfinished)
            while waiting and len(alive) < self.holds:
                draw, problem_id, sample = waiting.popleft()
                self.begun.setdefault(problem_id, self.clock.now)
                length = self._length(draw, problem_id, sample)
                heappush(alive, (steps + length, draw.step, problem_id, sample, self.weights_version, draw))
            self.alive.append((self.clock.now, len(alive)))
            each = self.step + self.each * len(alive)
            seconds = min(self.tick, (alive[0][0] - steps) * each)
            self.clock.now, self.busy = self.clock.now + seconds, self.busy + seconds
            if each and seconds < (alive[0][0] - steps) * each:
                steps += seconds / each
                yield None
                continue
            steps, _, problem_id, sample, version, draw = heappop(alive)
            feed.unfinished -= 1
            group = ended.setdefault((problem_id, draw.step), {})
            group[sample] = version
            if len(group) < draw.samples:
                yield None
            else:
                yield self._rows(draw, problem_id, ended.pop((problem_id, draw.step)))

    def _length(self, draw: Draw, problem_id: str, sample: int) -> int:
        seed = response_seed(draw.seed, draw.phase, draw.step, problem_id, sample)
        return length_of(seed, problem_id, self.shared)

    def _rows(self, draw: Draw, problem_id: str, group: Mapping[int, int]) -> pa.RecordBatch:
        offsets = np.cumsum([0, *(self._length(draw, problem_id, sample) for sample in sorted(group))])
        columns = {
            "step": [draw.step] * len(group),
            "phase": [draw.phase] * len(group),
            "problem_id": [problem_id] * len(group),
            "sample": sorted(group),
            "weights_version": [group[sample] for sample in sorted(group)],
            "response_ids": pa.LargeListArray.from_arrays(offsets, np.zeros(offsets[-1], np.int32)),
        }
        return pa.RecordBatch.from_pydict(columns)


class RayError(Exception):
    """By its name the death of an actor."""


class VirtualRay:
    """As much of Ray as replicas use: a call runs when it is made, and is done when its engine's clock says so.

    Args:
        deaths: When each actor dies (s), by the order in which they were started.
        call_seconds: Time that a call takes besides.
    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, deaths: Mapping[int, float], call_seconds: float = 1e-3) -> None:
        self.now, self.call_seconds, self.deaths = 0.0, call_seconds, deaths
        self.actors: list[Any] = []

    def remote(self, kind: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=partial(self._start, kind)))

    def _start(self, kind: Any, opener: Any) -> Any:
        self.actors.append(_Handle(self, kind(opener), self.deaths.get(len(self.actors), inf)))
        return self.actors[-1]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def is_initialized(self) -> bool:
        return True

    def kill(self, actor: Any) -> None:
        actor.dies = min(actor.dies, self.now)

    def wait(self, calls: list[Any], *, num_returns: int = 1, timeout: float = inf) -> tuple[list[Any], list[Any]]:
        times = sorted(call.done for call in calls)
        self.now = max(self.now, min(times[num_returns - 1], self.now + timeout))
        return [c for c in calls if c.done <= self.now], [c for c in calls if c.done > self.now]

    def get(self, call: Any) -> Any:
        if call.error is not None:
            raise call.error
        return call.value


class _Call:
    """A call that has begun, with its end known already."""

    done, value, error = 0.0, None, None


class _Handle:
    """An actor."""

    def __init__(self, ray: VirtualRay, inner: Any, dies: float) -> None:
        self.ray, self.inner, self.dies = ray, inner, dies

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, method))

    def _call(self, method: str, *arguments: Any) -> Any:
        ray, began = self.ray, self.ray.now
        call: Any = _Call()
        ray.now += ray.call_seconds
        try:
            call.value = getattr(self.inner, method)(*arguments)
        except ValueError as error:
            call.error = type("RayTaskError", (RayError,), {"cause": error})()
        call.done, ray.now = ray.now, began
        if call.done > self.dies:
            call.done, call.error = max(began, self.dies), RayError("the actor died")
        return call


@contextmanager
def replicas(
    count: int,
    *,
    deaths: Mapping[int, float] | None = None,
    kind: type[LatencyEngine] = LatencyEngine,
    tolerance: float | None = None,
    start_seconds: float = 600.0,
    **engine: Any,
) -> Iterator[Any]:
    """Open replicas of an engine of latency in virtual time, whose options are those of ``engine``."""
    ray = VirtualRay(deaths or {})
    with ExitStack() as patched:
        for module in (actors, replica):
            patched.enter_context(patch.object(module, "monotonic", lambda: ray.now))
        patched.enter_context(patch.object(pool, "connected_ray", lambda: ray))
        patched.enter_context(patch.object(pool, "_strategies", lambda *_: [None] * count))
        sampling = Sampling(max_new_tokens=LONGEST)
        opened = pool.Replicas(
            partial(kind, ray, **engine),
            "latency",
            sampling,
            replicas=count,
            placement=object(),
            tolerance=tolerance,
            start_seconds=start_seconds,
        )
        opened.ray = ray  # type: ignore[attr-defined]
        yield opened
        opened.close()


def problems(count: int) -> pl.DataFrame:
    """A ``problems`` table."""
    return pl.DataFrame({"problem_id": [f"p{i:04}" for i in range(count)]})
