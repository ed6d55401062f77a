"""A run that a command does, or goes on with where an earlier process was killed."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..contract import tables
from ..errors import RolloutError
from ..samplers.base import Sampler
from ..samplers.prompts import PromptMaker, load_tokenizer
from ..scoring.evaluation import lacking, sample_completed, without_unusable
from .identity import described, run_id
from .output import BESIDES, Source
from .settings import RunSettings, settings_from
from .store import Store
from .values import chosen, shard_of

LOGGED = ("model", "sampler", "samples", "temperature", "top_p", "max_new_tokens", "seed")
"""Flags that are logged to MLflow."""
SECONDS = {True: 0.5, False: 10.0}
"""Seconds from one line of progress to the next, on a terminal and elsewhere."""


class Interrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; the message says how to go on."""


class Progress:
    """Says on stderr how far sampling is: one line that is rewritten on a terminal, one every ten seconds elsewhere."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self.total = self.done = self.responses = self.tokens = self.aborted = self.errors = 0
        self._fresh_groups = 0
        self._began = self._said = 0.0

    def add(self, batch: pa.RecordBatch, *, kept: bool = False) -> None:
        """Count a group; one that an earlier process sampled says nothing about the speed of this one."""
        self.done += 1
        self.responses += batch.num_rows
        self.aborted += pc.sum(pc.equal(batch["finish_reason"], "aborted")).as_py() or 0
        if "score_error" in batch.schema.names:
            self.errors += batch.num_rows - batch["score_error"].null_count
        if kept:
            return
        self._fresh_groups += 1
        self.tokens += pc.sum(pc.list_value_length(batch["response_ids"])).as_py() or 0
        if (now := self._clock()) - self._said >= SECONDS[self._terminal]:
            self._said = now
            self._say(now, end="" if self._terminal else "\n")

    def start(self) -> None:
        """Begin to measure the speed."""
        if not self._fresh_groups:
            self._began = self._said = self._clock()

    def close(self) -> None:
        """Say how it ended, where anything was sampled."""
        if self._fresh_groups:
            self._say(self._clock(), end="\n")

    def _say(self, now: float, *, end: str) -> None:
        seconds = now - self._began
        parts = [
            f"{self.done:,}/{self.total:,} groups",
            f"{self.responses:,} responses",
            f"{self.tokens / max(seconds, 1e-9):,.0f} tokens/s",
        ]
        if self.aborted:
            parts.append(f"{self.aborted:,} aborted")
        if self.errors:
            parts.append(f"{self.errors:,} score errors")
        if self.done < self.total:
            parts.append(f"{_duration(seconds * (self.total - self.done) / self._fresh_groups)} left")
        before, after = ("\r", "\x1b[K") if self._terminal else ("", "")
        self._stream.write(f"{before}{', '.join(parts)}{after}{end}")
        self._stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class StoredSampler:
    """Answers problems, and asks nothing again that a store holds.

    A group with aborted responses is asked again by the next process: the engine or the server failed, not the policy.

    Args:
        open_sampler: Opens the sampler, once something must be asked.
    """

    def __init__(self, open_sampler: Callable[[], Sampler], store: Store, progress: Progress) -> None:
        self._open, self._store, self._progress = open_sampler, store, progress
        self._sampler: Sampler | None = None

    def sample(self, problems: pl.DataFrame, *, samples: int, first_sample: int = 0, **asked: Any) -> pl.DataFrame:
        """Return the ``rollouts`` table, as a sampler's ``sample`` does.

        Raises:
            RolloutError: As the sampler; the message says what is kept.
            Interrupted: Ctrl-C.
        """
        kept: dict[str, pa.RecordBatch] = {}
        for problem_id in problems["problem_id"].to_list():
            group = self._store.group(problem_id, first_sample=first_sample, samples=samples)
            if group is not None and "aborted" not in group["finish_reason"].to_pylist():
                kept[problem_id] = group
                self._progress.add(group, kept=True)
        self._progress.total += len(problems)
        missing = problems.filter(~pl.col("problem_id").is_in(list(kept)))
        if len(missing):
            with self._saying_what_is_kept():
                self._sampler = self._sampler or self._open()
                self._progress.start()
                stream = self._sampler.stream(missing, samples=samples, first_sample=first_sample, **asked)
                with contextlib.closing(stream):  # type: ignore[type-var]
                    for batch in stream:
                        self._store.append(batch)
                        self._progress.add(batch)
                        kept[batch["problem_id"][0].as_py()] = batch
        table = pa.Table.from_batches([kept[problem_id] for problem_id in sorted(kept)])
        return pl.DataFrame(pl.from_arrow(table)).sort("problem_id", "sample")

    def close(self) -> None:
        """Free the engine, and end the line that says how far it is."""
        self._progress.close()
        if self._sampler is not None:
            self._sampler.close()

    @contextlib.contextmanager
    def _saying_what_is_kept(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {self._kept()}") from None
        except RolloutError as error:
            if not self._progress.done:
                raise
            raise RolloutError(f"{error}; {self._kept()}") from None

    def _kept(self) -> str:
        return (
            f"{self._progress.done:,} of {self._progress.total:,} groups are kept in {self._store.path}, and the same "
            "command goes on from there"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that a command is about to do, or to go on with.

    Attributes:
        problems: Those of the shard, within the limit, that can be scored.
        found: What an earlier process has written to ``--out``, where no problem lacks a response.
        params: Settings to log.
        dropped: Problems of the shard, within the limit, that cannot be scored, and are not asked.
    """

    settings: RunSettings
    problems: pl.DataFrame
    run_id: str
    phase: str
    found: pl.DataFrame | None
    store: Store
    sampler: StoredSampler
    params: Mapping[str, Any]
    dropped: pl.DataFrame

    def rollouts(self) -> pl.DataFrame:
        """Return the run's ``rollouts`` table, sampled as far as it is not there.

        Raises:
            RolloutError: As ``StoredSampler.sample``.
        """
        if self.found is not None:
            return self.found
        asked = {"seed": self.settings.seed, "step": 0, "phase": self.phase, "run_id": self.run_id}
        with contextlib.closing(self.sampler):
            return sample_completed(self.sampler, self.problems, samples=self.settings.samples, **asked)

    def finished(self, rollouts: pl.DataFrame) -> Store | None:
        """Return the store where the run has all its responses; otherwise say so, and keep its groups."""
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


