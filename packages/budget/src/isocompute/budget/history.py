"""What a ledger says: which charges survived, and which were paid for and lost."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from math import fsum
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING

from . import records
from .counts import COHORTS, LARGEST, TRAINING_COHORTS, Counts, Limits
from .errors import LedgerError

if TYPE_CHECKING:
    import polars as pl

COUNTED = ("rollouts", "prompt_tokens", "response_tokens")

# A step is repeated by phase: an evaluation that is done again replaces the evaluation, not the training.
PHASES = tuple(0 if cohort in TRAINING_COHORTS else code for code, cohort in enumerate(COHORTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Charges in the order in which they were made, a column each.

    Attributes:
        attempt: Number of the attempt, from 1.
        step: Update step.
        cohort: Place of the cohort in ``COHORTS``.
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens.
        response_tokens: Response tokens.
    """

    attempt: array[int]
    step: array[int]
    cohort: array[int]
    rollouts: array[int]
    prompt_tokens: array[int]
    response_tokens: array[int]

    @classmethod
    def unpack(cls, entries: bytes, begins: Sequence[int]) -> Charges:
        """Columns from packed entries and, for each attempt, the offset of its first entry."""
        values = array("q", entries)
        if sys.byteorder == "big":
            values.byteswap()
        attempt = array("q")
        bounds = pairwise([*begins, len(entries)])
        for number, (begin, end) in enumerate(bounds, start=1):
            attempt.extend(array("q", [number]) * ((end - begin) // records.ENTRY.size))
        step, cohort, rollouts, prompt_tokens, response_tokens = (values[i::5] for i in range(5))
        return cls(
            attempt=attempt,
            step=step,
            cohort=cohort,
            rollouts=rollouts,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )

    def columns(self) -> tuple[array[int], ...]:
        """The columns, in the order above."""
        return (
            self.attempt,
            self.step,
            self.cohort,
            self.rollouts,
            self.prompt_tokens,
            self.response_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums by cohort.

    Attributes:
        canonical: What the surviving attempts generated.
        lost: What was generated, paid for, and lost when an attempt ended early.
    """

    canonical: dict[str, Counts]
    lost: dict[str, Counts]

    @property
    def used(self) -> Counts:
        """C_used: the training cohorts of the surviving attempts, which the budget is charged with."""
        return _sum(self.canonical[cohort] for cohort in TRAINING_COHORTS)

    @property
    def lost_training(self) -> Counts:
        """The training cohorts of lost work."""
        return _sum(self.lost[cohort] for cohort in TRAINING_COHORTS)

    @property
    def paid(self) -> Counts:
        """Everything generated: all cohorts, survived or lost."""
        return _sum(self.canonical.values()) + _sum(self.lost.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The whole of a ledger, as it is read.

    Attributes:
        where: The file.
        run_id: The run it belongs to; empty when nothing was recorded yet.
        resumed_from: For each attempt, the last step that it took over from those before it.
        charges: Every charge acknowledged.
        times: Attempt, step and device-seconds of the charges that took device time.
        limits: The limits last in force, or None when no meter was set on the ledger.
        whole_bytes: Length of the part that is whole.
        torn_bytes: Length of a torn tail, which nobody was told had been written.
        records: Number of whole records.
    """

    where: str
    run_id: str
    resumed_from: tuple[int, ...]
    charges: Charges
    times: tuple[tuple[int, int, float], ...]
    limits: Limits | None
    whole_bytes: int
    torn_bytes: int
    records: int

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read a ledger without writing to it; a run may be charging it meanwhile.

        Raises:
            LedgerError: The file cannot be read, is not a ledger, or is damaged.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise LedgerError(f"{path}: cannot be read ({error.strerror})") from None
        return cls.decode(data, str(path))

    @classmethod
    def decode(cls, data: bytes, where: str) -> History:
        """Read a ledger's bytes.

        Raises:
            LedgerError: They are not a ledger's, or a record is damaged, missing or there twice.
        """
        run_ids: list[str] = []
        resumed_from: list[int] = []
        begins: list[int] = []
        limits: Limits | None = None
        parts: list[bytes] = []
        times: list[tuple[int, int, float]] = []
        packed = end = count = 0
        for end, many, payload in records.runs(data, where):  # noqa: B007
            kind = payload[0] if payload else None
            if kind == records.CHARGE and begins:
                parts.append(payload[1:])
                packed += len(payload) - 1
            elif kind == records.TIMED_CHARGE and begins:
                times.append((len(begins), *records.time_in(payload)))
                parts.append(payload[records.TIMED.size :])
                packed += len(payload) - records.TIMED.size
            elif kind == records.ATTEMPT:
                run_id, resumed = records.attempt_in(payload)
                run_ids.append(run_id)
                resumed_from.append(resumed)
                begins.append(packed)
            elif kind in (records.LIMIT, records.TIMED_LIMIT):
                limits = records.limit_in(payload)
            else:
                raise LedgerError(f"{where}: record {count} is not one that this version knows")
            count += many
        if len(set(run_ids)) > 1:
            names = " and ".join(sorted(set(run_ids)))
            raise LedgerError(f"{where}: holds charges of the runs {names}; a ledger is of one run")
        return cls(
            where=where,
            run_id=run_ids[0] if run_ids else "",
            resumed_from=tuple(resumed_from),
            charges=Charges.unpack(b"".join(parts), begins),
            times=tuple(times),
            limits=limits,
            whole_bytes=end,
            torn_bytes=len(data) - end,
            records=count,
        )

    def survived(self) -> list[bool]:
        """For each charge, whether it belongs to the canonical attempt of its step.

        An attempt takes over the steps up to the one it resumed from; later steps of the attempts before
        it are lost. Where it repeats a phase of a step that it took over (the evaluation before the first
        update, say, when a run starts again from nothing), the repetition is canonical.
        """
        c = self.charges
        if len(self.resumed_from) < 2:
            return [True] * len(c.step)
        # The last step of each attempt that every later attempt took over.
        horizon = [LARGEST] * len(self.resumed_from)
        for later in range(len(horizon) - 1, 0, -1):
            horizon[later - 1] = min(horizon[later], self.resumed_from[later])
        repeated: dict[tuple[int, int], int] = {}
        for attempt, step, cohort in zip(c.attempt, c.step, c.cohort, strict=True):
            if attempt > 1 and step <= self.resumed_from[attempt - 1]:
                repeated[step, PHASES[cohort]] = attempt
        return [
            step <= horizon[attempt - 1] and repeated.get((step, PHASES[cohort]), attempt) == attempt
            for attempt, step, cohort in zip(c.attempt, c.step, c.cohort, strict=True)
        ]

    @property
    def last_step(self) -> int:
        """The last step that survives, or 0."""
        steps = self.charges.step
        return max(steps if len(self.resumed_from) < 2 else compress(steps, self.survived()), default=0)

    @property
    def device_seconds(self) -> float:
        """Device time that was paid for, by all attempts."""
        return fsum(seconds for _, _, seconds in self.times)

    def totals(self) -> Totals:
        """Sums by cohort, of what survived and of what was lost."""
        survived = self.survived()
        canonical = self._sums(survived)
        if len(self.resumed_from) < 2:
            return Totals(canonical=canonical, lost={cohort: Counts() for cohort in COHORTS})
        return Totals(canonical=canonical, lost=self._sums([not ok for ok in survived]))

    def _sums(self, counted: Sequence[bool]) -> dict[str, Counts]:
        """Sums by cohort over some of the charges."""
        c = self.charges
        # The lowest byte of each code, which is all of it.
        codes = c.cohort.tobytes()[0 if sys.byteorder == "little" else 7 :: 8]
        everything = all(counted)
        sums = {}
        for code, cohort in enumerate(COHORTS):
            number = codes.count(code)
            if not number:
                sums[cohort] = Counts()
                continue
            # compress and sum run in C, which a loop over the rows does not.
            here = codes.translate(bytes(value == code for value in range(256)))
            mask: Sequence[int] | None = here if everything else list(map(and_, here, counted))
            if everything and number == len(codes):
                mask = None
            columns = (c.rollouts, c.prompt_tokens, c.response_tokens)
            rollouts, prompt, response = (sum(column if mask is None else compress(column, mask)) for column in columns)
            sums[cohort] = Counts(rollouts=rollouts, prompt_tokens=prompt, response_tokens=response)
        return sums

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step, sorted by its key.

        It is the same however often the run was killed; a ledger without charges gives a table without rows.
        """
        return self._frame(survived=True)

    def lost_work(self) -> pl.DataFrame:
        """What was paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return self._frame(survived=False)

    def _frame(self, *, survived: bool) -> pl.DataFrame:
        import polars as pl

        from . import tables

        c = self.charges
        extra = [] if survived else ["attempt"]
        keys = ["run_id", "step", "cohort", *extra]
        types = pl.Schema({column.name: column.dtype() for column in tables.schema("ledger").columns})
        columns = {"attempt": c.attempt, "step": c.step, "code": c.cohort, **{n: getattr(c, n) for n in COUNTED}}
        frame = pl.DataFrame({name: pl.Series(values, dtype=pl.Int64) for name, values in columns.items()})
        if len(self.resumed_from) > 1:
            frame = frame.filter(pl.Series(self.survived(), dtype=pl.Boolean) == survived)
        elif not survived:
            frame = frame.clear()
        # Names go on last: there are far fewer sums than charges.
        names = pl.col("code").replace_strict(range(len(COHORTS)), COHORTS, return_dtype=pl.String)
        return (
            frame.group_by("step", "code", *extra)
            .agg(pl.col(COUNTED).sum())
            .with_columns(names.alias("cohort"), pl.lit(self.run_id).alias("run_id"))
            .sort(keys)
            .select([*types, *extra])
            .cast(types)
        )


def distinct(histories: Iterable[History]) -> list[History]:
    """Leave out the copies among several ledgers, so that merging them counts nothing twice.

    Returns:
        One history a run; of a ledger and an earlier copy of it, the longer.

    Raises:
        LedgerError: Two ledgers of one run went different ways.
    """
    kept: dict[str, History] = {}
    for history in histories:
        other = kept.setdefault(history.run_id, history)
        shorter, longer = sorted((other, history), key=lambda h: h.records)
        agree = longer.resumed_from[: len(shorter.resumed_from)] == shorter.resumed_from and all(
            ours == theirs[: len(ours)]
            for ours, theirs in zip(shorter.charges.columns(), longer.charges.columns(), strict=True)
        )
        if not agree:
            raise LedgerError(
                f"{shorter.where} and {longer.where} are both ledgers of run {history.run_id} and differ; "
                "leave out the one that is not the run's own"
            )
        kept[history.run_id] = longer
    return list(kept.values())


def _sum(counts: Iterable[Counts]) -> Counts:
    return sum(counts, Counts())
