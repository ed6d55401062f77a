"""Several replicas of a sampler behind its interface: tables depend neither on their number nor on deaths."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from ...errors import RolloutError
from .. import broadcasting
from ..actor import Verifiers, connected_ray, resources
from ..base import Sampler, pairs
from ..buckets import BUCKET_BYTES
from ..manifest import Manifest
from ..sampling import Draw, Sampling
from .crew import Crew, Timeouts
from .dispatch import Dispatch
from .replica import Opened, Opener
from .schedule import Expected
from .sending import Sender, Sync, agreed, transport_of

_log = logging.getLogger(__name__)


class Replicas(Sampler):
    """Samples with several replicas, each in a Ray actor of its own; all of them take over every sync.

    The responses to a problem are sampled by one replica. Groups that are expected to take longest go first, in chunks
    to whichever replica is free. Of a replica that dies or hangs, the groups that it was given are answered by another,
    once; a new process takes its place, and answers only once it has the current weights: at once where these are the
    model's own or are kept, else from the next sync on.

    Seeds belong to responses, so tokens do not depend on the number of replicas.

    Args:
        opener: Opens one replica's sampler, in its process; it is pickled (``functools.partial`` of ``open_sampler``).
        model: Directory or name of the model, for messages.
        placement: A Ray placement group to be in, such as one shared with learner ranks; by default one of its own,
            with a bundle for each.
        bundles: The bundle of each replica in it; by default the first ones.
        transport: How weights travel; see ``sending.transport_of``.
        bucket_bytes: Most bytes of weights that are sent at a time.
        keep_weights: Whether Ray's object store keeps the weights of the latest sync, a whole model, for replicas that
            are started again before the next.
        tolerance: How far the replicas' log-probabilities after the same prompts may lie apart after a sync (nats).
        restarts: How often in a row a replica may end, without a sync or a group between, and is started again.
        start_seconds: Timeout for a replica to be placed and to load the model.
        answer_seconds: Timeout for a replica's next group. For one bucket of a sync it is half of that, so that ranks
            that send it are not taken for dead first.

    Attributes:
        crew: The replicas.
        transport: How weights travel.
        expected: Expected lengths of responses, for the order of groups.
        sync_number: Number of the sync whose weights answer; 0 where the model's own do.

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
        keep_weights: bool = False,
        tolerance: float = 1e-3,
        restarts: int = 3,
        start_seconds: float = 600.0,
        answer_seconds: float = 1800.0,
    ) -> None:
        super().__init__(model, sampling)
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise RolloutError(f"replicas is {replicas!r}; it must be a whole number of at least 1")
        self.transport = transport_of(transport, num_gpus=num_gpus, keep=keep_weights)
        self._ray = connected_ray()
        self._own_placement: Any = None
        self._tolerance = tolerance
        self.expected, self.sync_number = Expected(sampling.max_new_tokens), 0
        devices = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        if placement is None:
            placement = self._own_placement = self._reserved(devices, replicas, start_seconds)
        places = [{**devices, "scheduling_strategy": s} for s in _strategies(placement, bundles, replicas)]
        timeouts = Timeouts(start=start_seconds, answer=answer_seconds)
        self.crew = Crew(self._ray, opener, places, timeouts, restarts=restarts)
        self._sender = Sender(
            self._ray, self.crew, transport=self.transport, size=bucket_bytes, seconds=answer_seconds / 2,
            keep=keep_weights,
        )  # fmt: skip
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Start all replicas, and wait for them."""
        for member in self.crew.members:
            self.crew.start(member, self.sampling)
        opened: dict[int, Opened] = self.crew.gather(self.crew.members)
        if len(opened) < len(self.crew.members):
            raise self.crew.nobody("start")
        self.plan, self.sleeps = opened[0].plan, opened[0].sleeps
        self._agree({index: one.probe for index, one in opened.items()})

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on; see ``Sampler.use``."""
        if self._streams:
            raise RolloutError("a stream is still open, whose responses would be sampled differently; close it first")
        super().use(sampling)
        self._look()
        self._all("use", sampling, task="take other sampling options")

    def sleep(self) -> None:
        """Let all replicas sleep; see ``Sampler.sleep``."""
        # One that is starting would take its part of a GPU from whoever that is left to.
        self.settle()
        self._all("sleep", task="sleep")

    def _all(self, method: str, *arguments: Any, task: str) -> None:
        """Ask all replicas that are up, and wait for them."""
        members = [member for member in self.crew.members if member.idle]
        for member in members:
            self.crew.ask(member, method, *arguments, task=task)
        self.crew.gather(members)

    @property
    def manifest(self) -> Manifest:
        """Which tensors the model has; at least one replica is up then. See ``Sampler.manifest``."""
        self._look()
        found: Manifest = self._one("manifest", task="list the model's tensors")
        return found

    def sync(self, weights: Any, version: int) -> None:
        """Take over weights with all replicas; see ``Sampler.sync`` and ``Sender.send``."""
        self._tear()
        wanted = self.manifest
        self.sync_number += 1
        self._agree(self._sender.send(Sync(number=self.sync_number, version=version), pairs(weights), wanted))
        self._stamp(version)
        self._whole = True

    def settle(self) -> None:
        """Wait until the replicas that were started again have loaded the model, or are left out."""
        self._look()
        while any(member.call is not None for member in self.crew.members):
            self.crew.gather(self.crew.members)
            self._look()

    def close(self) -> None:
        """End the replicas; a cluster stays as it is."""
        self.crew.close()
        # Where the weights were this process's own, it was the sender.
        broadcasting.leave()
        if self._own_placement is not None and self._ray.is_initialized():
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._own_placement)
        self._own_placement = None

    def able(self) -> list[int]:
        """Indices of the replicas that hold the current weights, or will hold them as soon as they are up."""
        later = self.sync_number == 0 or self._sender.keeps(self.sync_number)
        return [m.index for m in self.crew.members if m.actor is not None and (later or m.sync == self.sync_number)]

    def make_current(self) -> None:
        """Let replicas that have come up answer, or send them the weights that were kept.

        Raises:
            RolloutError: One says that it has the current weights, and does not sample from them.
        """
        for member in self.crew.members:
            if not member.idle or member.sync is not None or member.said is None:
                continue
            if member.said.sync != self.sync_number:
                if self._sender.keeps(self.sync_number):
                    self._sender.send_again(member)
                continue
            try:
                agreed({-1: self._reference, member.index: member.said.probe}, tolerance=self._tolerance)
            except RolloutError:
                self.crew.end(member)
                raise
            member.sync = self.sync_number

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        self._look()
        self.faults.check()
        problems = problems.sort("problem_id")
        lengths = self._one("lengths", problems, Verifiers.here(), task="check the problems")
        prompts = dict(zip(problems["problem_id"].to_list(), lengths, strict=True))
        dispatch = Dispatch(self, problems, self.expected.work(prompts, draw.samples), draw)
        try:
            yield from dispatch.groups()
        finally:
            dispatch.close()

    def _agree(self, probes: dict[int, list[float]]) -> None:
        """Let replicas answer, if they sample from the same weights."""
        self._reference = agreed(probes, tolerance=self._tolerance)
        for index in probes:
            self.crew.members[index].sync, self.crew.members[index].deaths = self.sync_number, 0

    def _one(self, method: str, *arguments: Any, task: str) -> Any:
        """Ask one replica, whichever is up, and another one where it dies."""
        while any(member.actor is not None for member in self.crew.members):
            idle = [member for member in self.crew.members if member.idle]
            if idle:
                self.crew.ask(idle[0], method, *arguments, task=task)
                answers = self.crew.gather(idle[:1])
                if answers:
                    return answers[idle[0].index]
            else:
                self.crew.next()
            self._look()
        raise self.crew.nobody(task)

    def _look(self) -> None:
        """Take note of the replicas that have come up meanwhile, and start those that are missing."""
        self.crew.poll()
        for member in self.crew.members:
            if member.actor is None:
                self.crew.start(member, self.sampling)

    def _reserved(self, devices: dict[str, float], replicas: int, seconds: float) -> Any:
        """A placement group with a bundle for each replica."""
        from ray.util.placement_group import placement_group, remove_placement_group

        bundle = {"CPU": devices["num_cpus"], "GPU": devices["num_gpus"]}
        group: Any = placement_group([{k: v for k, v in bundle.items() if v}] * replicas, strategy="PACK")
        if not group.wait(seconds):
            remove_placement_group(group)
            raise RolloutError(
                f"{replicas} replicas need {bundle['CPU']:g} CPUs and {bundle['GPU']:g} GPUs each, and in {seconds:g} "
                f"s the cluster had no room for them (it has {resources(self._ray)})"
            )
        return group


def _strategies(placement: Any, bundles: Sequence[int] | None, replicas: int) -> list[Any]:
    """Where each replica is scheduled."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    chosen = list(range(replicas)) if bundles is None else list(bundles)
    if len(chosen) != replicas:
        raise RolloutError(f"bundles names {len(chosen)} bundles; it must name one for each of {replicas} replicas")
    return [
        PlacementGroupSchedulingStrategy(placement_group=placement, placement_group_bundle_index=bundle)
        for bundle in chosen
    ]
