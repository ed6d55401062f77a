"""What a ledger says: which charges survived, and which were paid for and lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import blocks, frames
from .counts import COHORTS, Limits
from .errors import LedgerError
from .fold import Fold, Totals
from .reading import Charges, Reading
from .wording import reason

if TYPE_CHECKING:
    import polars as pl

__all__ = ["COUNTED", "Charges", "History", "Totals", "distinct"]

COUNTED = ("rollouts", "prompt_tokens", "response_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The whole of a ledger, as it is read.

    Attributes:
        where: The file.
        run_id: The run it belongs to; empty when nothing was recorded yet.
        charges: Every charge acknowledged.
        times: Attempt, step and device-seconds of the charges that took device time.
        fold: What the records add up to. A writer takes it over and goes on with it.
        head: What comes before the records.
        whole_bytes: Length of the part that is whole.
        torn_bytes: Length of a torn end, which was never synced.
        records: Number of whole records.
    """

    where: str
    run_id: str
    charges: Charges
    times: tuple[tuple[int, int, float], ...]
    fold: Fold = field(compare=False, repr=False)
    head: frames.Head
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
            if data.startswith(frames.LINES[frames.VERSION]) and frames.watermark_in(data) is None:
                # A run may have been writing the watermark just then.
                data = Path(path).read_bytes()
        except OSError as error:
            raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None
        return cls.decode(data, str(path))

    @classmethod
    def decode(cls, data: bytes, where: str) -> History:
        """Read a ledger's bytes.

        Raises:
            LedgerError: They are not a ledger's, or a record is damaged, missing or there twice.
        """
        reading = Reading(where)
        head = frames.read_head(data, where)
        end, count = head.size, 0
        for end, many, payload in blocks.runs(data, where):  # noqa: B007
            reading.take(payload, count)
            count += many
        reading.end_attempt()
        return cls(
            where=where,
            run_id=reading.run_id,
            charges=reading.charges,
            times=tuple(reading.times),
            fold=reading.fold,
            head=head,
            whole_bytes=end,
            torn_bytes=len(data) - end,
            records=count,
        )

    @property
    def resumed_from(self) -> tuple[int, ...]:
        """For each attempt, the last step that it took over from those before it."""
        return tuple(self.fold.resumed_from)

    @property
    def limits(self) -> Limits | None:
        """The limits last in force, or None when no meter was set on the ledger."""
        return self.fold.limits

    @property
    def last_step(self) -> int:
        """The last step that was reached and not rolled back, or 0."""
        return self.fold.last_step

    @property
    def device_seconds(self) -> float:
        """Device time that was paid for, by all attempts."""
        return self.fold.device_seconds

    def totals(self) -> Totals:
        """Sums by cohort, of what survived and of what was lost; ``Fold`` says which is which."""
        return self.fold.totals()

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step, sorted by its key.

        It is the same however often the run was killed; a ledger without charges gives a table without rows.
        """
        return self._frame(self.fold.canonical())

    def lost_work(self) -> pl.DataFrame:
        """What was paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return self._frame(self.fold.lost(), "attempt")

    def _frame(self, rows: Iterator[tuple[int, ...]], *extra: str) -> pl.DataFrame:
        import polars as pl

        from .contract import tables

        keys = ["run_id", "step", "cohort", *extra]
        types = pl.Schema({column.name: column.dtype() for column in tables.schema("ledger").columns})
        names = ("step", "code", "attempt", *COUNTED)
        frame = pl.DataFrame(list(rows), schema=dict.fromkeys(names, pl.Int64), orient="row")
        cohorts = pl.col("code").replace_strict(range(len(COHORTS)), COHORTS, return_dtype=pl.String)
        return (
            frame.group_by("step", "code", *extra)
            .agg(pl.col(COUNTED).sum())
            .with_columns(cohorts.alias("cohort"), pl.lit(self.run_id).alias("run_id"))
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
