"""The ledger of one run: every charge for what it generated, in a crash-safe file with one writer.

``Ledger`` writes the file and, when opened, takes over what earlier attempts left. ``History`` reads it: which charges
survived, and which were paid for and lost. ``Account`` joins several ledgers: survived + lost = paid.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ..contract.files import atomic_write
from ..errors import BudgetError, LedgerError, finite, whole
from . import fold, store
from .counts import TRAINING_COHORTS, Counts, charged_counts, split
from .fold import COUNTED, Totals
from .limits import Limits
from .store import Store

if TYPE_CHECKING:
    import polars as pl

LOGGER = logging.getLogger(__name__)

MOST_SHARES = 256
"""Most steps that can share a charge."""

LONGEST_RUN_ID = 1_000
"""Largest length of a run id, in bytes of UTF-8."""

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
"""Environment variables in which schedulers give a process's job."""


class Ledger:
    """A record of everything that one run generated, charge by charge.

    A charge is acknowledged (``charge`` returns) once it is on disk, so it survives a power cut.

    Open a ledger with ``Ledger.open``. Any thread of the process that opened it may charge it. A charge that raised
    ``LedgerError`` was not made. An interrupted charge (for example, by Ctrl-C) was made if it is in the file, and the
    sums are always those of the file.

    Rollouts in flight are in no charge. A file beside the ledger, ``run.ledger.dispatched``, holds how many rollouts
    all attempts have dispatched for training, so the next process can charge as lost what a killed one had not charged.
    """

    def __init__(self, opened: Store, run_id: str, attempt: int) -> None:
        self.path, self.run_id, self.attempt = opened.path, run_id, attempt
        self._store = opened
        self._closed: tuple[Totals, float, int] | None = None

    @classmethod
    def open(cls, path: str | Path, *, run_id: str, resumed_from: int | Literal["last"] | None = None) -> Ledger:
        """Open a ledger for writing, and begin an attempt at its run.

        What earlier attempts charged to steps after ``resumed_from`` becomes lost work. The loss is logged, as a
        warning if it contains training rollouts. What they charged up to ``resumed_from`` stays, unless this attempt
        repeats an evaluation or pilot of such a step; then the repetition replaces it. ``fold`` has the rules.

        Args:
            path: The file, created if it does not exist.
            resumed_from: Last update step that is not done again: the checkpoint's step, 0 for a run that starts from
                its beginning, or ``"last"`` for the last step in the ledger. May be omitted while nothing was charged.

        Raises:
            LedgerError: The file is damaged, belongs to another run, is held by another writer or cannot be written;
                its file system has no locks; the ledger never reached the step resumed from; or there are charges and
                ``resumed_from`` was omitted.
        """
        path = Path(path)
        try:
            length = len(run_id.encode())
        except UnicodeEncodeError:
            raise LedgerError(f"{path}: the run_id {run_id!r} is not text that UTF-8 can hold") from None
        if not 0 < length <= LONGEST_RUN_ID:
            raise LedgerError(f"{path}: a run_id must have 1 to {LONGEST_RUN_ID} bytes, not {length}")
        if resumed_from not in (None, "last"):
            resumed_from = whole(resumed_from, "resumed_from", least=0)
        if not path.exists():
            # A leftover of a removed ledger.
            with suppress(OSError):
                _dispatched(path).unlink()
        opened = Store.open(path)
        try:
            attempt, step, before, after = opened.write("the attempt", partial(_begin, path, run_id, resumed_from))
        except BaseException:
            opened.close(abandon=True)
            raise
        _tell_of_losses(path, attempt, step, before, after)
        return cls(opened, run_id, attempt)

    @property
    def used(self) -> Counts:
        """C_used: the cumulative training cohorts of the canonical ledger."""
        return self.totals.used

    @property
    def lost(self) -> Counts:
        """Rollouts generated for training, paid for, and lost when earlier attempts ended."""
        return self.totals.lost_training

    @property
    def totals(self) -> Totals:
        """Sums by cohort so far, canonical and lost."""
        return self._sums()[0]

    @property
    def device_seconds(self) -> float:
        """Device time charged so far by all attempts: what was paid for, lost or not."""
        return self._sums()[1]

    @property
    def last_step(self) -> int:
        """The last step that was reached and not rolled back, or 0."""
        return self._sums()[2]

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
    ) -> None:
        """Record what was generated in a step; several charges to one step add up.

        A step that generated nothing is recorded too, so that the run can resume after it.

        Rollouts used in several steps are charged to all of them, in one record::

            ledger.charge(5, {"trained": Counts(rollouts=64)}, shares=(1, 1, 1, 1))  # 16 to each of steps 5 to 8
            ledger.charge(9, {"trained": Counts(rollouts=64)}, shares=(3, 1))  # 48 to step 9 and 16 to step 10

        Args:
            step: Update step, from 1; an evaluation is charged to the step it follows (0 before the first).
            charged: Counts by cohort (``COHORTS``), or a ``rollouts`` table whose column ``cohort`` says what became of
                each response. A table without rows charges nothing, like an empty mapping.
            shares: Relative use in ``step`` and each following step. The charge marks all of these steps as reached.
            device_seconds: Seconds times devices held. Stored beside the counts, never in the ``ledger`` table, which
                is the same on every machine.

        Raises:
            BudgetError: A cohort is unknown, the table lacks a column, the step or the time is negative, or ``shares``
                is empty or has one below 1. Nothing was charged.
            LedgerError: The ledger is closed or used by another process, its file is gone, or the disk is full or
                refuses to sync. Nothing was charged.
        """
        step = whole(step, "step", least=0)
        counts = {cohort: c for cohort, c in charged_counts(charged).items() if c}
        parts = _parts(step, counts, shares)
        if device_seconds:
            device_seconds = finite(device_seconds, "device_seconds", zero=True)
        if not counts and not device_seconds and step <= self.last_step:
            return
        charging = partial(fold.charge, attempt=self.attempt, parts=parts, device_seconds=device_seconds)
        self._store.write(f"the charge for step {step}", charging)

    def end(self, step: int) -> None:
        """Record that the attempt ended after a step: what it generated for later steps is lost work."""
        step = whole(step, "step", least=0)
        self._store.write("the end of the attempt", partial(fold.end, step=step))

    def reserve(self, rollouts: int) -> None:
        """Note how many training rollouts are in flight; call this before the new ones among them are dispatched."""
        dispatched = self.totals.paid_training.rollouts + rollouts
        with atomic_write(_dispatched(self.path), error=LedgerError) as stream:
            stream.write(f"{dispatched}\n".encode())

    def charge_lost(self, step: int, *, restored: int = 0) -> None:
        """Charge, after a step, rollouts in flight when a process died, except those restored from the checkpoint."""
        lost = under_way(self.path, self.totals.paid_training, restored=restored)
        if lost:
            LOGGER.warning("%s: %d rollouts that a killed process dispatched count as lost", self.path, lost.rollouts)
            self.charge(step + 1, {"failed": lost})
            self.end(step)

    def take_back(self, step: int, *, restored: int) -> None:
        """Remove from lost work what a killed process charged after a step and its checkpoint restores.

        These rollouts were generated once, and are charged again with their step. Call this after ``charge_lost``, with
        the same arguments, before anything is charged. A second call changes nothing.

        Args:
            restored: Rollouts that the checkpoint restores. Those among them that were never charged are left alone.

        Raises:
            LedgerError: The ledger cannot be written, or the note of ``reserve`` cannot be read.
        """
        uncharged = under_way(self.path, self.totals.paid_training)
        if _dispatched(self.path).exists() and restored > uncharged.rollouts:
            taking = partial(fold.take_back, attempt=self.attempt, step=step, rollouts=restored - uncharged.rollouts)
            self._store.write(f"what comes back after step {step}", taking)

    def note_limits(self, limits: Limits) -> None:
        """Record the limits in force from here on; ``Meter`` does this."""
        noted = (json.dumps(asdict(limits)),)
        self._store.write("the change of limits", lambda sql: sql.execute("UPDATE run SET limits = ?", noted))

    def history(self) -> History:
        """The whole ledger, read from its file."""
        return History.read(self.path)

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step."""
        return self.history().table()

    def lost_work(self) -> pl.DataFrame:
        """Charges paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return self.history().lost_work()

    def close(self) -> None:
        """Let another writer in. Closing twice does nothing; a fork leaves the ledger to its parent.

        Raises:
            LedgerError: The file is gone. The ledger is closed all the same.
        """
        if self._closed is None:
            with suppress(LedgerError):
                self._closed = self._sums()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sums(self) -> tuple[Totals, float, int]:
        """Totals, device time and last step in the file, or those at the time it was closed."""
        return self._closed or self._store.read(lambda sql: (fold.totals(sql), *_progress(sql)))


