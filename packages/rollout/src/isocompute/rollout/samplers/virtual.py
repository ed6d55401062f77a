"""Sampling during updates, on a virtual clock in one process: reproducible bit for bit.

A decoding step takes 1 unit of time, however many responses are active; an update takes ``update_time``. Each token is
sampled with the weights of its step, after the keys and values that earlier weights have left in the cache. After a
forced interruption a response is read again, with the current weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import RolloutError
from .base import packed, unpacked
from .local import OpenGroup, Scoring
from .sampling import ABANDONED, Draw, Request, Response
from .transformers import Decoding, TransformersSampler

if TYPE_CHECKING:
    import torch


class VirtualPipe:
    """Generates during updates: batches go in, and come out complete in the same order.

    Groups start in the order of admission, each once all its responses have a slot. Time passes in ``take``, until a
    batch is complete, and in ``push``, for an update.

    Args:
        slots: Most active responses.
        update_time: Duration of an update (decoding steps).
        jitter: Standard deviation of the logarithm of a factor on ``update_time``, drawn for each version.
        seed: Seed of these factors.

    Attributes:
        clock: Time since the pipe was opened (decoding steps).

    Raises:
        RolloutError: The sampler is not a ``TransformersSampler``, responses of its model cannot join a running batch,
            or an argument is out of range.
    """

    def __init__(
        self, sampler: Any, *, slots: int, update_time: float = 0.0, jitter: float = 0.0, seed: int = 0
    ) -> None:
        if not isinstance(sampler, TransformersSampler):
            raise RolloutError(
                f"a virtual pipe was asked for with {type(sampler).__name__}; it must be a sampler transformers, "
                "without replicas"
            )
        for name, value, least in (("slots", slots, 1), ("update_time", update_time, 0), ("jitter", jitter, 0)):
            if not value >= least:
                raise RolloutError(f"{name} is {value}; it must be at least {least}")
        sampler.check_joins()
        self.sampler, self.slots = sampler, slots
        self.update_time, self.jitter, self.seed = update_time, jitter, seed
        self._columns = sampler.columns(versions=True)
        self.clock = self._time = self._free = self._waited = 0.0
        self._clear()

    def _clear(self) -> None:
        self._decoding = Decoding(self.sampler)
        self._scoring = Scoring(self.sampler.scorer, self.sampler.faults, self._columns)
        self._groups: dict[int, OpenGroup] = {}
        """Groups that are not scored, in order of admission, by the index of their first request."""
        self._waiting: deque[OpenGroup] = deque()
        self._alive: dict[int, OpenGroup] = {}
        """The group of each active request."""
        self._following: list[tuple[int, Request]] = []
        """Requests with which interrupted responses continue at the next step."""
        self._scored: dict[int, list[pl.DataFrame]] = {}
        """Groups that are scored and not taken, by step; every begun step has an entry."""
        self._next = 0

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Admit the groups of a step's batch, by problem, without waiting."""
        if step in self._scored:
            raise RolloutError(f"step {step} was begun before and not taken since; each step must be begun once")
        self._check_room(samples)
        draw = Draw(samples=samples, seed=seed, step=step, run_id=run_id)
        end = self._next + len(problems) * samples
        self._admit(problems.sort("problem_id"), [draw] * len(problems), range(self._next, end, samples))
        self._next, self._scored[step] = end, []

    def _check_room(self, samples: int) -> None:
        if samples > self.slots:
            raise RolloutError(f"slots is {self.slots}; it must be at least {samples}, the responses to a problem")

    def _admit(self, problems: pl.DataFrame, draws: Sequence[Draw], firsts: Sequence[int]) -> None:
        prompts = self.sampler.checked(problems)
        # If one is refused, none is admitted.
        admitted = [
            OpenGroup(self.sampler, problems[row : row + 1], prompt, draw, first=first)
            for row, (prompt, draw, first) in enumerate(zip(prompts, draws, firsts, strict=True))
        ]
        self._groups |= {group.first: group for group in admitted}
        self._waiting.extend(admitted)

    def take(self, step: int) -> pl.DataFrame:
        """Let time pass until every group of a step is complete, and return the groups.

        Returns:
            The ``rollouts`` table with the columns ``versions`` and ``version_starts``, by problem and sample.
        """
        if step not in self._scored:
            raise RolloutError(f"step {step} was not begun or was taken before; each must be begun and taken once")
        began = self.clock
        while any(group.draw.step == step for group in chain(self._waiting, self._alive.values())):
            self._step()
        self._waited += self.clock - began
        self._collect()
        return self._table(self._scored.pop(step))

    def push(self, weights: Any, version: int) -> None:
        """Let the time of an update pass, then replace the weights.

        They enter between two decoding steps, after the one in which the update ends.
        """
        luck = np.random.default_rng((self.seed, version)).standard_normal()
        end = self.clock + self.update_time * exp(self.jitter * luck)
        while self.clock < end and (self._waiting or self._alive):
            self._step()
        if self.clock < end:
            self._pass(end - self.clock)
        self.sampler.sync(weights, version, in_flight=True)

    def _step(self) -> None:
        """Sample one token of every response, including those that now get a slot."""
        self.sampler.check_whole()
        begun, self._following = self._following, []
        # Those that have waited longest, while there are slots.
        while self._waiting and len(self._alive) + self._waiting[0].draw.samples <= self.slots:
            begun += self._start(self._waiting.popleft())
        self._pass(1.0)
        for index, response in self._decoding.step(begun):
            following = self._hear(index, response)
            if following is not None:
                self._following.append((index, following))

    def _start(self, group: OpenGroup) -> list[tuple[int, Request]]:
        requests = list(enumerate(group.requests, group.first))
        self._alive |= {index: group for index, _ in requests}
        return requests

    def _hear(self, index: int, response: Response) -> Request | None:
        """Record the engine's answer to a request; return the next request if the response continues."""
        following = self._alive[index].control(index, response)
        if isinstance(following, Request):
            return following
        self._end(index, following)
        return None

    def _end(self, index: int, response: Response) -> None:
        """Record a finished response, and score its group if it is complete."""
        group = self._alive.pop(index)
        whole = group.finished(index, response)
        if whole is not None:
            self._scoring.submit(group, whole)

    def _pass(self, time: float) -> None:
        """Advance the clock, and count slots that are free while no group waits."""
        self.clock += time
        self._time += time
        if not self._waiting:
            self._free += time * (1 - len(self._alive) / self.slots)

    def _collect(self) -> None:
        """Wait for the verdicts on all complete groups."""
        for group, rows in self._scoring.rest():
            del self._groups[group.first]
            self._scored[group.draw.step].append(pl.DataFrame(rows))

    def _table(self, groups: Sequence[pl.DataFrame]) -> pl.DataFrame:
        none = pl.DataFrame(self._columns.schema.empty_table())
        return pl.concat([none, *groups]).sort("step", "problem_id", "sample")

    def abandon(self) -> pl.DataFrame:
        """Remove from the engine all batches that were begun and not taken.

        Returns:
            What was generated of them, like ``take``: unfinished responses are ``aborted`` with their tokens so far,
            and count as wrong.
        """
        for index, _ in self._following:
            so_far = dict(self._alive[index].heard)[index]
            self._end(index, replace(so_far, finish_reason="aborted", failure=ABANDONED))
        for index, response in self._decoding.unfinished(ABANDONED):
            self._hear(index, response)
        self._collect()
        groups = list(chain.from_iterable(self._scored.values()))
        self._clear()
        return self._table(groups)

    def idle(self) -> dict[str, float]:
        """Return fractions of the time since the last call.

        Returns:
            ``engines``: free slots of all slots, while no group waited; ``trainer``: time in ``take``; and ``clock``.
        """
        time, free, waited = self._time, self._free, self._waited
        self._time = self._free = self._waited = 0.0
        shares = {"engines": free / time if time else 0.0, "trainer": waited / time if time else 0.0}
        return shares | {"clock": self.clock}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a checkpoint, from which it continues bit for bit: tensors, and values for JSON."""
        self._collect()
        groups = list(self._groups.values())
        heard = list(chain.from_iterable(group.heard for group in groups))
        tensors = self._decoding.state()
        tables = {"heard": _responses(heard), "unfinished": _responses(self._decoding.unfinished())}
        tables["scored"] = self._table(list(chain.from_iterable(self._scored.values())))
        if groups:
            tables["problems"] = pl.concat([group.problem for group in groups])
        values = {
            "clock": self.clock,
            "idle": [self._time, self._free, self._waited],
            "begun": sorted(self._scored),
            "draws": [asdict(group.draw) for group in groups],
            "firsts": list(self._groups),
            "next": self._next,
            "waiting": len(self._waiting),
            "following": [index for index, _ in self._following],
        }
        return tensors | {name: packed(table) for name, table in tables.items()}, values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a state, with a sampler that has the same settings and the weights of that time."""
        for draw in values["draws"]:
            self._check_room(draw["samples"])
        self._clear()
        self.clock = values["clock"]
        self._time, self._free, self._waited = values["idle"]
        tables = {name: unpacked(tensors[name]) for name in ("heard", "unfinished", "scored")}
        self._scored = {step: [] for step in values["begun"]}
        for (step,), rows in tables["scored"].group_by("step", maintain_order=True):
            self._scored[step].append(rows)
        if values["draws"]:
            draws = [Draw(**draw) for draw in values["draws"]]
            self._admit(unpacked(tensors["problems"]), draws, values["firsts"])
        self._next = values["next"]
        asked: dict[int, Request] = {}
        while len(self._waiting) > values["waiting"]:
            asked |= dict(self._start(self._waiting.popleft()))
        for index, response in _read(tables["heard"]):
            following = self._hear(index, response)
            if following is not None:
                asked[index] = following
        self._following = [(index, asked[index]) for index in values["following"]]
        unfinished = [(index, asked[index], response) for index, response in _read(tables["unfinished"])]
        self._decoding.load_state(tensors, unfinished)

    def close(self) -> None:
        """Discard everything; the sampler stays open."""
        self._clear()


RESPONSES: Mapping[str, Any] = {
    "index": pl.Int64,
    "ids": pl.List(pl.Int32),
    "logprobs": pl.List(pl.Float32),
    "finish_reason": pl.String,
    "text": pl.String,
    "versions": pl.List(pl.List(pl.Int64)),
}
"""Columns of responses with the indices of their requests."""


def _responses(responses: Sequence[tuple[int, Response]]) -> pl.DataFrame:
    rows = [
        (i, r.ids.tolist(), r.logprobs.tolist(), r.finish_reason, r.text, list(map(list, r.versions)))
        for i, r in responses
    ]
    return pl.DataFrame(rows, schema=RESPONSES, orient="row")


def _read(table: pl.DataFrame) -> Iterator[tuple[int, Response]]:
    for index, ids, logprobs, finish_reason, text, versions in table.iter_rows():
        yield (
            index,
            Response(
                ids=np.array(ids, np.int32),
                logprobs=np.array(logprobs, np.float32),
                finish_reason=finish_reason,
                text=text,
                versions=tuple((start, version) for start, version in versions),
            ),
        )
