"""A ledger as it is read: which charges survived, and which were paid for and lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LedgerError
from ..wording import reason
from . import blocks, frames
from .attempts import Origin
from .fold import Fold, Totals
from .limits import Limits
from .reading import Charges, Reading
from .tabulation import ledger_table

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Charges", "History", "Totals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The whole of a ledger, as it is read.

    Attributes:
        where: The file.
        run_id: The run it belongs to; empty when nothing was recorded yet.
        charges: Every charge acknowledged.
        times: Attempt, step and device-seconds of the charges that took device time.
        origins: When and where each attempt began; None where the file does not say (before version 0.7.0).
        fold: The sums of the records. A writer takes it over and goes on with it.
        synced: The watermark, in bytes.
        whole_bytes: Length of the part that is whole.
        torn_bytes: Length of a torn end, which was never synced.
        records: Number of whole records.
    """

    where: str
    run_id: str
    charges: Charges
    times: tuple[tuple[int, int, float], ...]
    origins: tuple[Origin | None, ...]
    fold: Fold = field(compare=False, repr=False)
    synced: int
    whole_bytes: int
    torn_bytes: int
    records: int

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read a ledger without writing to it; a run may be charging it at the same time.

        Raises:
            LedgerError: The file cannot be read, is not a ledger, or is damaged.
        """
        try:
            data = Path(path).read_bytes()
            if frames.is_ledger(data) and frames.read_watermark(data) is None:
                # A run may have been writing the watermark just then.
                data = Path(path).read_bytes()
        except OSError as error:
            raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None
        return cls.decode(data, str(path))

    @classmethod
    def decode(cls, data: bytes, where: str) -> History:
        """Read a ledger's bytes.

        Raises:
            LedgerError: They are not a ledger's, or a record is damaged, missing or repeated.
        """
        reading = Reading(where)
        synced = frames.read_head(data, where)
        end, count = frames.HEAD_BYTES, 0
        for end, many, payload in blocks.read_blocks(data, where):  # noqa: B007
            reading.take(payload, count)
            count += many
        reading.end_attempt()
        return cls(
            where=where,
            run_id=reading.run_id,
            charges=reading.charges,
            times=tuple(reading.times),
            origins=tuple(reading.origins),
            fold=reading.fold,
            synced=synced,
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
        return ledger_table(self.run_id, self.fold.canonical())

    def lost_work(self) -> pl.DataFrame:
        """What was paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return ledger_table(self.run_id, self.fold.lost(), by_attempt=True)
