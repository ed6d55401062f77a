"""Opening a ledger for writing: what earlier attempts left is read, cut to its whole part, and taken over."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..checks import whole
from ..errors import LedgerError
from ..wording import reason
from . import frames, records
from .attempts import encode_origin, here
from .counts import TRAINING_COHORTS
from .fold import Fold
from .handles import sync_folder
from .history import History
from .writer import Writer

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
    begun = (records.encode_attempt(run_id, step), encode_origin(records.ORIGIN, here()))
    opening = b"".join(frames.frame(number + k, payload) for k, payload in enumerate(begun))
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
            before.where, len(before.resumed_from), step, f"{training:,}", f"{other:,}",
        )  # fmt: skip
