"""Opening a ledger for writing: what earlier attempts left is read, cut to its whole part, and taken over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checks import whole
from ..errors import LedgerError
from ..wording import reason
from . import frames, records
from .fold import Fold
from .history import History
from .writer import Writer, sync_folder

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


def begin_attempt(path: Path, run_id: str, resumed_from: int) -> Opened:
    """Open a file, created if it does not exist, and begin an attempt in it.

    Args:
        path: The file.
        run_id: The run.
        resumed_from: Last update step that is not done again.

    Raises:
        LedgerError: As in ``Ledger.open``.
    """
    try:
        length = len(run_id.encode())
    except UnicodeEncodeError:
        raise LedgerError(f"{path}: the run_id {run_id!r} is not text that UTF-8 can hold") from None
    if not 0 < length <= LONGEST_RUN_ID:
        raise LedgerError(f"{path}: a run_id must have 1 to {LONGEST_RUN_ID} bytes, not {length}")
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


def _begin(writer: Writer, run_id: str, resumed_from: int) -> Opened:
    path = writer.path
    data = writer.read()
    before = History.decode(data, str(path))
    if before.run_id not in ("", run_id):
        raise LedgerError(f"{path}: is the ledger of run {before.run_id}, not of {run_id}")
    if resumed_from > (last := before.last_step):
        raise LedgerError(
            f"{path}: cannot resume from step {resumed_from}, because the ledger ends at step {last}; "
            "the checkpoint and the ledger must be of one run, and a step that generates nothing must be charged "
            "as well"
        )
    if before.torn_bytes:
        import logging

        logging.getLogger(__name__).warning(
            "%s: %d bytes at its end were torn and are dropped", path, before.torn_bytes
        )
    opening = records.encode_attempt(run_id, resumed_from)
    if before.head.version == frames.VERSION:
        writer.resume(data, whole=before.whole_bytes, synced=before.head.synced or 0)
        writer.append(frames.frame(before.records, opening), "the attempt", sync=True)
    else:
        writer.renew(data[before.head.size : before.whole_bytes] + frames.frame(before.records, opening))
    sync_folder(path.parent)
    before.fold.begin(resumed_from)
    return Opened(writer=writer, fold=before.fold, number=before.records + 1, torn_bytes=before.torn_bytes)
