"""Several replicas of a sampler behind its interface: tables depend neither on their number nor on deaths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, repeat
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from ...errors import EngineError, RolloutError
from .. import weights
from ..actor import Verifiers, connected_ray, resources
from ..base import Sampler, pairs
from ..sampling import Draw, Sampling
from ..weights import BUCKET_BYTES, Manifest
from .actors import LONGEST_WAIT
from .queue import Batch, Expected, Queue, QueuedGroup
from .replica import Answered, Opened, Opener, Part, Replica, ReplicaActors, ReplicaMember
from .transfer import Transfer

TRANSPORTS = ("object_store", "gloo", "nccl", "ipc")
SHOWN = 5
"""Most groups that an error names."""
PROBE_TOLERANCES = {"float32": 1e-3, "float16": 0.025, "bfloat16": 0.2}
"""Largest difference (nats) between probes of replicas with the same weights, by the type of the weights.

Replicas on the same hardware give bit-identical probes. Other GPUs use kernels that round differently: in bfloat16
single tokens of the same weights have differed by up to 0.23 nats (docs/learner.md).
"""


class Replicas(Sampler):
    """Samples with several replicas in separate Ray actors; every sync updates all of them.

    One replica samples all responses to a problem. Groups wait here, those with the longest expected time first. A
    replica gets new groups while it answers others, as many as it has room for. If a replica dies or hangs, another one
    answers its groups, once. A new process takes its place, and answers only with the current weights: at once if these
    are the model's own, otherwise from the next sync on.

    Args:
        placement: A Ray placement group to use, such as one shared with learner ranks; by default a new one with a
            bundle per replica.
        bundles: Each replica's bundle in the placement group; by default the first ones.
        transport: How weights are transferred; see ``transport_of``.
        bucket_bytes: Most bytes of weights sent at a time.
        tolerance: Largest difference (nats) between the replicas' log-probabilities after the same prompts after a
            sync; None: depends on the type of the weights (``PROBE_TOLERANCES``).
        restarts: Times in a row that a replica may end without a sync or a group in between, and is restarted.
        start_seconds: Timeout for a replica to be placed and to load the model.
        answer_seconds: Timeout for a replica's next group or response. For one bucket of a sync it is half of that, so
            that the sending ranks do not count as dead first.

    Attributes:
        actors: The replicas' processes.
        sync_number: Number of the sync of the current weights; 0 for the model's own.
        pipe: The ``in_flight.InFlightPipe`` that uses these replicas, if any: all answers then go through it.

    Raises:
        RolloutError: Ray is not installed, the cluster has no room, or the model cannot be loaded.
        EngineError: A replica died while it started.
    """

    def __init__(
        self,
        opener: Opener,
        model: str | Path,
        sampling: Sampling,
        *,
        replicas: int,
        num_gpus: float = 0.0,
        placement: Any = None,
        bundles: Sequence[int] | None = None,
        num_cpus: float = 1.0,
        transport: str = "auto",
        bucket_bytes: int = BUCKET_BYTES,
        tolerance: float | None = None,
        restarts: int = 3,
        start_seconds: float = 600.0,
        answer_seconds: float = 1800.0,
    ) -> None:
        super().__init__(model, sampling)
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise RolloutError(f"replicas is {replicas!r}; it must be a whole number of at least 1")
        if tolerance is not None and not tolerance > 0:
            raise RolloutError(f"tolerance is {tolerance!r}; it must be a positive number of nats, or None")
        self.transport = transport_of(transport, num_gpus=num_gpus)
        self._ray = connected_ray()
        self._own_placement: Any = None
        self.pipe: Any = None
        self.expected, self.sync_number = Expected(sampling.max_new_tokens), 0
        if placement is None:
            from ray.util.placement_group import placement_group, remove_placement_group

            bundle = {"CPU": num_cpus, "GPU": num_gpus}
            placement = placement_group([{k: v for k, v in bundle.items() if v}] * replicas, strategy="PACK")
            if not placement.wait(start_seconds):
                remove_placement_group(placement)
                raise RolloutError(
                    f"{replicas} replicas need {num_cpus:g} CPUs and {num_gpus:g} GPUs each, and in {start_seconds:g} "
                    f"s the cluster had no room for them (it has {resources(self._ray)})"
                )
            self._own_placement = placement
        devices = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        self._places = [{**devices, "scheduling_strategy": s} for s in _strategies(placement, bundles, replicas)]
        self._opener, self._start_seconds = opener, start_seconds
        self._bucket_bytes, self._bucket_seconds = bucket_bytes, answer_seconds / 2
        members = [ReplicaMember(index=index) for index in range(replicas)]
        self.actors = ReplicaActors(self._ray, members, self._start, seconds=answer_seconds, restarts=restarts)
        try:
            self.actors.fill()
            opened: dict[int, Opened] = self.actors.gather(members)
            if len(opened) < replicas:
                raise self.actors.nobody("start")
            self.plan, self.sleeps, self.dtype = opened[0].plan, opened[0].sleeps, opened[0].dtype
            self._tolerance = tolerance or PROBE_TOLERANCES.get(self.dtype or "", max(PROBE_TOLERANCES.values()))
            self._agree({index: one.probe for index, one in opened.items()})
        except BaseException:
            self.close()
            raise

    def _start(self, member: ReplicaMember) -> None:
        """Start a replica's process and its loading of the model, without waiting for it."""
        actor: Any = self._ray.remote(Replica)
        member.actor = actor.options(**self._places[member.index]).remote(self._opener)
        task = "find a place and load the model"
        self.actors.ask(member, "open", self.sampling, task=task, seconds=self._start_seconds)

    def use(self, sampling: Sampling) -> None:
        """Change the sampling settings; see ``Sampler.use``."""
        if self._streams:
            raise RolloutError("a stream is still open, whose responses would be sampled differently; close it first")
        super().use(sampling)
        self._look()
        for member in self.actors.busy:
            # A replica that is still loading the model does that first, since an actor keeps the order of its calls.
            member.actor.call.remote("use", sampling)
        self._ask(self._idle(), "call", "use", sampling, task="take other sampling options")

    def sleep(self) -> None:
        """Let all replicas sleep; see ``Sampler.sleep``."""
        # A starting replica would take its part of the GPU from the process that is to use it next.
        self.settle()
        self._ask(self._idle(), "call", "sleep", task="sleep")

    def _idle(self) -> list[ReplicaMember]:
        return [member for member in self.actors.members if member.idle]

    def _ask(self, members: Sequence[ReplicaMember], method: str, *arguments: Any, task: str) -> dict[int, Any]:
        """Call some replicas and wait; return the answers by index, without those of replicas that died or hung."""
        for member in members:
            self.actors.ask(member, method, *arguments, task=task)
        return self.actors.gather(members)

    @property
    def manifest(self) -> Manifest:
        """The tensors of the model; waits until all replicas are up or left out. See ``Sampler.manifest``."""
        tensors = self._tensors()
        # A restarted replica takes part in the next sync.
        self.actors.gather(self.actors.members)
        return tensors

    def _tensors(self) -> Manifest:
        self._look()
        tensors: Manifest = self._one("manifest", task="list the model's tensors")
        return tensors

    def sync(self, weights: Any, version: int, *, in_flight: bool = False) -> None:
        """Load weights into all replicas; those that die or hang meanwhile are terminated.

        Args:
            weights: If they have a method ``on_ranks``, as the weights of learner ranks do, the ranks send them and
                none passes through this process.
            in_flight: For a pipe's responses in the replicas; no other stream may continue.

        Raises:
            RolloutError: The weights are not those of the model, a replica refuses them, the replicas differ
                afterwards, or a pipe uses the replicas and weights must come through its ``push``.
            EngineError: No replica is left, or one was lost that takes part in a broadcast with others.
        """
        if in_flight and self.pipe is not None and not self.pipe.drives:
            raise RolloutError("a pipe uses the replicas; weights must enter by its push(weights, version)")
        self._tear(in_flight=in_flight and self.pipe is not None)
        task = f"take over the weights of version {version}"
        # In flight, replicas do not wait for one that restarts.
        wanted = self._tensors() if in_flight else self.manifest
        self.sync_number += 1
        members = self._idle()
        for member in members:
            member.sync = None
        began = self._ask(members, "begin_sync", self.sync_number, in_flight, task=task)
        transfer = Transfer(
            transport=self.transport,
            receivers=[replace(member) for member in members if member.index in began],
            number=self.sync_number,
            task=task,
            wanted=wanted,
            size=self._bucket_bytes,
            seconds=self._bucket_seconds,
        )
        reached, count = self._sent(transfer, weights) if began else ([], 0)
        ended = self._ask(reached, "end_sync", version, self.sync_number, count, task=task)
        if not ended:
            raise self.actors.nobody(task)
        self._agree({index: one.probe for index, one in ended.items()})
        self._stamp(version)
        self._whole = True

    def _sent(self, transfer: Transfer, weights: Any) -> tuple[list[ReplicaMember], int]:
        """Send weights and terminate lost replicas; return the others and the number of buckets."""
        on_ranks = getattr(weights, "on_ranks", None)
        sent = [transfer(0, pairs(weights))] if on_ranks is None else on_ranks(transfer)
        lost = {index: why for one in sent for index, why in one.lost.items()}
        for index, why in lost.items():
            self.actors.lose(self.actors.members[index], why)
        for one in sent:
            if one.failure is not None:
                raise one.failure
        reached = {index for one in sent for index in one.reached}
        for receiver in transfer.receivers:
            if receiver.index not in reached and receiver.opened is not None:
                raise RolloutError(
                    f"no rank that has the weights is on the {receiver.opened.place} of replica {receiver.index}; the "
                    "transport must be nccl or object_store"
                )
        left = [self.actors.members[index] for index in sorted(reached - lost.keys())]
        return left, max(one.buckets for one in sent)

    def settle(self) -> None:
        """Wait until restarted replicas have loaded the model or are left out."""
        self._look()
        while self.actors.busy:
            self.actors.gather(self.actors.members)
            self._look()

    def close(self) -> None:
        """Terminate the replicas; the cluster stays as it is."""
        if self.pipe is not None:
            self.pipe.close(wait=False)
        self.actors.close()
        # If the weights were this process's own, it was the sender.
        weights.leave()
        if self._own_placement is not None and self._ray.is_initialized():
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._own_placement)
        self._own_placement = None

    def able(self) -> list[int]:
        """Indices of the replicas that have the current weights, or will have them once they are up."""
        current = self.sync_number
        return [m.index for m in self.actors.members if m.actor is not None and (not current or m.sync == current)]

    def make_current(self) -> None:
        """Allow restarted replicas that have the current weights to answer."""
        for member in self._idle():
            if member.sync is not None or member.said is None or member.said.sync != self.sync_number:
                continue
            try:
                agreed({-1: self._reference, member.index: member.said.probe}, tolerance=self._tolerance)
            except RolloutError:
                self.actors.end(member)
                raise
            member.sync = self.sync_number

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        if self.pipe is not None:
            yield from self.pipe.answer(problems, draw)
            return
        self._look()
        dispatch = Dispatch(self)
        dispatch.add(self.costs(problems, draw), problems, draw)
        try:
            while dispatch.missing:
                for _, group in dispatch.turn():
                    yield group
        finally:
            dispatch.close()

    def carry(self, pipe: Any) -> None:
        """Route all requests through a pipe from now on, or through none."""
        if pipe is not None and self._streams:
            raise RolloutError("a stream is still open, beside which no pipe can use the replicas; close it first")
        self._streams += 1 if pipe is not None else -1
        self.pipe = pipe

    def costs(self, problems: pl.DataFrame, draw: Draw) -> dict[str, float]:
        """Return the expected costs of problems' groups, after the checks that one replica makes first."""
        self.faults.check()
        lengths = self._one("lengths", problems, Verifiers.here(), task="check the problems")
        return self.expected.costs(dict(zip(problems["problem_id"].to_list(), lengths, strict=True)), draw.samples)

    def _agree(self, probes: dict[int, list[float]]) -> None:
        """Allow replicas to answer if they sample from the same weights."""
        self._reference = agreed(probes, tolerance=self._tolerance)
        for index in probes:
            self.actors.members[index].sync, self.actors.members[index].deaths = self.sync_number, 0

    def _one(self, method: str, *arguments: Any, task: str) -> Any:
        """Call one replica that is up, and another one if it dies."""
        while any(member.actor is not None for member in self.actors.members):
            idle = self._idle()
            if idle and (answers := self._ask(idle[:1], method, *arguments, task=task)):
                return answers[idle[0].index]
            self._look(0.0 if idle else LONGEST_WAIT)
        raise self.actors.nobody(task)

    def _look(self, seconds: float = 0.0) -> None:
        """Process calls that end within ``seconds``, and start missing replicas."""
        for event in self.actors.wait(seconds):
            if event.error is not None:
                raise event.error
        self.actors.fill()


