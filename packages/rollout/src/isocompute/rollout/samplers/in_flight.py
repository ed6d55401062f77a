"""A pipe of training groups through replicas that generate without pause while a learner takes updates.

A thread controls the replicas while the pipe is open. It dispatches groups in the order of admission, collects answers,
and in between serves calls from the learner's thread. For a push it waits until every replica is between two decoding
steps (``GATHER_SECONDS`` at most) and loads the weights; responses then continue with their KV cache. Other sampling,
such as evaluations, also passes through the pipe and goes before waiting training groups.

No two runs are the same: the version that samples a token depends on timing.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import repeat
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ..errors import RolloutError
from ..scoring.scorer import Verdict
from .base import Columns, Group, Sampler, packed, unpacked
from .replicas.pool import Dispatch, Replicas
from .replicas.queue import Batch, QueuedGroup
from .replicas.replica import GATHER_SECONDS
from .sampling import ABANDONED, Draw, aborted

if TYPE_CHECKING:
    import torch

FIRST = -1
"""Queue position of other sampling, before every training group."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Step:
    """A step's batch in the pipe.

    Attributes:
        groups: Complete groups by problem.
        lost: Rows of attempts that were lost with a replica.
        taken: Future of a caller that waits for the complete batch.
    """

    problems: pl.DataFrame
    draw: Draw
    groups: dict[str, pl.DataFrame] = field(default_factory=dict)
    lost: list[pl.DataFrame] = field(default_factory=list)
    taken: Future[_Step] | None = None

    def rows(self) -> list[pl.DataFrame]:
        """The rows so far; lost attempts have higher sample numbers."""
        tries = Counter[str]()
        rows = list(self.groups.values())
        for group in self.lost:
            tries[group["problem_id"][0]] += self.draw.samples
            rows.append(group.with_columns(sample=pl.col("sample") + tries[group["problem_id"][0]]))
        return rows


