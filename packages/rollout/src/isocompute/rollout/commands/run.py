"""A sampling run that a command starts, or resumes if an earlier process was killed."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..contract import tables
from ..errors import RolloutError
from ..samplers.base import Sampler
from ..samplers.local import PromptMaker, load_tokenizer
from ..scoring.evaluation import lacking, sample_completed, without_unusable
from .identity import described, run_id
from .output import BESIDES, Source
from .settings import RunSettings, chosen, settings_from, shard_of
from .store import Groups

LOGGED = ("model", "sampler", "samples", "temperature", "top_p", "max_new_tokens", "seed")
"""Flags that are logged to MLflow."""


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C; the message explains how to resume."""


class ProgressLine:
    """Reports sampling progress on stderr: one rewritten line on a terminal, otherwise one line every ten seconds."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._terminal = self._stream.isatty()
        self.total = self.done = self._sampled = 0
        self._responses = self._tokens = self._aborted = self._errors = 0
        self._began = self._said = 0.0

    def start(self) -> None:
        """Start measuring the speed."""
        if not self._sampled:
            self._began = self._said = self._clock()

    def add(self, batch: pa.RecordBatch, *, kept: bool = False) -> None:
        """Count a group; one that an earlier process sampled does not count for the speed."""
        self.done += 1
        self._responses += batch.num_rows
        self._aborted += pc.sum(pc.equal(batch["finish_reason"], "aborted")).as_py() or 0
        if "score_error" in batch.schema.names:
            self._errors += batch.num_rows - batch["score_error"].null_count
        if kept:
            return
        self._sampled += 1
        self._tokens += pc.sum(pc.list_value_length(batch["response_ids"])).as_py() or 0
        if (now := self._clock()) - self._said >= (0.5 if self._terminal else 10.0):
            self._said = now
            self._say(now, end="" if self._terminal else "\n")

    def close(self) -> None:
        """Print the final state, if anything was sampled."""
        if self._sampled:
            self._say(self._clock(), end="\n")

    def _say(self, now: float, *, end: str) -> None:
        seconds = now - self._began
        speed = self._tokens / max(seconds, 1e-9)
        parts = [f"{self.done:,}/{self.total:,} groups", f"{self._responses:,} responses", f"{speed:,.0f} tokens/s"]
        parts += [f"{self._aborted:,} aborted"] * bool(self._aborted)
        parts += [f"{self._errors:,} score errors"] * bool(self._errors)
        if self.done < self.total:
            parts.append(f"{_duration(seconds * (self.total - self.done) / self._sampled)} left")
        before, after = ("\r", "\x1b[K") if self._terminal else ("", "")
        self._stream.write(f"{before}{', '.join(parts)}{after}{end}")
        self._stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(slots=True, kw_only=True)
class SamplingRun:
    """A run that answers problems like a sampler, but does not request again what its store holds.

    A group with aborted responses is requested again by the next process, since the engine or server failed, not the
    policy.

    Attributes:
        problems: The problems of the shard, within the limit, that can be scored.
        dropped: The problems that cannot be scored and are not sampled.
        complete: The rollouts that an earlier process has written to ``--out``, if no problem lacks a response.
        params: Settings to log.
    """

    settings: RunSettings
    problems: pl.DataFrame
    dropped: pl.DataFrame
    run_id: str
    phase: str
    complete: pl.DataFrame | None
    store: Groups
    params: Mapping[str, Any]
    progress: ProgressLine = field(default_factory=ProgressLine)
    _sampler: Sampler | None = None

    def rollouts(self) -> pl.DataFrame:
        """Return the run's ``rollouts`` table, after sampling what is missing."""
        if self.complete is not None:
            return self.complete
        request = {"seed": self.settings.seed, "step": 0, "phase": self.phase, "run_id": self.run_id}
        with contextlib.closing(self):
            return sample_completed(self, self.problems, samples=self.settings.samples, **request)

    def sample(self, problems: pl.DataFrame, *, samples: int, first_sample: int = 0, **request: Any) -> pl.DataFrame:
        """Return the ``rollouts`` table, like a sampler's ``sample``."""
        groups: dict[str, pa.RecordBatch] = {}
        for problem_id in problems["problem_id"].to_list():
            group = self.store.group(problem_id, first_sample=first_sample, samples=samples)
            if group is not None and "aborted" not in group["finish_reason"].to_pylist():
                groups[problem_id] = group
                self.progress.add(group, kept=True)
        self.progress.total += len(problems)
        missing = problems.filter(~pl.col("problem_id").is_in(list(groups)))
        if len(missing):
            try:
                self._sampler = self._sampler or self.settings.open(len(missing) * samples)
                self.progress.start()
                stream = self._sampler.stream(missing, samples=samples, first_sample=first_sample, **request)
                with contextlib.closing(stream):  # type: ignore[type-var]
                    for batch in stream:
                        self.store.append(batch)
                        self.progress.add(batch)
                        groups[batch["problem_id"][0].as_py()] = batch
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted; {self._kept()}") from None
            except RolloutError as error:
                if not self.progress.done:
                    raise
                raise RolloutError(f"{error}; {self._kept()}") from None
        table = pa.Table.from_batches([groups[problem_id] for problem_id in sorted(groups)])
        return pl.DataFrame(pl.from_arrow(table)).sort("problem_id", "sample")

    def close(self) -> None:
        """Free the engine, and finish the progress line."""
        self.progress.close()
        if self._sampler is not None:
            self._sampler.close()

    def finished(self, rollouts: pl.DataFrame) -> Groups | None:
        """Return the store if the run has all its responses; otherwise report that and keep its groups."""
        few = len(lacking(self.problems, rollouts, self.settings.samples))
        if not few:
            return self.store
        print(
            f"note: {few:,} of {len(self.problems):,} problems have fewer than {self.settings.samples} responses, "
            "since the others were aborted; the same command with --overwrite asks for these problems again, and "
            f"{self.store.path} keeps the rest",
            file=sys.stderr,
        )
        return None

    def _kept(self) -> str:
        groups = f"{self.progress.done:,} of {self.progress.total:,} groups are kept"
        return f"{groups} in {self.store.path}, and the same command goes on from there"