def begin(
    arguments: argparse.Namespace, stack: contextlib.ExitStack, *, problems: Source, phase: str, kept: bool = False
) -> Work:
    """Prepare a run: its id, the lock on ``--out``, and the groups kept from an earlier process.

    Args:
        stack: Closed when the command ends.
        kept: Whether ``--out`` holds the rollouts themselves, so that a file there may be this run's, complete.

    Raises:
        RolloutError: A flag is wrong, ``--out`` is there already, another process works on it or left it with other
            settings, or no problem can be scored.
    """
    settings, shard = settings_from(arguments), getattr(arguments, "shard", None)
    wanted = chosen(problems.table, limit=arguments.limit, shard=shard)
    there = arguments.out.exists() and not arguments.overwrite
    already = RolloutError(f"{arguments.out}: already exists; choose another --out, or replace it with --overwrite")
    if there and not kept:
        raise already
    wanted, dropped = without_unusable(wanted, settings.scorer)
    maker = PromptMaker(
        load_tokenizer(settings.model), settings.prompting, max_prompt_tokens=settings.sampling.max_prompt_tokens
    )
    description = described(settings, problems.table, phase=phase, prompts=maker.digest(problems.table))
    identity = run_id(description)
    found = _of_this_run(arguments.out, identity, wanted) if there else None
    if there and found is None:
        raise already
    if found is not None and len(lacking(wanted, found, settings.samples)):
        found = None
    store = stack.enter_context(Store(arguments.out, description))
    for name in BESIDES:
        besides = getattr(arguments, name, None)
        # A process that was killed after its last group may have written it before --out.
        if besides is not None and besides.exists() and not arguments.overwrite and not len(store):
            raise RolloutError(f"{besides}: is there already; choose another file, or replace it with --overwrite")
    params = {name: getattr(arguments, name) for name in LOGGED} | ({} if shard is None else {"shard": shard})
    return Work(
        settings=settings,
        problems=wanted,
        run_id=identity,
        phase=phase,
        found=found,
        store=store,
        sampler=StoredSampler(settings.open, store, Progress()),
        params={**params, "phase": phase},
        dropped=dropped,
    )


def place_shard(arguments: argparse.Namespace, name: str) -> None:
    """Let ``--out`` be the shard's file in the folder of all shards, which reads as one table.

    Args:
        arguments: The command's arguments; ``out`` is replaced.
        name: The table's name, which its file must have there.

    Raises:
        RolloutError: The shard is none, or ``--out`` is a file.
    """
    if arguments.shard is None:
        return
    part, parts = shard_of(arguments.shard)
    if arguments.out.suffix or arguments.out.is_file():
        raise RolloutError(f"{arguments.out}: with --shard, --out must be the folder of all shards")
    arguments.out = arguments.out / f"{part}-of-{parts}" / f"{name}.parquet"


def _of_this_run(out: Path, run_id: str, problems: pl.DataFrame) -> pl.DataFrame | None:
    """Return the rollouts of a file where they are a run's answers to these problems."""
    try:
        found = tables.read(out, "rollouts")
    except tables.TableError:
        return None
    same = set(found["run_id"]) == {run_id} and set(found["problem_id"]) == set(problems["problem_id"])
    return found if same else None