def _strategies(placement: Any, bundles: Sequence[int] | None, replicas: int) -> list[Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    chosen = range(replicas) if bundles is None else bundles
    if len(chosen) != replicas:
        raise RolloutError(f"bundles names {len(chosen)} bundles; it must name one for each of {replicas} replicas")
    return [
        PlacementGroupSchedulingStrategy(placement_group=placement, placement_group_bundle_index=bundle)
        for bundle in chosen
    ]


class Dispatch:
    """Answers problems with all replicas that have the current weights; groups of a lost one go to another, once.

    Groups wait in one queue here, so no group waits at a busy replica while another one is idle.

    Args:
        in_flight: Whether new weights may arrive meanwhile (``pause``), so that replicas must answer often.

    Attributes:
        missing: Groups that were added and have not arrived, by batch and problem.
        lost: Groups that were lost with a replica, and why; the consumer removes them.
    """

    def __init__(self, pool: Replicas, *, in_flight: bool = False) -> None:
        self._pool, self._actors, self._verifiers = pool, pool.actors, Verifiers.here()
        self._in_flight = in_flight
        self._queue = Queue()
        self.missing: dict[tuple[Batch, str], QueuedGroup] = {}
        self.lost: list[tuple[QueuedGroup, str]] = []
        self._given: dict[int, dict[tuple[str, int, str], QueuedGroup]] = {}
        """Groups that each replica has received and not answered, by its index and by phase, step and problem."""
        self._given_to: dict[int, Any] = {}
        """The process of each replica that has received groups."""
        self._room: dict[int, int] = {}
        """Responses that each replica has room for, by its index."""
        self._arrived: list[tuple[Batch, pa.RecordBatch]] = []
        self._failure: Exception | None = None

    def add(
        self, costs: Mapping[str, float], problems: pl.DataFrame, draw: Draw, *, places: Iterable[int] = repeat(0)
    ) -> Batch:
        """Add the groups of problems; phase, step and problem must be unique at any time.

        Args:
            costs: Expected costs of the problems to answer (``Expected.costs``).
            places: Queue position of each.
        """
        rows = {problem_id: row for row, problem_id in enumerate(problems["problem_id"])}
        batch = Batch(problems=problems, draw=draw, rows=rows)
        added = [
            QueuedGroup(problem_id=name, batch=batch, cost=cost, place=place)
            for (name, cost), place in zip(costs.items(), places, strict=False)
        ]
        self._queue.add(added)
        self.missing |= {(batch, work.problem_id): work for work in added}
        return batch

    @property
    def works(self) -> bool:
        """Whether replicas are answering groups or will."""
        return any(self._given.values()) or self._queue.reachable(self._pool.able())

    @property
    def unused(self) -> float:
        """The fraction of replicas without groups."""
        return 1 - sum(map(bool, self._given.values())) / len(self._actors.members)

    def turn(self, seconds: float = LONGEST_WAIT) -> list[tuple[Batch, pa.RecordBatch]]:
        """Dispatch groups and wait for answers for at most ``seconds``; return the arrived groups with their batches.

        Raises:
            EngineError: A group was lost with two replicas, or no replica is left for one.
            RolloutError: A replica refuses the problems. Groups that arrived before are returned first.
        """
        if self._failure is None:
            try:
                self._hand_out()
                if self.missing and not self.works:
                    raise self._actors.nobody(f"answer {_named(p for _, p in self.missing)}")
                self._gather(seconds)
                # Before returning groups, so that the replicas continue meanwhile.
                self._hand_out()
            except Exception as error:
                self._failure = error
        if self._failure is not None and not self._arrived:
            raise self._failure
        return self.arrived()

    def arrived(self) -> list[tuple[Batch, pa.RecordBatch]]:
        """Return the groups that have arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def pause(self) -> None:
        """Wait until no replica with groups is working; the next turn lets them continue."""
        # A restarted replica is loading the model and has no groups.
        self._miss()
        while any(self._actors.members[index].call is not None for index in self._given):
            self._gather(LONGEST_WAIT)
        self._miss()

    def entered(self) -> None:
        """Record that weights have arrived: restarted processes may retry groups that others have died over."""
        self._miss()
        self._queue.forgive()

    def abandon(self) -> tuple[list[pa.RecordBatch], list[QueuedGroup]]:
        """Remove all groups and start empty; errors of replicas are not raised.

        Returns what replicas have generated of their unfinished groups, and the groups that no replica has reported.
        """
        self._settle()
        begun = [member for index in self._given if (member := self._actors.members[index]).idle]
        for member in begun:
            self._actors.ask(member, "abandon", task="end its groups")
        answers: list[Answered] = []
        while any(member.call is not None for member in begun):
            answers += [event.value for event in self._actors.wait() if isinstance(event.value, Answered)]
        unfinished = {key: work for given in self._given.values() for key, work in given.items()}
        groups = [group for answer in answers for group in answer.groups]
        for key in [*map(_key, groups), *(key for answer in answers for key in answer.waiting)]:
            unfinished.pop(key, None)
        self._queue, self.missing, self._given, self._room = Queue(), {}, {}, {}
        return groups, list(unfinished.values())

    def close(self) -> None:
        """Remove unfinished groups from the replicas."""
        self._settle()
        idle = [member for index in self._given if (member := self._actors.members[index]).idle]
        self._given = {}
        for member in idle:
            self._actors.ask(member, "end", task="end a batch")
        with suppress(Exception):
            self._actors.gather(idle)

    def _settle(self) -> None:
        """Pause, whatever groups are lost or refused meanwhile."""
        calls: list[Any] | None = None
        # If no call ends, as with a lost cluster, this would never stop.
        while calls != (calls := [self._actors.members[index].call for index in self._given]):
            with suppress(Exception):
                self.pause()
                return

    def _miss(self) -> None:
        """Handle replicas that were lost during other calls."""
        for index in list(self._given):
            if self._actors.members[index].actor is not self._given_to[index]:
                self._lost(index, self._actors.last_lost)

    def _gather(self, seconds: float) -> None:
        """Wait for answers; answers are processed before errors and losses."""
        failure: Exception | None = None
        for event in sorted(self._actors.wait(seconds), key=lambda event: bool(event.lost or event.error)):
            try:
                if event.error is not None:
                    raise event.error
                if event.lost:
                    self._lost(event.member.index, event.lost)
                elif isinstance(event.value, Answered):
                    self._answered(event.member, event.value)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _hand_out(self) -> None:
        """Give idle replicas as many groups as they have room for, and let them continue."""
        self._miss()
        self._pool.make_current()
        current = [m for m in self._actors.members if m.idle and m.sync == self._pool.sync_number]
        taken: dict[int, list[QueuedGroup]] = {member.index: [] for member in current}
        load = {index: sum(work.cost for work in self._given.get(index, {}).values()) for index in taken}
        room = {m.index: self._room.get(m.index, m.opened.holds) for m in current if m.opened is not None}
        while able := [index for index in taken if room[index] > 0 and self._queue.reachable([index])]:
            index = min(able, key=load.__getitem__)
            work = self._queue.take(index)
            taken[index].append(work)
            load[index] += work.cost
            room[index] -= work.batch.draw.samples
        for member in current:
            works, begins = taken[member.index], member.index not in self._given
            if not works and not self._given.get(member.index):
                continue
            given, self._given_to[member.index] = self._given.setdefault(member.index, {}), member.actor
            parts: list[Part] = []
            for batch, of_batch in groupby(works, key=lambda work: work.batch):
                these = list(of_batch)
                given.update({(batch.draw.phase, batch.draw.step, work.problem_id): work for work in these})
                parts.append((batch.problems[[batch.rows[work.problem_id] for work in these]], batch.draw))
            more, task = self._queue.reachable([member.index]), f"answer {_named(p for *_, p in given)}"
            if begins:
                told = (self._verifiers, self._pool.sync_number, self._in_flight)
                self._actors.ask(member, "begin", parts, *told, more, task=task)
            else:
                self._actors.ask(member, "go_on", parts, more, task=task)

    def _answered(self, member: ReplicaMember, answer: Answered) -> None:
        given = self._given.get(member.index, {})
        for group in answer.groups:
            self._take(group, given)
        self._pool.faults.add(answer.unscored, scored=answer.scored)
        self._room[member.index] = answer.room
        member.answered += len(answer.groups)
        if answer.groups:
            member.deaths = 0
        if answer.ended and given:
            raise RolloutError(f"replica {member.index} has ended without an answer to {_named(p for *_, p in given)}")

    def _take(self, group: pa.RecordBatch, given: dict[tuple[str, int, str], QueuedGroup]) -> None:
        """Record a group; refuse it if it was not requested or has other weights.

        In flight, weights may change before a group finishes; callers that need certain weights compare them.
        """
        _, _, problem_id = key = _key(group)
        versions, current = set(group["weights_version"].to_pylist()), self._pool.weights_version
        work = given.pop(key, None)
        if work is None or (max(versions) > current if self._in_flight else versions != {current}):
            raise RolloutError(
                f"a replica has answered problem {problem_id} with weights of version {sorted(versions)}; asked was "
                f"for {_named(p for _, p in self.missing)} with version {current}"
            )
        del self.missing[work.batch, problem_id]
        self._pool.expected.learn(problem_id, group["response_ids"].value_lengths().to_pylist())
        self._arrived.append((work.batch, group))

    def _lost(self, index: int, why: str) -> None:
        """Requeue the groups of a lost replica for others, and start a new process in its place."""
        given = self._given.pop(index, {})
        self._room.pop(index, None)
        self.lost += [(work, why) for work in given.values()]
        twice = self._queue.put_back(given.values(), index)
        self._actors.fill()
        if twice:
            raise EngineError(f"{_named([work.problem_id for work in twice])} lost with two replicas: {why}")


def _key(group: pa.RecordBatch) -> tuple[str, int, str]:
    phase, step, problem_id = (group[name][0].as_py() for name in ("phase", "step", "problem_id"))
    return phase, step, problem_id


def _named(problems: object) -> str:
    """Name the first problems, for an error message."""
    names = sorted(str(problem) for problem in problems)  # type: ignore[attr-defined]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the group{'s' if len(names) > 1 else ''} of {', '.join(names[:SHOWN])}{more}"


def transport_of(wanted: str, *, num_gpus: float) -> str:
    """Return how weights are transferred; ``auto`` depends on the replicas' devices.

    ``object_store`` for replicas without a GPU, ``nccl`` for replicas with whole GPUs, and ``ipc`` for replicas that
    share a GPU with a rank.
    """
    if wanted not in ("auto", *TRANSPORTS):
        raise RolloutError(f"transport is {wanted!r}; it must be auto or one of {', '.join(TRANSPORTS)}")
    if wanted == "nccl" and not num_gpus:
        raise RolloutError("transport is 'nccl', and the replicas have no GPU; it must be object_store or gloo")
    if wanted != "auto":
        return wanted
    return "nccl" if num_gpus >= 1 else "ipc" if num_gpus else "object_store"


def agreed(probes: dict[int, list[float]], *, tolerance: float) -> list[float]:
    """Return the probe that all replicas agree on, up to ``tolerance`` (nats)."""
    first, *others = sorted(probes.items())
    for index, probe in others:
        apart = max((abs(a - b) for a, b in zip(first[1], probe, strict=True)), default=0.0)
        # NaN is no agreement, unless both have it.
        if apart > tolerance or [a != a for a in first[1]] != [b != b for b in probe]:
            raise RolloutError(
                f"replicas {first[0]} and {index} do not sample from the same weights: their log-probabilities after "
                f"the same prompts lie {apart:.3g} nats apart, and may by {tolerance:g}; sync again before sampling"
            )
    return first[1]
