"""The interface of samplers, the columns of their tables, and problems whose responses cannot be scored.

Every sampler counts the versions of its weights and samples only from complete weights. A finished group becomes one
Arrow batch.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import ProblemError, RolloutError
from ..scoring.scorer import Verdict
from . import weights
from .sampling import Draw, Response, Sampling
from .weights import BUCKET_BYTES, InProcess, Manifest, Payload, Rendezvous, buckets, checked, loading

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All responses to one problem."""

    problem_id: str
    prompt_ids: list[int]
    responses: Sequence[Response]
    texts: Sequence[str]


class Columns:
    """The columns of a sampler's batches, some of them optional; no Python object is made per token."""

    def __init__(
        self, *, keep_text: bool = False, sampled: bool = False, retokenized: bool = False, versions: bool = False
    ) -> None:
        optional = {"text": keep_text, "sampled": sampled, "retokenized": retokenized}
        optional |= dict.fromkeys(("versions", "version_starts"), versions)
        types: dict[str, Any] = {
            "run_id": pa.large_string(),
            "step": pa.int64(),
            "phase": pa.large_string(),
            "problem_id": pa.large_string(),
            "sample": pa.int32(),
            "prompt_ids": pa.large_list(pa.int32()),
            "response_ids": pa.large_list(pa.int32()),
            "logprobs": pa.large_list(pa.float32()),
            "reward": pa.float32(),
            "finish_reason": pa.large_string(),
            "weights_version": pa.int64(),
            "score_error": pa.large_string(),
            "failure": pa.large_string(),
            "text": pa.large_string(),
            "sampled": pa.large_list(pa.bool_()),
            "retokenized": pa.bool_(),
            "versions": pa.large_list(pa.int64()),
            "version_starts": pa.large_list(pa.int32()),
        }
        self.schema = pa.schema([(name, kind) for name, kind in types.items() if optional.get(name, True)])

    def batch(self, group: Group, verdicts: Sequence[Verdict], *, draw: Draw, version: int) -> pa.RecordBatch:
        """Return the rows of one group; ``version`` applies to responses that do not report their own."""
        responses, rows = group.responses, len(group.responses)
        spans = [r.versions or ((0, version),) for r in responses]
        values: dict[str, Any] = {
            "run_id": [draw.run_id] * rows,
            "step": [draw.step] * rows,
            "phase": [draw.phase] * rows,
            "problem_id": [group.problem_id] * rows,
            "sample": np.arange(draw.first_sample, draw.first_sample + rows, dtype=np.int32),
            "prompt_ids": [np.asarray(group.prompt_ids, np.int32)] * rows,
            "response_ids": [r.ids for r in responses],
            "logprobs": [r.logprobs for r in responses],
            "reward": [v.reward for v in verdicts],
            "finish_reason": [r.finish_reason for r in responses],
            "weights_version": [each[0][1] for each in spans],
            "score_error": [v.error for v in verdicts],
            "failure": [r.failure for r in responses],
            "text": list(group.texts),
            "sampled": [np.ones(len(r.ids), np.bool_) if r.sampled is None else r.sampled for r in responses],
            "retokenized": [r.retokenized for r in responses],
            "versions": [[of for _, of in each] for each in spans],
            "version_starts": [[start for start, _ in each] for each in spans],
        }
        arrays = [pa.array(values[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class Faults:
    """Problems whose responses turned out not to be scorable after they were paid for."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._scored = False

    def lost(self, group: Group, error: ProblemError) -> Group:
        """Record a problem; return its group with all responses marked as aborted, tokens included."""
        if group.problem_id not in self._reasons:
            logger.warning("problem %s cannot be scored: %s", group.problem_id, error)
        self._reasons[group.problem_id] = str(error)
        reason = f"its problem cannot be scored: {error}"
        responses = [
            r if r.finish_reason == "aborted" else replace(r, finish_reason="aborted", failure=reason)
            for r in group.responses
        ]
        return replace(group, responses=responses)

    def hand_over(self) -> tuple[dict[str, str], bool]:
        """Clear the record and return it for another process: reasons by problem, and whether any was scored."""
        noted = self._reasons, self._scored
        self._reasons, self._scored = {}, False
        return noted

    def add(self, reasons: Mapping[str, str], *, scored: bool) -> None:
        """Add a record, for example from another process (``hand_over``)."""
        self._reasons |= reasons
        self._scored |= scored

    def check(self) -> None:
        """Refuse to continue if nothing could be scored so far.

        This is not called in the call that finds it out: its responses were paid for and must reach the accounting.
        """
        if self._reasons and not self._scored:
            problem_id, reason = next(iter(self._reasons.items()))
            raise RolloutError(
                f"none of the {len(self._reasons)} problems answered so far can be scored; {problem_id} cannot, since "
                f"{reason}"
            )


class Feed:
    """Problems for a sampler to answer; more may be added meanwhile."""

    def __init__(self) -> None:
        self._waiting: list[tuple[pl.DataFrame, Draw]] = []
        self.unfinished = 0
        """Responses to these problems that are not finished."""
        self.trains = False

    def add(self, problems: pl.DataFrame, draw: Draw) -> None:
        """Add rows of the ``problems`` table, and how to answer them."""
        if len(problems):
            self._waiting.append((problems, draw))
            self.unfinished += len(problems) * draw.samples
            self.trains |= draw.phase == "train"

    def take(self) -> list[tuple[pl.DataFrame, Draw]]:
        """Return what was added since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)


class Sampler:
    """A policy that answers problems, with weights that a learner may replace.

    A subclass defines how problems are answered (``_batches``, or ``_answers`` if it accepts more meanwhile), which
    tensors its model has (``manifest``) and how weights reach its engine (``_load``).

    Attributes:
        weights_version: Policy version of the current weights; 0 is the model's own.
        plan: The engine's need of device memory, as a readable table; empty if not known.
        dtype: Type of the current weights, such as ``bfloat16``; None if not known, as for a server.
        faults: Problems that could not be scored so far.
        retokenizes: Whether responses may come as text that is tokenized here; the table then shows which did.
        sleeps: Whether it frees its device after each training batch, until it is used again.
        holds: Most unfinished responses that it can use at a time; more would only wait in it.
        workers: Number of processes that share the model.
        device: Device of the model, or the first of several, by torch's name.
        in_flight: Whether weights may change while a stream is open; its table then shows which ones sampled each
            token.
    """

    plan = ""
    dtype: str | None = None
    retokenizes = False
    holds = 2**31
    workers = 1
    device = "cpu"

    def __init__(self, model: str | Path, sampling: Sampling) -> None:
        self.model = str(model)
        self.sampling = self._opened = sampling
        self.faults = Faults()
        self.sleeps = self.in_flight = False
        self.weights_version = 0
        self._whole = True
        self._streams = 0

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
        max_new_tokens: int | None = None,
    ) -> pl.DataFrame:
        """Answer each problem ``samples`` times.

        Args:
            problems: A ``problems`` table.
            seed: The run's seed; each response's seed is derived from it (``sampling.response_seed``).
            step: Update step that the responses are for (cumulative rollouts for phase ``eval``).
            phase: Purpose of the responses: ``train``, ``eval``, ``difficulty``, ``baseline`` or ``canary``.
            first_sample: Index of a problem's first response; above 0 if earlier attempts have failed.
            max_new_tokens: Longest response (tokens), if shorter than the sampler's, as for a probe; no response is
                then interrupted.

        Returns:
            The ``rollouts`` table by problem and sample. ``response_ids`` includes a sampled end-of-sequence token,
            since stopping is learnt, too.

        Raises:
            RolloutError: A prompt is longer than ``max_prompt_tokens``, a verifier is unknown or refused, the latest
                sync failed, or the engine does not answer.
        """
        draw: dict[str, Any] = {"seed": seed, "step": step, "phase": phase, "run_id": run_id}
        draw |= {"first_sample": first_sample, "max_new_tokens": max_new_tokens}
        batches = list(self.stream(problems, samples=samples, **draw))
        table = pa.Table.from_batches(batches, None if batches else self.columns().schema)
        return pl.DataFrame(table).sort("problem_id", "sample")

    def stream(self, problems: pl.DataFrame, **request: Any) -> Iterator[pa.RecordBatch]:
        """Answer problems like ``sample``, and yield the rows of each problem once they are complete and scored.

        Closing the iterator aborts unfinished responses.
        """
        feed = Feed()
        feed.add(problems.sort("problem_id"), Draw(**request))
        with closing(self.answer(feed)) as answered:
            yield from (batch for batch in answered if batch is not None)

    def answer(self, feed: Feed) -> Generator[pa.RecordBatch | None]:
        """Answer the problems of a feed like ``stream``, in the order in which they were added.

        More may be added whenever this yields; for this purpose it yields None after steps in which no group has
        finished.
        """
        self.check_whole()
        self._streams += 1
        try:
            while feed:
                yield from self._answers(feed)
        finally:
            self._streams -= 1
        if self.sleeps and feed.trains:
            self.sleep()

    def check_whole(self) -> None:
        """Refuse to sample from weights that a failed sync has left incomplete."""
        if not self._whole:
            raise RolloutError(
                "the last sync failed, so the engine's weights may be incomplete; sync again before sampling"
            )

    def columns(self, *, versions: bool = False) -> Columns:
        """Return the columns of this sampler's tables."""
        return Columns(
            keep_text=self.sampling.keep_text,
            sampled=self.sampling.interruption is not None,
            retokenized=self.retokenizes,
            versions=versions or self.in_flight,
        )

    def use(self, sampling: Sampling) -> None:
        """Change the sampling settings, with the same engine and weights.

        Raises:
            RolloutError: Prompts or responses may be longer than those the sampler was opened for.
        """
        opened = self._opened
        for name in ("max_prompt_tokens", "max_new_tokens"):
            if getattr(sampling, name) > getattr(opened, name):
                raise RolloutError(
                    f"{name} is {getattr(sampling, name)}, and the sampler was opened for {getattr(opened, name)}; "
                    "it must be at most that, or another sampler must be opened"
                )
        self.sampling = sampling

    def sync(self, weights: Any, version: int, *, in_flight: bool = False) -> None:
        """Load weights, a mapping or pairs of Hugging Face names and tensors, and set their version to ``version``.

        Args:
            in_flight: Whether streams may be open; their responses continue with the new weights and the KV cache of
                the old ones.

        Raises:
            RolloutError: A stream is open; a tensor is missing, unknown or of another shape; two tied ones differ; or
                the engine did not load them, and nothing is sampled until a sync succeeds.
        """
        wanted = self.manifest
        self.begin_sync(in_flight=in_flight)
        for bucket in buckets(checked(pairs(weights), wanted), size=BUCKET_BYTES):
            self.take(InProcess(bucket))
        self.end_sync(version)

    def begin_sync(self, *, in_flight: bool = False) -> None:
        """Begin to load weights in parts; nothing is sampled until ``end_sync``."""
        self._tear(in_flight=in_flight)
        with loading():
            self._begin_load()

    def take(self, payload: Payload) -> None:
        """Load one bucket of the weights, after ``begin_sync``; the caller has compared names and shapes."""
        with loading():
            self._load(payload)

    def end_sync(self, version: int) -> None:
        """Finish loading after the last part; samples from now on have the version ``version``."""
        with loading():
            self._end_load()
        self._stamp(version)
        self._whole = True

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group that receives broadcast weights; ``rank``, from 1, is that of this sampler's first process."""
        weights.join(rendezvous, rank)

    def _tear(self, *, in_flight: bool = False) -> None:
        """Block sampling until the weights are complete again; refused if an open stream must not continue."""
        if self._streams and not in_flight:
            raise RolloutError(
                "a stream is still open, whose responses would be of two policies; close it before a sync"
            )
        self._whole = False

    @property
    def manifest(self) -> Manifest:
        """The tensors of the model, which a sync must bring."""
        raise NotImplementedError

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        """Return the length of each problem's prompt (tokens), after all checks that ``sample`` makes first."""
        raise NotImplementedError

    def probe(self) -> list[float]:
        """Return log-probabilities (nats) of the likeliest tokens after fixed prompts; they distinguish policies."""
        raise NotImplementedError

    def sleep(self) -> None:
        """Free the device's memory for others; the next use wakes the sampler."""

    def abandon(self) -> bool:
        """Abort all responses; return whether open streams yield them as aborted with their tokens so far."""
        return False

    def close(self) -> None:
        """Free the engine."""

    def _answers(self, feed: Feed) -> Iterator[pa.RecordBatch | None]:
        """Answer the problems of a feed; see ``answer``."""
        for problems, draw in feed.take():
            for batch in self._batches(problems, draw):
                feed.unfinished -= len(batch)
                yield batch

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _begin_load(self) -> None:
        """Prepare the engine for weights in parts, even after a failed sync."""

    def _load(self, payload: Payload) -> None:
        """Load one part of checked weights into the engine."""
        raise NotImplementedError

    def _end_load(self) -> None:
        """Let the engine sample with the weights that were loaded in parts."""

    def _stamp(self, version: int) -> None:
        """Set the version of samples from now on."""
        self.weights_version = version


def pairs(weights: Any) -> Iterator[tuple[str, Any]]:
    """Return names and tensors of a mapping or of an iterable of pairs."""
    return iter(weights.items() if hasattr(weights, "items") else weights)


def packed(table: pl.DataFrame) -> torch.Tensor:
    """Return a table as bytes in Arrow's format, which a tensor file can hold."""
    import torch

    buffer = BytesIO()
    table.write_ipc(buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpacked(tensor: torch.Tensor) -> pl.DataFrame:
    """Return the table from the bytes of ``packed``."""
    return pl.read_ipc(BytesIO(tensor.cpu().numpy().tobytes()))
