"""One replica, as it is in its own process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ...errors import RolloutError
from ..actor import SamplerActor, Verifiers
from ..broadcasting import Rendezvous
from ..faults import Faults
from ..manifest import Manifest
from ..payloads import Payload
from ..sampling import Sampling

if TYPE_CHECKING:
    from ..base import Sampler

Opener = Callable[[], "Sampler"]
"""Opens a replica's sampler, in the replica's process; it is pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a replica says of itself once it has loaded the model.

    Attributes:
        plan: ``Sampler.plan``.
        probe: ``Sampler.probe`` of the model's own weights.
        place: The device that its model is on (``Sampler.place``).
        workers: Processes that share its model.
        sleeps: Whether it is to sleep after each training batch.
        sync: Number of the sync that these weights are of: none.
    """

    plan: str
    probe: list[float]
    process: int
    host: str
    place: str
    workers: int
    sleeps: bool
    sync: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a replica says once it has taken over the weights of a sync.

    Attributes:
        probe: ``Sampler.probe`` of these weights.
    """

    sync: int
    probe: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Groups that a replica has finished.

    Attributes:
        groups: Each group's rows.
        ended: Whether they are the last that it was given.
        unscored: Why problems among those answered so far cannot be scored, by problem.
        scored: Whether responses to some problem could be scored.
    """

    groups: list[pa.RecordBatch]
    ended: bool
    unscored: Mapping[str, str]
    scored: bool


class Replica(SamplerActor):
    """A sampler that answers only with the weights of the sync that it is asked to answer with."""

    def __init__(self, opener: Opener) -> None:
        super().__init__()
        self._opener = opener
        self._sync = 0
        self._buckets = 0
        self._whole = True

    def open(self, sampling: Sampling) -> Opened:
        """Load the model. Not done by the constructor, whose errors Ray would report as the death of the actor.

        Args:
            sampling: How responses are sampled; the opener's own says how long they may ever be.
        """
        self._sampler = self._opener()
        self._sampler.use(sampling)
        # A batch has ended when all replicas have answered their parts.
        sleeps, self._sampler.sleeps = self._sampler.sleeps, False
        return Opened(
            plan=self._sampler.plan,
            probe=self._sampler.probe(),
            process=os.getpid(),
            host=socket.gethostname(),
            place=self._sampler.place,
            workers=self._sampler.workers,
            sleeps=sleeps,
        )

    def sleep(self) -> None:
        """Leave the device to others; see ``Sampler.sleep``."""
        self._sampler.sleep()

    def manifest(self) -> Manifest:
        """Return which tensors a sync must bring."""
        manifest: Manifest = self._sampler.manifest
        return manifest

    def lengths(self, problems: pl.DataFrame, verifiers: Verifiers) -> list[int]:
        """Check problems as ``Sampler.sample`` does beforehand; return the lengths of their prompts (tokens)."""
        verifiers.adopt()
        lengths: list[int] = self._sampler.lengths(problems)
        return lengths

    def answer(self, problems: pl.DataFrame, draw: Mapping[str, Any], verifiers: Verifiers, sync: int) -> Answered:
        """Begin to answer problems.

        Args:
            sync: Number of the sync whose weights must answer; 0 is the model's own.

        Raises:
            RolloutError: The weights here are of another sync, or not whole.
        """
        if sync != self._sync or not self._whole:
            whole = "whole" if self._whole else "torn"
            raise RolloutError(
                f"a replica was asked to answer with the weights of sync {sync}; it has those of sync {self._sync}, "
                f"{whole}: sync again before sampling"
            )
        self.begin(problems, draw, verifiers)
        return self.go_on()

    def go_on(self) -> Answered:
        """Go on until a group is complete; see ``SamplerActor.more``."""
        groups, ended = self.more()
        faults: Faults = self._sampler.faults
        # All replicas' are judged together, where all are known.
        unscored, scored = faults.hand_over()
        return Answered(groups=groups, ended=ended, unscored=unscored, scored=scored)

    def begin_sync(self, sync: int) -> None:
        """Begin to take over the weights of a sync; until its end nothing is answered.

        Args:
            sync: Its number, from 1.
        """
        self.end()
        self._sync, self._buckets, self._whole = sync, 0, False
        self._sampler.begin_sync()

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group over which weights are broadcast; see ``Sampler.join``."""
        self._sampler.join(rendezvous, rank)

    def take(self, payload: Payload, sync: int) -> None:
        """Take over one bucket of a sync's weights."""
        self._expect(sync)
        self._sampler.take(payload)
        self._buckets += 1

    def end_sync(self, version: int, sync: int, buckets: int) -> Synced:
        """Answer with the weights of a sync from now on.

        Args:
            buckets: How many buckets they came in.

        Raises:
            RolloutError: Not all of them came.
        """
        self._expect(sync)
        if self._buckets != buckets:
            raise RolloutError(
                f"a replica has taken over {self._buckets} of the {buckets} buckets of weights of version {version}; "
                "sync again before sampling"
            )
        self._sampler.end_sync(version)
        probe: list[float] = self._sampler.probe()
        self._whole = True
        return Synced(sync=sync, probe=probe)

    def _expect(self, sync: int) -> None:
        if sync != self._sync or self._whole:
            raise RolloutError(f"a replica was sent weights of sync {sync}, and it has not begun that one; sync again")
