"""The ledger of one run: an append-only file with one writer, safe against crashes.

``History`` reads it: which charges survived, and which were paid for and lost. ``Account`` joins several: survived +
lost = paid. ``Ledger`` writes it: opened, it takes over what earlier attempts left, cut to its whole part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ..checks import finite, reason, whole
from ..errors import BudgetError, LedgerError
from . import frames
from .counts import COHORTS, TRAINING_COHORTS, Counts, charged_counts, split
from .fold import Fold, Totals
from .frames import ORIGIN_KIND, Origin, encode_attempt, encode_origin, frame, here
from .limits import Limits
from .writer import Charges, Reading, Writer, sync_folder

if TYPE_CHECKING:
    import polars as pl


MOST_SHARES = 256
"""Most steps that share a charge, which is one record of at most 64 KiB."""


class Ledger:
    """A record of everything that one run generated, charge by charge.

    A charge is acknowledged (``charge`` returns) once the operating system holds it, so that it survives the death of
    the process. The first charge of each step in an attempt is synced to the disk, and with it everything before, also
    where steps are charged in turn; ``sync`` does so at any other moment, such as just before a checkpoint.

    Open one with ``Ledger.open``; it may be charged from several threads of the process that opened it. A charge that
    raised ``LedgerError`` was not made. One that was interrupted (by Ctrl-C, say) was made if it is in the file, and
    the sums are always those of the file.
    """

    def __init__(self, opened: Opened, run_id: str) -> None:
        self._writer = opened.writer
        self._run_id = run_id
        self._attempt = len(opened.fold.resumed_from)
        self._torn_bytes = opened.torn_bytes
        self._fold = opened.fold
        self._number = opened.number
        # False while a record is written and counted: a later call that finds it false follows an interruption.
        self._settled = True
        self._synced_steps: set[int] = set()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, run_id: str, resumed_from: int | Literal["last"] | None = None) -> Ledger:
        """Open a ledger for writing, and begin an attempt at its run.

        A torn end is cut off and logged as a warning: it was never synced. What earlier attempts charged to steps
        after ``resumed_from`` becomes lost work, which is logged too: as a warning where it holds rollouts generated
        for training. What they charged up to it stays, unless this attempt evaluates (or pilots) such a step again;
        then the repetition takes its place. ``Fold`` has the rules.

        Args:
            path: The file, created if it does not exist.
            resumed_from: Last update step that is not done again: that of the checkpoint, 0 when the run starts from
                its beginning, ``"last"`` for the last one in the ledger. May be left out while nothing was charged.

        Raises:
            LedgerError: The file is damaged, of another run, held by another writer or not writable, its file
                system has no locks, or the ledger never reached the step resumed from; or there are charges, and
                ``resumed_from`` was left out.
        """
        return cls(begin_attempt(Path(path), run_id, resumed_from), run_id)

    @property
    def path(self) -> Path:
        """The file."""
        return self._writer.path

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self._run_id

    @property
    def attempt(self) -> int:
        """Number of this attempt at the run, from 1."""
        return self._attempt

    @property
    def torn_bytes(self) -> int:
        """Length of the torn end that was cut off when it was opened; 0 as a rule."""
        return self._torn_bytes

    @property
    def used(self) -> Counts:
        """C_used: the training cohorts of the canonical ledger, cumulative."""
        return self._current_fold().used

    @property
    def lost(self) -> Counts:
        """Generated for training, paid for, and lost when earlier attempts ended."""
        return self._current_fold().lost_training

    @property
    def totals(self) -> Totals:
        """Sums by cohort so far, canonical and lost."""
        self._current_fold()
        with self._lock:
            return self._fold.totals()

    @property
    def device_seconds(self) -> float:
        """Device time charged so far, by all attempts: what was paid for, lost or not."""
        return self._current_fold().device_seconds

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
    ) -> None:
        """Record what was generated in a step; several charges to one step add up.

        A step in which nothing was generated is recorded too, so that the run can resume after it.

        What is used in several steps is charged to all of them, in one record::

            ledger.charge(5, {"trained": Counts(rollouts=64)}, shares=(1, 1, 1, 1))  # 16 to each of steps 5 to 8
            ledger.charge(9, {"trained": Counts(rollouts=64)}, shares=(3, 1))  # 48 to step 9 and 16 to step 10

        Args:
            step: Update step, from 1; an evaluation is charged to the step it follows (0 before the first).
            charged: Counts by cohort (``trained``, ``filtered``, ``stale``, ``failed``, ``eval``, ``pilot``), or a
                ``rollouts`` table whose column ``cohort`` says what became of each response. A table without rows
                charges nothing, as no counts do.
            shares: How much of it is used in ``step`` and each of the steps after it, all of which are reached with it.
            device_seconds: Seconds times devices held. Kept beside the counts, and never in the ``ledger`` table,
                which is the same on every machine.

        Raises:
            BudgetError: There is no such cohort, the table lacks a column, the step or the time is negative, or there
                is no share or one below 1. Nothing was charged.
            LedgerError: The ledger is closed or used by another process, its file is gone, or the disk is full or
                refuses to sync. Nothing was charged, unless the error says that it may be.
        """
        step = whole(step, "step", least=0)
        counts = {cohort: c for cohort, c in charged_counts(charged).items() if c}
        parts = _parts(step, counts, shares)
        if device_seconds:
            device_seconds = finite(device_seconds, "device_seconds", zero=True)
        # Before the lock, which a fork may have inherited locked.
        self._writer.check()
        with self._lock:
            self._settle()
            if not counts and not device_seconds and step <= self._fold.last_step:
                return
            payload = frames.encode_charges(parts, device_seconds)
            self._append(payload, f"the charge for step {step}", sync=step not in self._synced_steps)
            if device_seconds:
                self._fold.take_time(step, device_seconds)
            for of_step, part in parts:
                self._fold.charge(of_step, part)
            self._synced_steps.add(step)
            self._settled = True

    def end(self, step: int) -> None:
        """Record that the attempt ended after a step: what it generated for later ones was not used, and is lost work.

        Raises:
            BudgetError: The step is negative.
            LedgerError: The ledger cannot be written.
        """
        step = whole(step, "step", least=0)
        self._writer.check()
        with self._lock:
            self._settle()
            if step < self._fold.last_step:
                self._append(frames.encode_end(step), "the end of the attempt", sync=True)
                self._fold.end(step)
                self._settled = True

    def note_limits(self, limits: Limits) -> None:
        """Record the limits in force from here on, unless they are in force already; ``Meter`` does this."""
        self._writer.check()
        with self._lock:
            self._settle()
            if limits != self._fold.limits:
                self._append(frames.encode_limits(limits), "the limits", sync=False)
                self._fold.limits = limits
                self._settled = True

    def sync(self) -> None:
        """Return once every charge is on the disk, safe from a power cut.

        Raises:
            LedgerError: The ledger is closed, or the disk refuses.
        """
        self._writer.check()
        with self._lock:
            self._settle()
            self._writer.sync()

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
        """Sync, and let another writer in. Closing twice does nothing; in a fork, it only closes the handle.

        Raises:
            LedgerError: The disk refuses to sync, or the file is gone. It is closed all the same.
        """
        if self._writer.forked:
            self._writer.close()
            return
        with self._lock:
            if self._writer.closed:
                return
            try:
                # A failed sync has raised already.
                if not self._writer.unusable:
                    self._settle()
                    self._writer.sync()
            finally:
                self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, payload: bytes, what: str, *, sync: bool) -> None:
        """Write a record, which the caller then counts."""
        self._settled = False
        try:
            self._writer.append(frames.frame(self._number, payload), what, sync=sync)
        except LedgerError:
            self._settled = True
            raise
        self._number += 1

    def _current_fold(self) -> Fold:
        """The sums of the file, unless a charge is being made just now: then those before it."""
        if not self._settled and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()
        return self._fold

    def _settle(self) -> None:
        """After an interruption between writing and counting: count what the file holds."""
        if self._settled:
            return
        try:
            data = self._writer.read()
            history = History.decode(data, str(self.path))
            self._writer.resume(data, whole=history.whole_bytes, synced=history.synced)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read again after an interruption ({reason(error)})") from None
        self._fold = history.fold
        self._number = history.records
        self._synced_steps.clear()
        self._settled = True


def _parts(step: int, counts: Mapping[str, Counts], shares: Sequence[int]) -> list[tuple[int, dict[str, Counts]]]:
    """Split a charge into what it comes to in each of its steps.

    Raises:
        BudgetError: There is no share, one is below 1, or there are too many for one record.
    """
    if shares == (1,):
        return [(step, dict(counts))]
    shares = [whole(share, "a share", least=1) for share in shares]
    if not 1 <= len(shares) <= MOST_SHARES:
        raise BudgetError(f"a charge is shared by {len(shares):,} steps; it must be 1 to {MOST_SHARES}")
    of_cohorts = {cohort: split(c, shares) for cohort, c in counts.items()}
    parts = [
        {cohort: of_steps[k] for cohort, of_steps in of_cohorts.items() if of_steps[k]} for k in range(len(shares))
    ]
    # As the record has them: a step without a part is reached with those after it.
    return [(step + k, part) for k, part in enumerate(parts) if part or not k]


LOGGER = logging.getLogger(__name__)
LONGEST_RUN_ID = 1_000
"""Largest length of a run id, in bytes of UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A ledger in which a new attempt has begun.

    Attributes:
        writer: Its file, locked.
        fold: The sums of its records.
        number: Number of the next record.
        torn_bytes: Length of the torn end that was cut off.
    """

    writer: Writer
    fold: Fold
    number: int
    torn_bytes: int


def begin_attempt(path: Path, run_id: str, resumed_from: int | Literal["last"] | None) -> Opened:
    """Open a file, created if it does not exist, and begin an attempt in it.

    Args:
        resumed_from: Last update step that is not done again, ``"last"``, or None where nothing was charged.

    Raises:
        LedgerError: As in ``Ledger.open``.
    """
    try:
        length = len(run_id.encode())
    except UnicodeEncodeError:
        raise LedgerError(f"{path}: the run_id {run_id!r} is not text that UTF-8 can hold") from None
    if not 0 < length <= LONGEST_RUN_ID:
        raise LedgerError(f"{path}: a run_id must have 1 to {LONGEST_RUN_ID} bytes, not {length}")
    if resumed_from not in (None, "last"):
        resumed_from = whole(resumed_from, "resumed_from", least=0)
    try:
        writer = Writer.open(path)
        try:
            return _begin(writer, run_id, resumed_from)
        except BaseException:
            writer.abandon()
            raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({reason(error)})") from None


def _begin(writer: Writer, run_id: str, resumed_from: int | Literal["last"] | None) -> Opened:
    path = writer.path
    data = writer.read()
    before = History.decode(data, str(path))
    if before.run_id not in ("", run_id):
        raise LedgerError(f"{path}: is the ledger of run {before.run_id}, not of {run_id}")
    step = _step(before, resumed_from)
    if before.torn_bytes:
        LOGGER.warning("%s: %d bytes at its end were torn and are dropped", path, before.torn_bytes)
    number = before.records
    begun = (encode_attempt(run_id, step), encode_origin(ORIGIN_KIND, here()))
    opening = b"".join(frame(number + k, payload) for k, payload in enumerate(begun))
    writer.resume(data, whole=before.whole_bytes, synced=before.synced)
    writer.append(opening, "the attempt", sync=True)
    sync_folder(path.parent)
    _roll_back(before, step)
    return Opened(writer=writer, fold=before.fold, number=number + len(begun), torn_bytes=before.torn_bytes)


def _step(before: History, resumed_from: int | Literal["last"] | None) -> int:
    """The step that an attempt goes on after.

    Raises:
        LedgerError: None was given although there are charges, or the ledger never reached it.
    """
    last = before.last_step
    if resumed_from == "last":
        return last
    if resumed_from is None:
        if last or before.device_seconds or before.totals().paid:
            survives = bool(last or any(before.totals().canonical.values()))
            raise LedgerError(
                f"{before.where}: has charges{f' up to step {last}' if survives else ', all of them lost'}, so say "
                "where this attempt goes on: resumed_from='last' keeps them all, resumed_from=STEP what was charged up "
                "to the step of a checkpoint, resumed_from=0 nothing; the rest was paid for and becomes lost work"
            )
        return 0
    if resumed_from > last:
        raise LedgerError(
            f"{before.where}: cannot resume from step {resumed_from}, because the ledger ends at step {last}; "
            "the checkpoint and the ledger must be of one run, and a step that generates nothing must be charged "
            "as well"
        )
    return resumed_from


def _roll_back(before: History, step: int) -> None:
    """Begin an attempt in the sums, and say what becomes lost: the budget is charged with training only."""
    lost = before.totals().lost
    before.fold.begin(step)
    training = other = 0
    for cohort, counts in before.totals().lost.items():
        more = counts.rollouts - lost[cohort].rollouts
        training, other = (training + more, other) if cohort in TRAINING_COHORTS else (training, other + more)
    if training or other:
        LOGGER.log(
            logging.WARNING if training else logging.INFO,
            "%s: attempt %d goes on after step %d, so what was charged to later steps is lost work from now on: "
            "%s rollouts for training and %s of evaluations and pilots, which were paid for",
            before.where,
            len(before.resumed_from),
            step,
            f"{training:,}",
            f"{other:,}",
        )


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
        for end, many, payload in frames.read_blocks(data, where):  # noqa: B007
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
        """Charges paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return ledger_table(self.run_id, self.fold.lost(), by_attempt=True)


