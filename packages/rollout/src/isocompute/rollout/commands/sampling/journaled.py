"""A sampler that asks nothing again that was finished before its process was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import RolloutError
from ...journal import Journal
from ...samplers.base import Sampler
from .progress import Progress


class Interrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; the message says how to go on."""


class JournaledSampler:
    """Answers problems, and asks nothing again that a journal holds.

    A group with aborted responses is asked again by the next process: the engine or the server failed, not the policy.

    Args:
        open_sampler: Opens the sampler, once something must be asked.
        journal: Keeps finished groups.
        progress: Says how far it is.
    """

    def __init__(self, open_sampler: Callable[[], Sampler], journal: Journal, progress: Progress) -> None:
        self._open = open_sampler
        self._journal = journal
        self._progress = progress
        self._sampler: Sampler | None = None

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str,
        run_id: str,
        first_sample: int = 0,
    ) -> pl.DataFrame:
        """Return the ``rollouts`` table, as a sampler's ``sample`` does.

        Args:
            problems: A ``problems`` table.
            samples: Responses per problem.
            seed: The run's seed.
            first_sample: Index of a problem's first response.

        Raises:
            RolloutError: As the sampler; the message says what is kept.
            Interrupted: Ctrl-C.
        """
        kept: dict[str, pa.RecordBatch] = {}
        for problem_id in problems["problem_id"].to_list():
            group = self._journal.group(problem_id, first_sample=first_sample, samples=samples)
            if group is not None and not _has_aborted(group):
                kept[problem_id] = group
                self._progress.add(group, kept=True)
        self._progress.expect(len(problems))
        missing = problems.filter(~pl.col("problem_id").is_in(list(kept)))
        asked: dict[str, Any] = {"seed": seed, "step": step, "phase": phase, "run_id": run_id}
        if len(missing):
            with self._saying_what_is_kept():
                sampler = self._opened()
                stream = sampler.stream(missing, samples=samples, first_sample=first_sample, **asked)
                self._progress.start()
                with contextlib.closing(stream):  # type: ignore[type-var]
                    for batch in stream:
                        self._journal.append(batch)
                        self._progress.add(batch)
                        kept[batch["problem_id"][0].as_py()] = batch
        batches = [kept[problem_id] for problem_id in sorted(kept)]
        table = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches)))
        return table.sort("problem_id", "sample")

    def close(self) -> None:
        """Free the engine, and end the line that says how far it is."""
        self._progress.close()
        if self._sampler is not None:
            self._sampler.close()

    def _opened(self) -> Sampler:
        if self._sampler is None:
            self._sampler = self._open()
        return self._sampler

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
            f"{self._progress.done:,} of {self._progress.total:,} groups are kept in {self._journal.folder}, and the "
            "same command goes on from there"
        )


def _has_aborted(group: pa.RecordBatch) -> bool:
    return bool(pc.any(pc.equal(group["finish_reason"], "aborted")).as_py())