def under_way(path: Path, paid: Counts, *, restored: int = 0) -> Counts:
    """Return the rollouts that were dispatched and neither paid for nor restored; their tokens are unknown."""
    note = _dispatched(path)
    try:
        dispatched = int(note.read_text())
    except FileNotFoundError:
        return Counts()
    except (OSError, ValueError) as error:
        raise LedgerError(f"{note}: is not the number of rollouts that were dispatched ({error})") from None
    return Counts(rollouts=max(0, dispatched - paid.rollouts - restored))


def _dispatched(path: Path) -> Path:
    return path.with_name(f"{path.name}.dispatched")


def _progress(sql: sqlite3.Connection) -> tuple[float, int]:
    device_seconds, last_step = sql.execute("SELECT device_seconds, last_step FROM run").fetchone()
    return device_seconds, last_step


def _begin(
    path: Path, run_id: str, resumed_from: int | Literal["last"] | None, sql: sqlite3.Connection
) -> tuple[int, int, Totals, Totals]:
    """Begin an attempt; return its number, the step it resumes after, and the sums before and now."""
    (of_run,) = sql.execute("SELECT run_id FROM run").fetchone()
    if of_run not in (None, run_id):
        raise LedgerError(f"{path}: is the ledger of run {of_run}, not of {run_id}")
    before, (device_seconds, last) = fold.totals(sql), _progress(sql)
    step = _step(path, resumed_from, last, before, charged=bool(device_seconds or before.paid))
    job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)
    sql.execute("UPDATE run SET run_id = ?", (run_id,))
    attempt = fold.begin(
        sql,
        step,
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        job=job,
        salt=secrets.token_hex(8),
    )
    return attempt, step, before, fold.totals(sql)