GROUPS = ("cohort", "phase", "step", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The charges of one or more runs.

    Attributes:
        ledger: The ``ledger`` table: the canonical attempts.
        lost_work: The columns of the ``ledger`` table and ``attempt``: paid for and lost.
        histories: The ledgers it was read from; a table that was read as such has none.
        tables: The sources that were tables, which hold no lost work.
    """

    ledger: pl.DataFrame
    lost_work: pl.DataFrame
    histories: tuple[History, ...]
    tables: tuple[str, ...]

    def by(self, group: str) -> pl.DataFrame:
        """Sum by ``cohort``, ``phase`` (training, eval, pilot), ``step`` or ``run``.

        Returns:
            The group, then for ``rollouts``, ``prompt_tokens`` and ``response_tokens`` each the canonical
            sum, ``lost_…`` and ``paid_…``. By step or run, ``eval`` and ``pilot`` rows are summed with the
            rest, since they were paid for as well.

        Raises:
            BudgetError: There is no such group.
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
    """Read ledgers and ``ledger`` tables into one account, counting nothing twice.

    Args:
        sources: Ledger files, folders of them (files that begin as a ledger does, or end in ``.ledger``),
            and tables as ``tables.read`` takes them (Parquet, CSV, ``mlflow:EXPERIMENT``, ``runs:/RUN_ID``).
            An earlier copy of a ledger next to it is left out.

    Raises:
        LedgerError: A ledger is damaged, or two ledgers of one run differ.
        TableError: A table is not what it should be, or two disagree about a charge.
    """
    import polars as pl

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
    # One frame of all runs first: checking a thousand small tables one by one takes longer than reading them.
    recorded = pl.concat([history.table() for history in histories]) if histories else pl.DataFrame()
    parts = [recorded] if not recorded.is_empty() else []
    parts += [tables.read(source, "ledger") for source in others]
    if not parts:
        raise LedgerError(f"{where}: nothing was charged yet")
    nothing = pl.DataFrame(schema={**parts[0].schema, "attempt": pl.Int64()})
    lost = pl.concat(
        [nothing, *(history.lost_work() for history in histories if len(history.resumed_from) > 1)],
        how="diagonal_relaxed",
    )
    return Account(
        ledger=tables.concat(parts, "ledger", where=where),
        lost_work=lost.sort("run_id", "step", "cohort", "attempt"),
        histories=tuple(histories),
        tables=tuple(others),
    )


def drop_copies(histories: Iterable[History]) -> list[History]:
    """Leave out copies among several ledgers, so that merging them counts nothing twice.

    Returns:
        One history per run; of a ledger and an earlier copy of it, the longer one.

    Raises:
        LedgerError: Two ledgers of one run differ.
    """
    kept: dict[str, History] = {}
    for history in histories:
        other = kept.setdefault(history.run_id, history)
        shorter, longer = sorted((other, history), key=lambda h: h.records)
        columns = [
            (shorter.resumed_from, longer.resumed_from),
            # Two runs may charge the same, and were both paid for: their attempts differ in salt.
            (shorter.origins, longer.origins),
            *zip(shorter.charges.columns(), longer.charges.columns(), strict=True),
        ]
        if not all(ours == theirs[: len(ours)] for ours, theirs in columns):
            raise LedgerError(
                f"{shorter.where} and {longer.where} are both ledgers of run {history.run_id} and differ; "
                "leave out the one that is not the run's own"
            )
        kept[history.run_id] = longer
    return list(kept.values())


def _ledger_files(source: str | Path) -> list[Path]:
    """The ledger files that a source names; none when it is a table."""
    path = Path(source)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file() and _is_ledger(file))
    if str(source).startswith(("mlflow:", "runs:/")) or path.suffix in {".parquet", ".csv"}:
        return []
    return [path]


