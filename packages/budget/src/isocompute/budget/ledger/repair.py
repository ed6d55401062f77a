"""Saving what is whole of a damaged ledger, and naming what is not."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import LedgerError
from . import frames
from .counts import COHORTS, Counts
from .ledger import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A part of a damaged ledger that is not in the saved one.

    Attributes:
        begin: Offset of its first byte.
        end: Offset after its last byte.
        number: Number of the record, if it can be read; it may be wrong.
        reason: Why it was dropped.
        charges: Charges that can still be read in it, as step, cohort and counts. They may be wrong.
    """

    begin: int
    end: int
    number: int | None
    reason: str
    charges: tuple[tuple[int, str, Counts], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The whole part of a damaged ledger, and what is not in it.

    Attributes:
        content: A whole ledger of the current version.
        history: The same ledger, read.
        problem: What was wrong with the damaged ledger.
        dropped: Its parts that are not in the saved ledger, in order.
        missing: Ranges of record numbers that are not in the saved ledger, first and last.
        notes: Further remarks for the user.
    """

    content: bytes
    history: History
    problem: str
    dropped: tuple[Dropped, ...]
    missing: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A whole record, wherever it stands."""

    begin: int
    end: int
    number: int
    payload: bytes


def salvage(data: bytes, where: str, *, run_id: str | None = None) -> Salvage:
    """Save every whole record of a damaged ledger, in the order of their numbers.

    Of a record that occurs twice, one copy is kept; of two different records with one number, both, since either may
    have been paid for.

    Args:
        run_id: The run, for a ledger in which no record names it any more.

    Raises:
        LedgerError: It is whole, nothing of it can be saved, or it holds records of several runs.
    """
    problem = _problem(data, where)
    records = list(_whole_records(data))
    if not records:
        raise LedgerError(f"{where}: holds no whole record, so nothing can be saved")
    kept, dropped, notes = _sort_records(records)
    payloads = [record.payload for record in kept]
    run = _run_id(payloads, where, run_id)
    if payloads[0][:1] != b"A":
        payloads.insert(0, frames.encode_attempt(run, 0))
        notes.append(
            "the record that began the first attempt is lost: what follows is counted as an attempt from step 0"
        )
    dropped += _damaged_parts(data, records)
    missing = _missing_numbers([record.number for record in kept])
    seem_to_charge = {part.number for part in dropped if part.charges}
    if any(number not in seem_to_charge for first, last in missing for number in range(first, last + 1)):
        notes.append(
            "a missing record may have begun an attempt: what that made lost work of is then counted as canonical, "
            "and the budget used looks larger than it was"
        )
    body = b"".join(frames.frame(number, payload) for number, payload in enumerate(payloads))
    content = frames.head(frames.HEAD_BYTES + len(body)) + body
    return Salvage(
        content=content,
        history=History.decode(content, where),
        problem=problem,
        dropped=tuple(sorted(dropped, key=lambda part: part.begin)),
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _problem(data: bytes, where: str) -> str:
    """Say what is wrong with a ledger.

    Raises:
        LedgerError: Nothing is.
    """
    try:
        torn = History.decode(data, where).torn_bytes
    except LedgerError as error:
        return str(error).removeprefix(f"{where}: ").removesuffix(f"; {frames.ADVICE}")
    if not torn:
        raise LedgerError(f"{where}: is whole, so there is nothing to repair")
    return f"{torn} bytes at its end are torn"


def _run_id(payloads: Sequence[bytes], where: str, run_id: str | None) -> str:
    """The run that the records are of.

    Raises:
        LedgerError: There are several, another one was given, or none is known.
    """
    runs = sorted({frames.decode_attempt(payload)[0] for payload in payloads if payload[:1] == b"A"})
    if len(runs) > 1:
        raise LedgerError(f"{where}: holds records of the runs {' and '.join(runs)}, which do not make one ledger")
    if runs and run_id not in (None, runs[0]):
        raise LedgerError(f"{where}: is the ledger of run {runs[0]}, not of {run_id}")
    if not runs and run_id is None:
        raise LedgerError(f"{where}: no whole record names the run; give it with --run-id")
    return runs[0] if runs else str(run_id)


def _whole_records(data: bytes) -> Iterator[_Record]:
    """Every whole record, in the order of the file."""
    position = _first_offset(data)
    # A record begins with two bytes and their inverse: where a byte and the next but one make 0xFF, twice.
    size = max(0, len(data) - 2)
    inverse = (int.from_bytes(data[:-2]) ^ int.from_bytes(data[2:])).to_bytes(size)
    while (position := inverse.find(b"\xff\xff", position)) >= 0:
        record = frames.record_at(data, position)
        if record is None:
            position += 1
            continue
        end, number, payload = record
        yield _Record(begin=position, end=end, number=number, payload=payload)
        position = end


def _first_offset(data: bytes) -> int:
    """Offset of the first record, or 0 when the head does not say."""
    return frames.HEAD_BYTES if frames.is_ledger(data) else 0


def _sort_records(records: Sequence[_Record]) -> tuple[list[_Record], list[Dropped], list[str]]:
    """The records in the order of their numbers, the repeated ones, and remarks on these."""
    kept: list[_Record] = []
    dropped, notes = [], []
    for record in sorted(records, key=lambda record: record.number):
        before = kept[-1] if kept and kept[-1].number == record.number else None
        if before is not None and before.payload == record.payload:
            dropped.append(_dropped_part(record.begin, record.end, record.number, "it occurs twice", record.payload))
            continue
        if before is not None:
            notes.append(
                f"record {record.number} occurs twice with different content: both are kept, since either may have "
                "been paid for"
            )
        kept.append(record)
    return kept, dropped, notes


def _missing_numbers(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of the numbers left out."""
    return [(a + 1, b - 1) for a, b in zip([-1, *numbers], numbers, strict=False) if b - a > 1]


def _damaged_parts(data: bytes, records: Sequence[_Record]) -> Iterator[Dropped]:
    """Everything that is not a whole record, read as far as possible."""
    synced = frames.read_watermark(data) if frames.is_ledger(data) else None
    begins = [_first_offset(data), *(record.end for record in records)]
    ends = [*(record.begin for record in records), len(data)]
    for begin, end in zip(begins, ends, strict=True):
        position = begin
        while position + frames.FRAME <= end:
            length, inverted, number = frames.RECORD_HEAD.unpack_from(data, position)
            stop = position + length + frames.FRAME
            if length ^ inverted != 0xFFFF or stop > end:
                break
            payload = data[position + frames.RECORD_HEAD.size : stop - frames.RECORD_FOOT.size]
            yield _dropped_part(position, stop, number, "its checksum does not match", payload)
            position = stop
        if position < end:
            payload = data[position + frames.RECORD_HEAD.size : end - frames.RECORD_FOOT.size]
            reason = "it is not a whole record" if data[position:end].strip(b"\0") else "it is all zeros"
            if synced is not None and position >= synced:
                reason += ", and was never synced"
            yield _dropped_part(position, end, None, reason, payload)


def _dropped_part(begin: int, end: int, number: int | None, reason: str, payload: bytes) -> Dropped:
    charges: list[tuple[int, str, Counts]] = []
    if payload[:1] in (b"C", b"T"):
        try:
            for step, code, *counted in zip(*frames.entry_columns(frames.decode_entries(payload)), strict=True):
                counts = dict(zip(("rollouts", "prompt_tokens", "response_tokens"), counted, strict=True))
                charges.append((step, COHORTS[code], Counts(**counts)))
        except (struct.error, ValueError):
            charges = []
    return Dropped(begin=begin, end=end, number=number, reason=reason, charges=tuple(charges))