def _parts(step: int, counts: Mapping[str, Counts], shares: Sequence[int]) -> list[tuple[int, dict[str, Counts]]]:
    """Split a charge into its steps' parts."""
    if shares == (1,):
        return [(step, dict(counts))]
    shares = [whole(share, "a share", least=1) for share in shares]
    if not 1 <= len(shares) <= MOST_SHARES:
        raise BudgetError(f"a charge is shared by {len(shares):,} steps; it must be 1 to {MOST_SHARES}")
    of_cohorts = {cohort: split(c, shares) for cohort, c in counts.items()}
    parts = [
        {cohort: of_steps[k] for cohort, of_steps in of_cohorts.items() if of_steps[k]} for k in range(len(shares))
    ]
    # A step without a part is reached along with those after it.
    return [(step + k, part) for k, part in enumerate(parts) if part or not k]


def _step(path: Path, resumed_from: int | Literal["last"] | None, last: int, before: Totals, *, charged: bool) -> int:
    """The step that an attempt resumes after."""
    if resumed_from == "last":
        return last
    if resumed_from is None:
        if last or charged:
            kept = f" up to step {last}" if last or any(before.canonical.values()) else ", all of them lost"
            raise LedgerError(
                f"{path}: has charges{kept}: say which this "
                "attempt keeps, resumed_from='last' all, resumed_from=STEP those up to a checkpoint's, resumed_from=0 "
                "none; the rest becomes lost work"
            )
        return 0
    if resumed_from > last:
        raise LedgerError(
            f"{path}: cannot resume from step {resumed_from}, since the ledger ends at step {last}; it must be of "
            "the checkpoint's run, and a step that generates nothing must be charged as well"
        )
    return resumed_from