def _is_ledger(path: Path) -> bool:
    if path.suffix == ".ledger":
        return True
    try:
        with path.open("rb") as stream:
            return frames.is_ledger(stream.read(len(frames.LINE)))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None


def run_id_of(path: Path) -> str:
    """The run of a ledger, or folder/name of the path of one that is not there yet.

    Raises:
        LedgerError: The file is not a ledger.
    """
    if path.exists() and (run_id := History.read(path).run_id):
        return run_id
    path = path.resolve()
    return f"{path.parent.name}/{path.stem}"


COUNTED = ("rollouts", "prompt_tokens", "response_tokens")
"""Columns of the ``ledger`` table that count."""


def ledger_table(run_id: str, rows: Iterable[tuple[int, ...]], *, by_attempt: bool = False) -> pl.DataFrame:
    """Sum charges up into the ``ledger`` table, sorted by its key.

    Args:
        rows: Step, index of the cohort in ``COHORTS``, attempt, rollouts, prompt tokens, response tokens.
        by_attempt: Whether attempts are kept apart, in a further column ``attempt``.

    Returns:
        The table; without rows when there are none.
    """
    import polars as pl

    from ..contract import tables

    extra = ["attempt"] if by_attempt else []
    keys = ["run_id", "step", "cohort", *extra]
    types = pl.Schema({column.name: column.dtype() for column in tables.schema("ledger").columns})
    names = ("step", "code", "attempt", *COUNTED)
    frame = pl.DataFrame(list(rows), schema=dict.fromkeys(names, pl.Int64), orient="row")
    cohorts = pl.col("code").replace_strict(range(len(COHORTS)), COHORTS, return_dtype=pl.String)
    return (
        frame.group_by("step", "code", *extra)
        .agg(pl.col(COUNTED).sum())
        .with_columns(cohorts.alias("cohort"), pl.lit(run_id).alias("run_id"))
        .sort(keys)
        .select([*types, *extra])
        .cast(types)
    )