@contextlib.contextmanager
def begin(
    arguments: argparse.Namespace, *, problems: Source, phase: str, reusable: bool = False
) -> Iterator[SamplingRun]:
    """Prepare a run: its id, the lock on ``--out`` until the command ends, and the groups kept from an earlier process.

    If ``--out`` is for the rollouts themselves, an existing file may be this run's complete result, and is
    ``reusable``.
    """
    settings, shard = settings_from(arguments), getattr(arguments, "shard", None)
    wanted = chosen(problems.table, limit=arguments.limit, shard=shard)
    is_there = arguments.out.exists() and not arguments.overwrite
    already = RolloutError(f"{arguments.out}: already exists; choose another --out, or replace it with --overwrite")
    if is_there and not reusable:
        raise already
    wanted, dropped = without_unusable(wanted, settings.scorer)
    tokenizer, longest = load_tokenizer(settings.model), settings.sampling.max_prompt_tokens
    prompts = PromptMaker(tokenizer, settings.prompting, max_prompt_tokens=longest).digest(problems.table)
    description = described(settings, problems.table, phase=phase, prompts=prompts)
    identity, complete = run_id(description), None
    if is_there:
        try:
            complete = tables.read(arguments.out, "rollouts")
        except tables.TableError:
            raise already from None
        if set(complete["run_id"]) != {identity} or set(complete["problem_id"]) != set(wanted["problem_id"]):
            raise already
        if len(lacking(wanted, complete, settings.samples)):
            complete = None
    params = {name: getattr(arguments, name) for name in LOGGED} | ({} if shard is None else {"shard": shard})
    with Groups(arguments.out, description) as store:
        for name in BESIDES:
            path = getattr(arguments, name, None)
            # A process killed after its last group may have written this file before --out.
            if path is not None and path.exists() and not arguments.overwrite and not len(store):
                raise RolloutError(f"{path}: is there already; choose another file, or replace it with --overwrite")
        yield SamplingRun(
            settings=settings,
            problems=wanted,
            dropped=dropped,
            run_id=identity,
            phase=phase,
            complete=complete,
            store=store,
            params={**params, "phase": phase},
        )


def place_shard(arguments: argparse.Namespace, name: str) -> None:
    """Point ``--out`` at the shard's file in the folder of all shards, which can be read as one table."""
    if arguments.shard is None:
        return
    part, parts = shard_of(arguments.shard)
    if arguments.out.suffix or arguments.out.is_file():
        raise RolloutError(f"{arguments.out}: with --shard, --out must be the folder of all shards")
    arguments.out = arguments.out / f"{part}-of-{parts}" / f"{name}.parquet"