def _tell_of_losses(path: Path, attempt: int, step: int, before: Totals, after: Totals) -> None:
    """Log what becomes lost when an attempt begins; a loss of training rollouts is a warning, since only they count."""
    lost = [sum(totals.lost.values(), Counts()).rollouts for totals in (before, after)]
    training = after.lost_training.rollouts - before.lost_training.rollouts
    other = lost[1] - lost[0] - training
    if training or other:
        message = (
            f"{path}: attempt {attempt} goes on after step {step}, so what was charged to later steps is lost work "
            f"from now on: {training:,} rollouts for training and {other:,} of evaluations and pilots, which "
            "were paid for"
        )
        LOGGER.log(logging.WARNING if training else logging.INFO, "%s", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a run.

    Attributes:
        resumed_from: The last step that it took over from earlier attempts.
        began: When, in UTC, to the second.
        job: The scheduler's name for the job; None without a scheduler.
        salt: Random, so that two runs with equal charges are not taken for copies of each other.
    """

    resumed_from: int
    began: str
    host: str
    job: str | None
    salt: str
    charges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A ledger as read at one moment.

    Attributes:
        limits: The limits last in force, or None if no meter was set on the ledger.
        last_step: The last step that was reached and not rolled back, or 0.
        times: Attempt, step and device-seconds of the charges that took device time.
        canonical: Rows of what survived, with the columns and order of the ``ledger`` table.
        lost: Rows of what was paid for and lost, with the attempt as an extra column.
    """

    where: str
    run_id: str = ""
    attempts: tuple[Attempt, ...] = ()
    limits: Limits | None = None
    last_step: int = 0
    device_seconds: float = 0.0
    times: tuple[tuple[int, int, float], ...] = ()
    canonical: tuple[tuple[Any, ...], ...] = ()
    lost: tuple[tuple[Any, ...], ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read a ledger; a run may be charging it at the same time."""
        return store.read(Path(path), partial(_history, str(path)))

    @property
    def resumed_from(self) -> tuple[int, ...]:
        """For each attempt, the last step that it took over from earlier attempts."""
        return tuple(attempt.resumed_from for attempt in self.attempts)

    def totals(self, *, resumed_from: int | None = None) -> Totals:
        """Sums by cohort, surviving and lost (``fold``); ``resumed_from``: as if an attempt began after this step."""
        last = self.last_step if resumed_from is None else resumed_from
        kept = ((step > last, cohort, *counted) for _, step, cohort, *counted in self.canonical)
        lost = ((True, cohort, *counted) for _, _, cohort, *counted, _ in self.lost)
        return fold.totals_of(chain(kept, lost))

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step, sorted by its key.

        It is the same however often the run was killed. A ledger without charges gives a table without rows.
        """
        return _table(self.canonical)

    def lost_work(self) -> pl.DataFrame:
        """Charges paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return _table(self.lost, "attempt")


def _history(where: str, sql: sqlite3.Connection) -> History:
    run_id, limits = sql.execute("SELECT run_id, limits FROM run").fetchone()
    device_seconds, last_step = _progress(sql)
    times = "SELECT attempt, step, device_seconds FROM charges WHERE device_seconds > 0 ORDER BY attempt, step"
    origins = sql.execute("SELECT resumed_from, began, host, job, salt, charges FROM attempts ORDER BY attempt")
    return History(
        where=where,
        run_id=run_id or "",
        attempts=tuple(Attempt(**dict(zip(Attempt.__slots__, row, strict=True))) for row in origins),
        limits=limits and Limits(**json.loads(limits)),
        last_step=last_step,
        device_seconds=device_seconds,
        times=tuple(sql.execute(times)),
        canonical=tuple(sql.execute("SELECT * FROM ledger")),
        lost=tuple(sql.execute("SELECT * FROM lost_work")),
    )


def _table(rows: Sequence[tuple[Any, ...]], *more: str) -> pl.DataFrame:
    """Rows as a table with the columns of ``ledger`` and extra ones."""
    import polars as pl

    from ..contract import tables

    types = {column.name: column.dtype() for column in tables.schema("ledger").columns}
    return pl.DataFrame(rows, schema=types | dict.fromkeys(more, pl.Int64()), orient="row")


GROUPS = ("cohort", "phase", "step", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The charges of one or more runs.

    Attributes:
        ledger: The ``ledger`` table: the canonical attempts.
        lost_work: What was paid for and lost: the columns of the ``ledger`` table and ``attempt``.
        histories: The ledgers it was read from; a source that is a table has none.
        tables: The sources that are tables, which hold no lost work.
    """

    ledger: pl.DataFrame
    lost_work: pl.DataFrame
    histories: tuple[History, ...]
    tables: tuple[str, ...]

    def by(self, group: str) -> pl.DataFrame:
        """Sum by ``cohort``, ``phase`` (training, eval, pilot), ``step`` or ``run``.

        Returns:
            The group, then the canonical sum, ``lost_…`` and ``paid_…`` of each of ``rollouts``, ``prompt_tokens`` and
            ``response_tokens``. By step or run, sums include ``eval`` and ``pilot`` rows, since they were paid for as
            well.
        """
        import polars as pl

        if group not in GROUPS:
            raise BudgetError(f"there are no sums by {group!r}; choose one of {', '.join(GROUPS)}")
        key: str | pl.Expr = "run_id" if group == "run" else group
        if group == "phase":
            training = pl.col("cohort").is_in(TRAINING_COHORTS)
            key = pl.when(training).then(pl.lit("training")).otherwise("cohort").alias("phase")
        kept = self.ledger.group_by(key).agg(pl.col(COUNTED).sum())
        lost = self.lost_work.group_by(key).agg(pl.col(COUNTED).sum().name.prefix("lost_"))
        key = kept.columns[0]
        joined = kept.join(lost, on=key, how="full", coalesce=True).fill_null(0).sort(key)
        paid = [(pl.col(name) + pl.col(f"lost_{name}")).alias(f"paid_{name}") for name in COUNTED]
        ordered = [f"{prefix}{name}" for name in COUNTED for prefix in ("", "lost_", "paid_")]
        return joined.with_columns(paid).select(key, *ordered)


def account(sources: Sequence[str | Path]) -> Account:
    """Read ledgers and ``ledger`` tables into one account that counts nothing twice.

    Args:
        sources: Ledger files, folders of them (files that begin like a ledger, or end in ``.ledger``), and tables as
            for ``tables.read`` (Parquet, CSV, ``mlflow:EXPERIMENT``, ``runs:/RUN_ID``). An earlier copy of a ledger is
            left out.

    Raises:
        LedgerError: A ledger is damaged, or two ledgers of one run differ.
        TableError: A table does not match its schema, or two tables disagree about a charge.
    """
    from ..contract import tables

    histories: list[History] = []
    others: list[str] = []
    for source in sources:
        files = _ledger_files(source)
        histories += [History.read(path) for path in files]
        if not files:
            others.append(str(source))
    histories = [history for history in drop_copies(histories) if history.run_id]
    where = ", ".join(str(source) for source in sources)
    # Join all runs in one frame: checking a thousand small tables one by one takes longer than reading them.
    recorded = _table([row for history in histories for row in history.canonical])
    parts = [recorded] if len(recorded) else []
    parts += [tables.read(source, "ledger") for source in others]
    if not parts:
        raise LedgerError(f"{where}: nothing was charged yet")
    lost = _table([row for history in histories for row in history.lost], "attempt")
    return Account(
        ledger=tables.concat(parts, "ledger", where=where),
        lost_work=lost.sort("run_id", "step", "cohort", "attempt"),
        histories=tuple(histories),
        tables=tuple(others),
    )


def drop_copies(histories: Iterable[History]) -> list[History]:
    """One history per run: the longer of a ledger and its earlier copy, so that nothing counts twice."""
    kept: dict[str, History] = {}
    for history in histories:
        other = kept.setdefault(history.run_id, history)
        shorter, longer = sorted((other, history), key=lambda h: (len(h.attempts), sum(a.charges for a in h.attempts)))
        # An attempt has one writer, so copies of it differ only in length.
        pairs = zip(shorter.attempts, longer.attempts, strict=False)
        if any(ours.salt != theirs.salt or ours.charges > theirs.charges for ours, theirs in pairs):
            both = f"{shorter.where} and {longer.where} are both ledgers of run {history.run_id}"
            raise LedgerError(f"{both} and differ; leave out the one that is not the run's own")
        kept[history.run_id] = longer
    return list(kept.values())


def _ledger_files(source: str | Path) -> list[Path]:
    """The ledger files in a source; none if it is a table."""
    path = Path(source)
    if path.is_dir():
        found = (file for file in path.rglob("*") if file.is_file())
        return sorted(file for file in found if file.suffix == ".ledger" or store.is_ledger(file))
    if str(source).startswith(("mlflow:", "runs:/")) or path.suffix in {".parquet", ".csv"}:
        return []
    return [path]


def run_id_of(path: Path) -> str:
    """The run id in a ledger, or folder/name of its path if it does not exist yet."""
    if path.exists() and (run_id := History.read(path).run_id):
        return run_id
    path = path.resolve()
    return f"{path.parent.name}/{path.stem}"
