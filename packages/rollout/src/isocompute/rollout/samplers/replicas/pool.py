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
"""Groups that an error names."""
PROBE_TOLERANCES = {"float32": 1e-3, "float16": 0.025, "bfloat16": 0.2}
"""How far the probes of replicas with the same weights may lie apart (nats), by the type of the weights.

Replicas on the same hardware answer a probe alike to the last bit. On other GPUs other kernels round otherwise: in
bfloat16 single tokens of the same weights were seen to differ by up to 0.23 nats (docs/learner.md).
"""


class Replicas(Sampler):
    """Samples with several replicas, each in a Ray actor of its own; all of them take over every sync.

    The responses to a problem are sampled by one replica. Groups wait here, those that are expected to take longest
    first, and a replica is given them while it answers others, as many as it has room for. Of a replica
    that dies or hangs, the groups that it was given are answered by another, once; a new process takes its place, and
    answers only once it has the current weights: at once where these are the model's own, else from the next sync on.

    Args:
        placement: A Ray placement group to be in, such as one shared with learner ranks; by default one of its own,
            with a bundle for each.
        bundles: The bundle of each replica in it; by default the first ones.
        transport: The way in which weights travel; see ``transport_of``.
        bucket_bytes: Most bytes of weights that are sent at a time.
        tolerance: How far the replicas' log-probabilities after the same prompts may lie apart after a sync (nats);
            None follows the type of their weights (``PROBE_TOLERANCES``).
        restarts: How often in a row a replica may end, without a sync or a group between, and is started again.
        start_seconds: Timeout for a replica to be placed and to load the model.
        answer_seconds: Timeout for a replica's next group or response. For one bucket of a sync it is half of that, so
            that ranks that send it are not taken for dead first.

    Attributes:
        actors: The replicas' processes.
        sync_number: Number of the sync whose weights answer; 0 where the model's own do.
        pipe: The ``in_flight.InFlightPipe`` that uses these replicas, if one does: they answer everything through it.

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
        """Start a replica's process and let it load the model, without waiting for it."""
        actor: Any = self._ray.remote(Replica)
        member.actor = actor.options(**self._places[member.index]).remote(self._opener)
        task = "find a place and load the model"
        self.actors.ask(member, "open", self.sampling, task=task, seconds=self._start_seconds)

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on; see ``Sampler.use``."""
        if self._streams:
            raise RolloutError("a stream is still open, whose responses would be sampled differently; close it first")
        super().use(sampling)
        self._look()
        for member in self.actors.busy:
            # One that is still loading the model does so before this: an actor keeps the order of its calls.
            member.actor.call.remote("use", sampling)
        self._ask(self._idle(), "call", "use", sampling, task="take other sampling options")

    def sleep(self) -> None:
        """Let all replicas sleep; see ``Sampler.sleep``."""
        # One that is starting would take its part of a GPU from whoever that is left to.
        self.settle()
        self._ask(self._idle(), "call", "sleep", task="sleep")

    def _idle(self) -> list[ReplicaMember]:
        return [member for member in self.actors.members if member.idle]

    def _ask(self, members: Sequence[ReplicaMember], method: str, *arguments: Any, task: str) -> dict[int, Any]:
        """Ask some replicas, and wait for them; returns the answers by index, without those that died or hung."""
        for member in members:
            self.actors.ask(member, method, *arguments, task=task)
        return self.actors.gather(members)

    @property
    def manifest(self) -> Manifest:
        """The tensors that the model has; all replicas that are not left out are up then. See ``Sampler.manifest``."""
        tensors = self._tensors()
        # One that was started again takes part in the sync that follows.
        self.actors.gather(self.actors.members)
        return tensors

    def _tensors(self) -> Manifest:
        self._look()
        tensors: Manifest = self._one("manifest", task="list the model's tensors")
        return tensors

    def sync(self, weights: Any, version: int, *, in_flight: bool = False) -> None:
        """Take over weights with all replicas, of which those that die or hang meanwhile are ended.

        Args:
            weights: Where it has a method ``on_ranks``, as the weights of learner ranks do, they are sent from these,
                and none passes through this process.
            in_flight: For what a pipe has in the replicas; no other stream goes on.

        Raises:
            RolloutError: The weights are not those of the model, a replica refuses them, not all have the same now, or
                a pipe uses the replicas, through whose ``push`` weights must come.
            EngineError: No replica is left, or one was lost that others receive a broadcast with.
        """
        if in_flight and self.pipe is not None and not self.pipe.drives:
            raise RolloutError("a pipe uses the replicas; weights must enter by its push(weights, version)")
        self._tear(in_flight=in_flight and self.pipe is not None)
        task = f"take over the weights of version {version}"
        # Replicas that go on do not wait for one that is started again.
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
        """Send weights, and end the replicas that were lost; returns the others and the number of buckets."""
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
        """Wait until the replicas that were started again have loaded the model, or are left out."""
        self._look()
        while self.actors.busy:
            self.actors.gather(self.actors.members)
            self._look()

    def close(self) -> None:
        """End the replicas; a cluster stays as it is."""
        if self.pipe is not None:
            self.pipe.close(wait=False)
        self.actors.close()
        # Where the weights were this process's own, it was the sender.
        weights.leave()
        if self._own_placement is not None and self._ray.is_initialized():
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._own_placement)
        self._own_placement = None

    def able(self) -> list[int]:
        """Indices of the replicas that hold the current weights, or will hold them as soon as they are up."""
        current = self.sync_number
        return [m.index for m in self.actors.members if m.actor is not None and (not current or m.sync == current)]

    def make_current(self) -> None:
        """Let replicas that have come up with the current weights answer."""
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
        """Answer everything through a pipe from now on, or through none."""
        if pipe is not None and self._streams:
            raise RolloutError("a stream is still open, beside which no pipe can use the replicas; close it first")
        self._streams += 1 if pipe is not None else -1
        self.pipe = pipe

    def costs(self, problems: pl.DataFrame, draw: Draw) -> dict[str, float]:
        """Return what groups of problems are expected to cost, after the checks that one replica makes beforehand."""
        self.faults.check()
        lengths = self._one("lengths", problems, Verifiers.here(), task="check the problems")
        return self.expected.costs(dict(zip(problems["problem_id"].to_list(), lengths, strict=True)), draw.samples)

    def _agree(self, probes: dict[int, list[float]]) -> None:
        """Let replicas answer, if they sample from the same weights."""
        self._reference = agreed(probes, tolerance=self._tolerance)
        for index in probes:
            self.actors.members[index].sync, self.actors.members[index].deaths = self.sync_number, 0

    def _one(self, method: str, *arguments: Any, task: str) -> Any:
        """Ask one replica, whichever is up, and another one where it dies."""
        while any(member.actor is not None for member in self.actors.members):
            idle = self._idle()
            if idle and (answers := self._ask(idle[:1], method, *arguments, task=task)):
                return answers[idle[0].index]
            self._look(0.0 if idle else LONGEST_WAIT)
        raise self.actors.nobody(task)

    def _look(self, seconds: float = 0.0) -> None:
        """Take note of the replicas that have come up within some seconds, and start those that are missing."""
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
    """Answers problems with all replicas that hold the current weights; groups of a lost one go to another, once.

    Groups wait in one queue here, so that none that has not begun waits where it was given while a replica is idle.

    Args:
        in_flight: Whether new weights enter meanwhile (``pause``), for which replicas must answer often.

    Attributes:
        missing: Groups that were added and are not there, by batch and problem.
        lost: Groups that were lost with a replica, and why; whoever counts them takes them out.
    """

    def __init__(self, pool: Replicas, *, in_flight: bool = False) -> None:
        self._pool, self._actors, self._verifiers = pool, pool.actors, Verifiers.here()
        self._in_flight = in_flight
        self._queue = Queue()
        self.missing: dict[tuple[Batch, str], QueuedGroup] = {}
        self.lost: list[tuple[QueuedGroup, str]] = []
        self._given: dict[int, dict[tuple[str, int, str], QueuedGroup]] = {}
        """Groups that each replica was given and has not answered, by its index and by phase, step and problem."""
        self._given_to: dict[int, Any] = {}
        """The process of each that was given some."""
        self._room: dict[int, int] = {}
        """Responses that each replica has room for, by its index."""
        self._arrived: list[tuple[Batch, pa.RecordBatch]] = []
        self._failure: Exception | None = None

    def add(
        self, costs: Mapping[str, float], problems: pl.DataFrame, draw: Draw, *, places: Iterable[int] = repeat(0)
    ) -> Batch:
        """Add the groups of some problems, no two of one phase, step and problem at a time.

        Args:
            costs: Of the problems that are to be answered (``Expected.costs``).
            places: Of each in the queue.
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
        """Whether replicas answer groups, or will."""
        return any(self._given.values()) or self._queue.reachable(self._pool.able())

    @property
    def unused(self) -> float:
        """The share of the replicas that have no group."""
        return 1 - sum(map(bool, self._given.values())) / len(self._actors.members)

    def turn(self, seconds: float = LONGEST_WAIT) -> list[tuple[Batch, pa.RecordBatch]]:
        """Hand out groups, and wait for answers no longer than some seconds; returns those there, each with its batch.

        Raises:
            EngineError: A group was lost with two replicas, or no replica is left for one.
            RolloutError: A replica refuses the problems. Groups that were answered before are returned first.
        """
        if self._failure is None:
            try:
                self._hand_out()
                if self.missing and not self.works:
                    raise self._actors.nobody(f"answer {_named(p for _, p in self.missing)}")
                self._gather(seconds)
                # Before the groups are handed out: the replicas go on meanwhile.
                self._hand_out()
            except Exception as error:
                self._failure = error
        if self._failure is not None and not self._arrived:
            raise self._failure
        return self.arrived()

    def arrived(self) -> list[tuple[Batch, pa.RecordBatch]]:
        """Return the groups that have come meanwhile."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def pause(self) -> None:
        """Wait until no replica that was given groups is at work; the next turn lets them go on."""
        # One that was started again is loading the model, and has none of them.
        self._miss()
        while any(self._actors.members[index].call is not None for index in self._given):
            self._gather(LONGEST_WAIT)
        self._miss()

    def entered(self) -> None:
        """Take note that weights have entered: processes that were started again may try what others have died over."""
        self._miss()
        self._queue.forgive()

    def abandon(self) -> tuple[list[pa.RecordBatch], list[QueuedGroup]]:
        """Take everything out, and begin empty; what replicas fail with meanwhile is not raised.

        Returns what replicas have generated of their unfinished groups, and the groups of which none says it.
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
        """Take what is unfinished out of the replicas."""
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
        # Without an end to any of them, as of a cluster that is gone, it would go on for ever.
        while calls != (calls := [self._actors.members[index].call for index in self._given]):
            with suppress(Exception):
                self.pause()
                return

    def _miss(self) -> None:
        """Take note of replicas that were lost while they did something else."""
        for index in list(self._given):
            if self._actors.members[index].actor is not self._given_to[index]:
                self._lost(index, self._actors.last_lost)

    def _gather(self, seconds: float) -> None:
        """Wait for answers; those of replicas that are there are taken before what others fail with."""
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
        """Give the replicas that have come back what they have room for, and let them go on."""
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
        """Note that a group is there; refuse one of other weights or that was not requested.

        In flight, weights may enter before one is finished; whoever asked with certain weights compares.
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
        """Let other replicas answer what a lost one was given; a new process takes its place."""
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
    """Name the first problems of some, for an error."""
    names = sorted(str(problem) for problem in problems)  # type: ignore[attr-defined]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the group{'s' if len(names) > 1 else ''} of {', '.join(names[:SHOWN])}{more}"


def transport_of(wanted: str, *, num_gpus: float) -> str:
    """Return the way in which weights travel: of ``auto``, what the replicas' devices suggest.

    ``object_store`` for replicas without a GPU, ``nccl`` for those with GPUs of their own, and ``ipc`` for those that
    have a share of one, which they share with a rank.
    """
    if wanted not in ("auto", *TRANSPORTS):
        raise RolloutError(f"transport is {wanted!r}; it must be auto or one of {', '.join(TRANSPORTS)}")
    if wanted == "nccl" and not num_gpus:
        raise RolloutError("transport is 'nccl', and the replicas have no GPU; it must be object_store or gloo")
    if wanted != "auto":
        return wanted
    return "nccl" if num_gpus >= 1 else "ipc" if num_gpus else "object_store"


def agreed(probes: dict[int, list[float]], *, tolerance: float) -> list[float]:
    """Return what all replicas say of their weights, by their probes, which may lie so far apart (nats)."""
    first, *others = sorted(probes.items())
    for index, probe in others:
        apart = max((abs(a - b) for a, b in zip(first[1], probe, strict=True)), default=0.0)
        # Not a number is no agreement, unless both have it.
        if apart > tolerance or [a != a for a in first[1]] != [b != b for b in probe]:
            raise RolloutError(
                f"replicas {first[0]} and {index} do not sample from the same weights: their log-probabilities after "
                f"the same prompts lie {apart:.3g} nats apart, and may by {tolerance:g}; sync again before sampling"
            )
    return first[1]