class InFlightPipe:
    """Generates during updates: batches go in, and come out complete in the same order.

    If a replica dies, what it has generated of unfinished groups is lost. Other replicas restart these groups with the
    current weights. In a step's table each lost attempt adds ``samples`` rows to those of its group, aborted and
    without tokens, because the number of generated tokens is unknown. A restarted replica takes part from the next push
    on.

    Args:
        sampler: Replicas. Until ``close`` all their requests pass through the pipe, and a sync other than ``push`` is
            refused.

    Raises:
        RolloutError: The sampler has no replicas, its engines sleep, or another pipe or an open stream uses them.
    """

    def __init__(self, sampler: Sampler) -> None:
        if not isinstance(sampler, Replicas):
            raise RolloutError(
                "a pipe in flight needs engines in processes of their own; the sampler must be opened with "
                'replicas={"replicas": 1} or more'
            )
        if sampler.sleeps:
            raise RolloutError("engines in flight generate without pause; engine sleep must be 0")
        if sampler.pipe is not None:
            raise RolloutError("another pipe uses the replicas; it must be closed first")
        self._pool, self._dispatch = sampler, Dispatch(sampler, in_flight=True)
        self._begun: set[int] = set()
        """Steps that were begun and not taken; only the thread uses the others."""
        self._steps: dict[int, _Step] = {}
        self._entries: dict[Batch, _Step] = {}
        """The steps of batches that replicas are working on."""
        self._beside: dict[Batch, SimpleQueue[pa.RecordBatch | BaseException]] = {}
        self._admitted = 0
        self._failure: BaseException | None = None
        self._open = True
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._began = perf_counter()
        self._clock = (0.0, self._began, 1.0)
        """Idle seconds of engines, the time up to which they are counted, and the idle fraction since."""
        self._counted = self._waited = 0.0
        sampler.carry(self)
        self._thread = Thread(target=self._run, name="pipe", daemon=True)
        self._thread.start()
        atexit.register(self.close, wait=False)

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Admit the groups of a step's batch without waiting. They begin in the order of admission.

        If replicas refuse any of them, ``take`` raises the error.
        """
        if step in self._begun:
            raise RolloutError(f"the batch of step {step} is in the pipe already; it must be taken first")
        _check_once(problems)
        draw = Draw(samples=samples, seed=seed, step=step, run_id=run_id)
        self._do(self._guarded, self._admit, _Step(problems=problems.sort("problem_id"), draw=draw))
        self._begun.add(step)

    def take(self, step: int) -> pl.DataFrame:
        """Wait until every group of a step's batch is complete and scored; return its ``rollouts`` table.

        If this is interrupted, the batch stays in the pipe.

        Raises:
            RolloutError: The batch was not begun, or a replica refuses it or a push.
            EngineError: A group was lost with two replicas, or no replica is left for it.
        """
        began, taken = perf_counter(), Future[_Step]()
        try:
            self._do(self._await, step, taken)
            return _joined(taken.result().rows()).sort("problem_id", "sample")
        except BaseException:
            if not taken.cancel():
                # The batch reached nobody.
                with suppress(BaseException):
                    self._do(self._steps.__setitem__, step, taken.result())
                    self._begun.add(step)
            raise
        finally:
            self._waited += perf_counter() - began

    def push(self, weights: Any, version: int) -> None:
        """Load weights into the replicas, which continue once their probes agree."""
        self._do(self._guarded, self._push, weights, version).result()

    def answer(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        """Answer other problems with the current weights, for ``Replicas``; they go before waiting training groups."""
        _check_once(problems)
        arriving: SimpleQueue[pa.RecordBatch | BaseException] = SimpleQueue()
        version = self._do(self._answer, problems, draw, arriving).result()
        for _ in range(len(problems)):
            group = arriving.get()
            if isinstance(group, BaseException):
                raise group
            found = set(group["weights_version"].to_pylist())
            if "versions" in group.schema.names:
                found.update(group["versions"].flatten().to_pylist())
            if found != {version}:
                raise RolloutError(
                    f"a group was asked for with weights of version {version} and has those of {sorted(found)}; what "
                    "is sampled beside must be read to its end before a push"
                )
            yield group

    def abandon(self) -> pl.DataFrame:
        """Remove all batches that were begun and not taken.

        Returns:
            What was generated of them, like ``take``: unfinished responses are ``aborted``, with their tokens so far if
            the engine reports them (vLLM). Other sampling is not included.
        """
        table: pl.DataFrame = self._do(self._abandon).result()
        return table

    def idle(self) -> dict[str, float]:
        """Return fractions of the time since the last call.

        Returns:
            ``engines``: replicas had nothing to do, or weights were loaded; ``trainer``: waited in ``take``.
        """
        now = perf_counter()
        seconds, until, share = self._clock
        idle, past = seconds + (now - until) * share, now - self._began
        shares = {"engines": (idle - self._counted) / past, "trainer": self._waited / past}
        self._counted, self._waited, self._began = idle, 0.0, now
        return shares

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the pipe's contents: complete groups, and the other begun groups, which will restart.

        The value ``complete`` is the number of rollouts in the complete groups.
        """
        tensors, values = self._do(self._state).result()
        return tensors, values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Continue in an empty pipe from what ``state`` returned."""
        for draw in values["draws"]:
            step = draw["step"]
            tables = {what: unpacked(tensors[f"{what}.{step}"]) for what in ("problems", "groups", "lost")}
            entry = _Step(problems=tables["problems"], draw=Draw(**draw))
            if len(tables["groups"]):
                groups = tables["groups"].partition_by("problem_id", as_dict=True)
                entry.groups = {str(problem_id): group for (problem_id,), group in groups.items()}
            entry.lost = list(tables["lost"].iter_slices(draw["samples"])) if len(tables["lost"]) else []
            self._do(self._guarded, self._admit, entry)
            self._begun.add(step)

    def close(self, *, wait: bool = True) -> None:
        """Abort what is unfinished; the replicas stay open.

        Args:
            wait: Whether to wait until they have no groups; not needed if they are terminated next.
        """
        atexit.unregister(self.close)
        if self._open:
            self._do(self._close, wait).result()

    @property
    def drives(self) -> bool:
        """Whether the current thread is the one that controls the replicas."""
        return current_thread() is self._thread

    # The methods below run in the pipe's thread.

    def _do(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let the thread call a function between two turns."""
        done: Future[Any] = Future()

        def check() -> None:
            if not self._open:
                raise RolloutError("the pipe is closed")

        def call() -> None:
            try:
                check()
                done.set_result(function(*arguments))
            except BaseException as error:
                done.set_exception(error)

        check()
        self._calls.put(call)
        return done

    def _run(self) -> None:
        while self._open:
            try:
                waits = bool(self._beside) or any(entry.taken is not None for entry in self._steps.values())
                # If no replica is left, waiting callers must learn of it.
                works = self._failure is None and (self._dispatch.works or (waits and bool(self._dispatch.missing)))
                self._count(self._dispatch.unused if works else 1.0)
                try:
                    call = self._calls.get(block=not works)
                except Empty:
                    self._sort(self._dispatch.turn(GATHER_SECONDS))
                else:
                    call()
            except BaseException as error:
                # Without this thread, callers would wait for ever.
                self._fail(error)
        with suppress(Empty):
            while True:
                self._calls.get(block=False)()

    def _count(self, share: float) -> None:
        """Start a period in which a fraction of the replicas is idle."""
        now, (seconds, until, before) = perf_counter(), self._clock
        self._clock = (seconds + (now - until) * before, now, share)

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may break the pipe; waiting callers get its error."""
        if self._failure is not None:
            raise self._failure
        try:
            return function(*arguments)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Stop working, and pass the error to waiting callers."""
        self._failure = self._failure or error
        for entry in self._steps.values():
            if entry.taken is not None and entry.taken.set_running_or_notify_cancel():
                entry.taken.set_exception(error)
            entry.taken = None
        self._leave_beside(error)

    def _leave_beside(self, error: BaseException) -> None:
        for arriving in self._beside.values():
            arriving.put(error)
        self._beside = {}

    def _sort(self, arrived: Sequence[tuple[Batch, pa.RecordBatch]]) -> None:
        """Assign groups to their batches, and return complete batches to callers."""
        for batch, group in arrived:
            if batch in self._beside:
                self._beside[batch].put(group)
            elif (entry := self._entries.get(batch)) is not None:
                rows = pl.DataFrame(group)
                entry.groups[rows["problem_id"][0]] = rows
        for work, why in self._dispatch.lost:
            if (entry := self._entries.get(work.batch)) is not None:
                entry.lost.append(self._rows_of(work, why))
        self._dispatch.lost.clear()
        missing = {batch for batch, _ in self._dispatch.missing}
        self._beside = {batch: arriving for batch, arriving in self._beside.items() if batch in missing}
        for step, entry in list(self._steps.items()):
            if entry.taken is not None and len(entry.groups) == len(entry.problems):
                taken, entry.taken = entry.taken, None
                if taken.set_running_or_notify_cancel():
                    del self._steps[step]
                    self._entries = {batch: of for batch, of in self._entries.items() if of is not entry}
                    self._begun.discard(step)
                    taken.set_result(entry)
            elif entry.taken is not None and entry.taken.cancelled():
                entry.taken = None

    def _rows_of(self, work: QueuedGroup, why: str) -> pl.DataFrame:
        """Rows of an attempt that has left nothing."""
        draw = work.batch.draw
        responses, texts = [aborted(why)] * draw.samples, [""] * draw.samples
        group = Group(problem_id=work.problem_id, prompt_ids=[], responses=responses, texts=texts)
        verdicts = [Verdict(reward=0.0)] * draw.samples
        columns, version = self._pool.columns(versions=True), self._pool.weights_version
        batch = columns.batch(group, verdicts, draw=draw, version=version)
        return pl.DataFrame(batch)

    def _admit(self, entry: _Step) -> None:
        self._steps[entry.draw.step] = entry
        self._pool.faults.check()
        left = [problem_id for problem_id in entry.problems["problem_id"] if problem_id not in entry.groups]
        costs = self._pool.expected.costs(dict.fromkeys(left, 0), entry.draw.samples)
        places = range(self._admitted, self._admitted + len(costs))
        self._admitted += len(costs)
        self._entries[self._dispatch.add(costs, entry.problems, entry.draw, places=places)] = entry

    def _await(self, step: int, taken: Future[_Step]) -> None:
        if self._failure is not None:
            taken.set_exception(self._failure)
        elif step not in self._steps:
            taken.set_exception(RolloutError(f"the batch of step {step} was not begun; it must be begun before"))
        else:
            self._steps[step].taken = taken
            # Groups that arrived during a pause may complete it.
            self._guarded(self._arrive)

    def _arrive(self) -> None:
        self._sort(self._dispatch.arrived())

    def _pause(self) -> None:
        self._dispatch.pause()
        self._count(1.0)
        self._arrive()

    def _answer(self, problems: pl.DataFrame, draw: Draw, arriving: SimpleQueue[Any]) -> int:
        """Request answers to other problems; return the version of the weights that must answer."""
        self._guarded(self._pause)
        # A refusal of these problems breaks nothing else.
        costs = self._pool.costs(problems, draw)
        self._beside[self._dispatch.add(costs, problems, draw, places=repeat(FIRST))] = arriving
        return self._pool.weights_version

    def _push(self, weights: Any, version: int) -> None:
        self._pause()
        self._pool.sync(weights, version, in_flight=True)
        self._dispatch.entered()
        self._arrive()

    def _abandon(self) -> pl.DataFrame:
        groups, unknown = self._dispatch.abandon()
        self._leave_beside(RolloutError("the pipe was emptied before all that was sampled beside was there"))
        self._arrive()
        rows = [row for step in sorted(self._steps) for row in self._steps[step].rows()]
        generated = (pl.col("response_ids").list.len() > 0) | (pl.col("finish_reason") != "aborted")
        trains = pl.col("phase") == "train"
        rows += [pl.DataFrame(group).filter(generated & trains) for group in groups]
        rows += [self._rows_of(work, ABANDONED) for work in unknown if work.batch in self._entries]
        for entry in self._steps.values():
            if entry.taken is not None and entry.taken.set_running_or_notify_cancel():
                entry.taken.set_exception(RolloutError("the pipe was emptied before the batch was complete"))
        self._steps, self._entries = {}, {}
        self._begun.clear()
        rows.append(pl.DataFrame(Columns(versions=True).schema.empty_table()))
        return _joined(rows).sort("step", "problem_id", "sample")

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors: dict[str, torch.Tensor] = {}
        for step, entry in self._steps.items():
            tensors[f"problems.{step}"] = packed(entry.problems)
            tensors[f"groups.{step}"] = packed(_joined(list(entry.groups.values())))
            tensors[f"lost.{step}"] = packed(_joined(entry.lost))
        entries = [self._steps[step] for step in sorted(self._steps)]
        complete = sum(len(group) for entry in entries for group in entry.groups.values())
        return tensors, {"draws": [asdict(entry.draw) for entry in entries], "complete": complete}

    def _close(self, wait: bool) -> None:
        self._open = False
        self._fail(RolloutError("the pipe is closed"))
        if wait:
            with suppress(Exception):
                self._dispatch.close()
        self._pool.carry(None)


def _check_once(problems: pl.DataFrame) -> None:
    """Refuse repeated problems, whose groups could not be told apart."""
    twice = problems.filter(pl.col("problem_id").is_duplicated())["problem_id"]
    if len(twice):
        raise RolloutError(f"problem {twice[0]} comes twice in a batch; each must come once")


def _joined(groups: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate the rows of groups, which may lack optional columns."""
    return pl.concat(groups, how="diagonal_relaxed") if groups else pl.DataFrame()
