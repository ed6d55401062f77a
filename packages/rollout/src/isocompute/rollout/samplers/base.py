"""What every sampler does alike: it counts the versions of its weights and samples from whole weights only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from ..errors import RolloutError
from . import broadcasting
from .broadcasting import Rendezvous
from .buckets import BUCKET_BYTES, buckets
from .faults import Faults
from .groups import Layout
from .manifest import Manifest, checked
from .payloads import InProcess, Payload, loading, place_of
from .sampling import Draw, Sampling


class Sampler:
    """Answers problems with a policy whose weights a learner may replace.

    A subclass says how problems are answered (``_batches``), which tensors its model has (``manifest``) and how weights
    reach its engine (``_load``).

    Attributes:
        plan: What the engine needs of its device's memory, as a table to be read; empty where that is not known.
        faults: Problems that could not be scored so far.
        sleeps: Whether it leaves its device to others after each training batch, until it is used again.
    """

    plan = ""

    def __init__(self, model: str | Path, sampling: Sampling) -> None:
        self.model = str(model)
        self.sampling = self._opened = sampling
        self.faults = Faults()
        self.sleeps = False
        self._version = 0
        self._whole = True
        self._streams = 0

    @property
    def weights_version(self) -> int:
        """Policy version: that of the weights that sample; 0 is the model's own."""
        return self._version

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str = "train",
        run_id: str = "",
        first_sample: int = 0,
    ) -> pl.DataFrame:
        """Answer each problem ``samples`` times.

        Args:
            problems: A ``problems`` table.
            samples: Responses per problem.
            seed: The run's seed; every response's own is derived from it (``seeds.response_seed``).
            step: Update step the responses are for (cumulative rollouts for phase ``eval``).
            phase: What they are for: ``train``, ``eval``, ``difficulty``, ``baseline`` or ``canary``.
            first_sample: Index of a problem's first response; above 0 where earlier attempts have failed.

        Returns:
            The ``rollouts`` table sorted by problem and sample. ``response_ids`` holds the end-of-sequence
            token where it was sampled, since stopping is learnt too.

        Raises:
            RolloutError: A prompt is longer than ``max_prompt_tokens``, a verifier is unknown or refused, the
                latest sync failed, or the engine does not answer.
        """
        asked: dict[str, Any] = {"seed": seed, "step": step, "phase": phase, "run_id": run_id}
        batches = list(self.stream(problems, samples=samples, first_sample=first_sample, **asked))
        table = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches or [self._no_rows()])))
        return table.sort("problem_id", "sample")

    def stream(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str = "train",
        run_id: str = "",
        first_sample: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Answer each problem ``samples`` times, and yield each group as soon as it is complete and scored.

        Args:
            first_sample: Index of a problem's first response.

        Yields:
            The rows of the ``rollouts`` table of one problem, by sample; problems in the order in which they finish.
            Closing the iterator ends what is unfinished.

        Raises:
            RolloutError: As ``sample``.
        """
        if not self._whole:
            raise RolloutError(
                "the last sync failed, so the engine's weights may be incomplete; sync again before sampling"
            )
        draw = Draw(
            samples=samples, seed=seed, step=step, phase=phase, run_id=run_id, first_sample=first_sample
        )  # fmt: skip
        self._streams += 1
        try:
            yield from self._batches(problems, draw)
        finally:
            self._streams -= 1
        if self.sleeps and phase == "train":
            self.sleep()

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on, with the same engine and weights.

        Args:
            sampling: How responses are sampled. Its prompts and responses may not be longer than those the sampler was
                opened for.

        Raises:
            RolloutError: They may be longer.
        """
        opened = self._opened
        for name in ("max_prompt_tokens", "max_new_tokens"):
            if getattr(sampling, name) > getattr(opened, name):
                raise RolloutError(
                    f"{name} is {getattr(sampling, name)}, and the sampler was opened for {getattr(opened, name)}; "
                    "it must be at most that, or another sampler must be opened"
                )
        self.sampling = sampling

    def sync(self, weights: Any, version: int) -> None:
        """Take over weights by their Hugging Face names, and stamp what is sampled with ``version``.

        Args:
            weights: A mapping or an iterable of (name, tensor).

        Raises:
            RolloutError: A stream is open; or a tensor is missing, unknown or of another shape, two tied ones differ,
                or the engine did not take them over, after which nothing is sampled until a sync succeeds.
        """
        wanted = self.manifest
        self.begin_sync()
        for bucket in buckets(checked(pairs(weights), wanted), size=BUCKET_BYTES):
            self.take(InProcess(bucket))
        self.end_sync(version)

    def begin_sync(self) -> None:
        """Begin to take weights over in parts; nothing is sampled until ``end_sync``.

        Raises:
            RolloutError: A stream is open.
        """
        self._tear()
        with loading():
            self._begin_load()

    def take(self, payload: Payload) -> None:
        """Take over one bucket of the weights, after ``begin_sync``; whoever calls has compared names and shapes.

        Raises:
            RolloutError: The engine does not take them.
        """
        with loading():
            self._load(payload)

    def end_sync(self, version: int) -> None:
        """Take note that all parts came, and stamp what is sampled with ``version``."""
        with loading():
            self._end_load()
        self._stamp(version)
        self._whole = True

    @property
    def workers(self) -> int:
        """Processes that share the model."""
        return 1

    @property
    def place(self) -> str:
        """The device that the model is on (``payloads.place_of``)."""
        return place_of("cpu")

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group over which weights are broadcast.

        Args:
            rank: That of this sampler's first process, from 1.
        """
        broadcasting.join(rendezvous, rank)

    def _tear(self) -> None:
        """Sample nothing until weights are whole again; refused while a stream is open."""
        if self._streams:
            raise RolloutError(
                "a stream is still open, whose responses would be of two policies; close it before a sync"
            )
        self._whole = False

    @property
    def manifest(self) -> Manifest:
        """Which tensors the model has, and so what a sync must bring.

        Raises:
            RolloutError: Its configuration cannot be read.
        """
        raise NotImplementedError

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        """Return the length of each problem's prompt (tokens), after every check that ``sample`` makes beforehand.

        Raises:
            RolloutError: As ``sample``, before anything is sampled.
        """
        raise NotImplementedError

    def probe(self) -> list[float]:
        """Return log-probabilities (nats) of the likeliest tokens after fixed prompts, which tell policies apart."""
        raise NotImplementedError

    def sleep(self) -> None:
        """Leave the device's memory to others; whatever is asked for next wakes it."""

    def close(self) -> None:
        """Free the engine."""

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        """Yield the groups of one call of ``stream``."""
        raise NotImplementedError

    def _no_rows(self) -> pa.RecordBatch:
        """Return a batch without rows, for a table without problems."""
        return pa.RecordBatch.from_pylist([], Layout().schema)

    def _begin_load(self) -> None:
        """Make the engine ready for weights in parts, whatever an earlier sync has left of it."""

    def _load(self, payload: Payload) -> None:
        """Hand one part of checked weights to the engine."""
        raise NotImplementedError

    def _end_load(self) -> None:
        """Let the engine sample with the weights that came in parts."""

    def _stamp(self, version: int) -> None:
        """Stamp what is sampled from now on with ``version``."""
        self._version = version


def pairs(weights: Any) -> Iterable[tuple[str, Any]]:
    """Names and tensors of a mapping or an iterable of them."""
    found: Iterable[tuple[str, Any]] = weights.items() if hasattr(weights, "items") else weights
    return found
