"""A run that a command is about to do, or to go on with where an earlier process was killed."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ...contract import tables
from ...errors import RolloutError
from ...journal import Journal
from ...samplers.models import load_tokenizer
from ...samplers.prompts import PromptMaker
from ...scoring.evaluation import lacking, sample_completed
from ...scoring.unusable import without_unusable
from ..output import BESIDES, Source
from ..values import chosen, shard_of
from .asked import Asked, asked_from
from .identity import described, run_id
from .journaled import JournaledSampler
from .progress import Progress

LOGGED = ("model", "sampler", "samples", "temperature", "top_p", "max_new_tokens", "seed")
"""Flags that are logged to MLflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that a command is about to do, or to go on with.

    Attributes:
        asked: What is to be sampled.
        problems: The problems to be answered: those of the shard, within the limit.
        run_id: The run.
        phase: What the responses are for.
        found: What an earlier process has written to ``--out``, of problems that lack no response.
        journal: Keeps finished groups; locked.
        sampler: Answers the problems.
        params: Settings to log.
        dropped: Problems of the shard and the limit that cannot be scored, and are not asked.
    """

    asked: Asked
    problems: pl.DataFrame
    run_id: str
    phase: str
    found: pl.DataFrame | None
    journal: Journal
    sampler: JournaledSampler
    params: Mapping[str, Any]
    dropped: pl.DataFrame

    def rollouts(self) -> pl.DataFrame:
        """Return the run's ``rollouts`` table, sampled as far as it is not there.

        Raises:
            RolloutError: As ``JournaledSampler.sample``.
        """
        missing = self.problems
        if self.found is not None:
            missing = missing.join(self.found, on="problem_id", how="anti")
            if missing.is_empty():
                return self.found
        with contextlib.closing(self.sampler):
            sampled = sample_completed(
                self.sampler, missing, samples=self.asked.samples, seed=self.asked.seed, step=0, phase=self.phase,
                run_id=self.run_id,
            )  # fmt: skip
        if self.found is None:
            return sampled
        return pl.concat([self.found, sampled], how="diagonal_relaxed").sort("problem_id", "sample")

    def finished(self, rollouts: pl.DataFrame) -> Journal | None:
        """Return the journal where the run has all its responses; otherwise say so, and keep the groups that are there.

        Args:
            rollouts: The run's table.
        """
        few = len(lacking(self.problems, rollouts, self.asked.samples))
        if not few:
            return self.journal
        print(
            f"note: {few:,} of {len(self.problems):,} problems have fewer than {self.asked.samples} responses, since "
            f"the others were aborted; the same command with --overwrite asks for these problems again, and "
            f"{self.journal.folder} keeps the rest",
            file=sys.stderr,
        )
        return None


def begin(
    arguments: argparse.Namespace, stack: contextlib.ExitStack, *, problems: Source, phase: str, kept: bool = False
) -> Work:
    """Prepare a run: its id, the lock on ``--out``, and the groups kept from an earlier process.

    Args:
        arguments: The command's arguments.
        stack: Closed when the command ends.
        kept: Whether ``--out`` holds the rollouts themselves, so that a file there may be this run's, complete.

    Raises:
        RolloutError: A flag is wrong, ``--out`` is there already, another process works on it, or no problem can be
            scored.
    """
    asked = asked_from(arguments)
    shard = getattr(arguments, "shard", None)
    wanted = chosen(problems.table, limit=arguments.limit, shard=shard)
    if arguments.out.exists() and not arguments.overwrite and not kept:
        raise _there_already(arguments.out)
    wanted, dropped = without_unusable(wanted, asked.scorer)
    description = described(asked, problems.table, phase=phase, prompts=_prompts(asked, problems.table))
    identity = run_id(description)
    found: pl.DataFrame | None = None
    if arguments.out.exists() and not arguments.overwrite:
        found = _finished(arguments.out, identity, wanted, asked.samples)
        if found is None:
            raise _there_already(arguments.out)
    journal = stack.enter_context(Journal(arguments.out, identity, {**description, "problems_from": problems.address}))
    for name in BESIDES:
        besides = getattr(arguments, name, None)
        # A process that was killed after its last group may have written it before --out.
        if besides is not None and besides.exists() and not arguments.overwrite and not journal.holds_groups:
            raise RolloutError(f"{besides}: is there already; choose another file, or replace it with --overwrite")
    if journal.others:
        print(
            f"note: {journal.folder} also holds unfinished work with other settings ({', '.join(journal.others)}), "
            "which "
            "stays there",
            file=sys.stderr,
        )
    sampler = JournaledSampler(asked.open, journal, Progress())
    params = {name: getattr(arguments, name) for name in LOGGED}
    if shard is not None:
        params["shard"] = shard
    return Work(
        asked=asked, problems=wanted, run_id=identity, phase=phase, found=found, journal=journal, sampler=sampler,
        params={**params, "phase": phase}, dropped=dropped,
    )  # fmt: skip


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


def _prompts(asked: Asked, problems: pl.DataFrame) -> str:
    """Hash of the prompts as the tokenizer here renders them."""
    longest = asked.sampling.max_prompt_tokens
    return PromptMaker(load_tokenizer(asked.model), asked.prompting, max_prompt_tokens=longest).digest(problems)


def _there_already(out: Path) -> RolloutError:
    return RolloutError(f"{out}: already exists; choose another --out, or replace it with --overwrite")


def _finished(out: Path, run_id: str, problems: pl.DataFrame, samples: int) -> pl.DataFrame | None:
    """The rows of problems that lack no response, if a file holds what a run has made."""
    try:
        found = tables.read(out, "rollouts")
    except tables.TableError:
        return None
    if set(found["run_id"]) != {run_id} or set(found["problem_id"]) != set(problems["problem_id"]):
        return None
    return found.join(lacking(problems, found, samples), on="problem_id", how="anti", maintain_order="left")
