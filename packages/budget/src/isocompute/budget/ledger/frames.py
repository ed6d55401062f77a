r"""The bytes of a ledger: a head and framed records, in which a torn end is distinguished from damage.

A file is::

    head     isocompute ledger 2\n | synced u64 | synced inverted u64 | newline
    record   length u16 | length inverted u16 | number u32 | payload | CRC-32 u32 | newline
    record   ...

all little-endian; a record's checksum covers everything before it in the record. ``synced`` is the watermark: the
number of bytes of the file that are known to be on the disk. The writer updates it after each sync.

Before the watermark, whatever is not a whole record is damage, since those bytes were acknowledged as safe, and so is
a file that ends earlier. After the watermark it is a torn end of any length and content: a write that was cut short,
or (after a power cut) blocks that never reached the disk. A whole record with a wrong number is damage everywhere,
since no torn write produces one.

The first byte of a payload is its kind: an attempt that begins (A), a charge (C), a charge that took device time
(T), a step that generated nothing (E, since version 2), the step after which an attempt ended (S), or limits in force
from there on (L, or M with device time and money), and, since they change no sum, in lower case: when and where the
attempt before it began (a). Numbers are little-endian.

A kind in upper case is critical: a reader that does not know it refuses the ledger, since its sums would be wrong. One
in lower case is ancillary: a reader that does not know it leaves the record out. So a new kind of record needs no new
version of the format; the version in the file's first line changes with the framing or with the meaning of a kind.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zlib import crc32

from ..errors import LedgerError
from .counts import COHORTS, Counts
from .fold import CODES
from .limits import Limits

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
"""Where schedulers say which job a process belongs to."""

TEXT_BYTES = 64
"""Largest length of a name, in bytes of UTF-8: that of a host name on Linux. Longer ones are cut."""

# Kind, seconds since 1970, salt, host, job: of one size everywhere.
ORIGIN_LAYOUT = struct.Struct(f"<Bq8s{TEXT_BYTES}s{TEXT_BYTES}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """When and where an attempt began. It is shown, and enters no count and no ``ledger`` table.

    Attributes:
        began: In UTC, to the second.
        host: Name of the machine.
        job: The scheduler's name of the job; None without a scheduler.
        salt: Random, so that two runs that charge the same are not taken for copies of each other.
    """

    began: datetime
    host: str
    job: str | None
    salt: bytes


def here() -> Origin:
    """The origin of an attempt that begins now, in this process."""
    job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)
    return Origin(
        began=datetime.now(UTC).replace(microsecond=0),
        host=_cut(socket.gethostname()).decode(),
        job=None if job is None else _cut(job).decode(),
        salt=secrets.token_bytes(8),
    )


def encode_origin(kind: int, origin: Origin) -> bytes:
    """Payload that says when and where an attempt began."""
    seconds = int(origin.began.timestamp())
    return ORIGIN_LAYOUT.pack(kind, seconds, origin.salt, _cut(origin.host), _cut(origin.job or ""))


def decode_origin(payload: bytes) -> Origin:
    """Read such a payload; what a later version adds to it is left out.

    Raises:
        ValueError: It is cut short, or its time is none.
    """
    try:
        _, seconds, salt, host, job = ORIGIN_LAYOUT.unpack_from(payload)
        began = datetime.fromtimestamp(seconds, UTC)
    except (struct.error, OverflowError, OSError) as error:
        raise ValueError(f"it does not say when an attempt began ({error})") from None
    host, job = (text.rstrip(b"\0").decode(errors="replace") for text in (host, job))
    return Origin(began=began, host=host, job=job or None, salt=salt)


def _cut(text: str) -> bytes:
    """At most so many bytes of a text, without a part of a character."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore").encode()


ATTEMPT, CHARGE, TIMED_CHARGE, EMPTY, ENDED, LIMIT, TIMED_LIMIT = b"ACTESLM"
ORIGIN_KIND = ord("a")
ANCILLARY = range(ord("a"), ord("z") + 1)
ATTEMPTED = struct.Struct("<Bq")
STEP = struct.Struct("<Bq")
LIMITED = struct.Struct("<Bqq")
# Step and device-seconds, before the entries of a charge that took device time.
TIMED = struct.Struct("<Bqd")
# Rollouts, response tokens, device-seconds, money, price of a device-hour; 0 is none.
TIME_LIMITED = struct.Struct("<Bqqddd")
# After limits that count what is paid; those without it count what is used.
PAID = b"P"
# Step, cohort, rollouts, prompt tokens, response tokens: as many as there are cohorts in the charge.
ENTRY = struct.Struct("<5q")


def encode_attempt(run_id: str, resumed_from: int) -> bytes:
    """Payload that opens an attempt at a run.

    Args:
        resumed_from: The last step that the attempt takes over; 0 for none.
    """
    return ATTEMPTED.pack(ATTEMPT, resumed_from) + run_id.encode()


def decode_attempt(payload: bytes) -> tuple[str, int]:
    """The run and the step resumed from, of a payload that opens an attempt."""
    # A run id was checked when it was written; another program's may be anything.
    return payload[ATTEMPTED.size :].decode(errors="replace"), ATTEMPTED.unpack_from(payload)[1]


def encode_charge(step: int, counts: Mapping[str, Counts], device_seconds: float = 0.0) -> bytes:
    """Payload that charges a step: one record for any number of cohorts.

    Args:
        counts: Counts by cohort; none records that the step was reached.
        device_seconds: Seconds times devices held.
    """
    if not counts and not device_seconds:
        return STEP.pack(EMPTY, step)
    head = TIMED.pack(TIMED_CHARGE, step, device_seconds) if device_seconds else b"C"
    if len(counts) == 1:
        ((cohort, c),) = counts.items()
        return head + ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens)
    return head + b"".join(
        ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens) for cohort, c in counts.items()
    )


def encode_charges(charged: Sequence[tuple[int, Mapping[str, Counts]]], device_seconds: float = 0.0) -> bytes:
    """Payload that charges several steps at once: whole or not at all.

    Args:
        charged: Of each step, counts by cohort. The first one takes the device time.
    """
    (step, counts), *later = charged
    payload = encode_charge(step, counts, device_seconds)
    entries = b"".join(encode_charge(after, c)[1:] for after, c in later if c)
    # A first step that generated nothing is reached with the later ones.
    return (b"C" if payload[0] == EMPTY and entries else payload) + entries


def encode_end(step: int) -> bytes:
    """Payload that says after which step an attempt ended."""
    return STEP.pack(ENDED, step)


def decode_entries(payload: bytes) -> bytes:
    """The entries of a charge's payload, as ``entry_columns`` takes them.

    Raises:
        ValueError: The last one is cut short.
    """
    entries = payload[TIMED.size if payload[0] == TIMED_CHARGE else 1 :]
    if len(entries) % ENTRY.size:
        raise ValueError("an entry is cut short")
    return entries


def entry_columns(entries: bytes) -> tuple[array[int], ...]:
    """Step, cohort's index in ``COHORTS``, rollouts, prompt tokens and response tokens of some entries.

    Raises:
        ValueError: There is no such cohort, or a number is negative.
    """
    values = array("q", entries)
    if sys.byteorder == "big":
        values.byteswap()
    columns = tuple(values[i::5] for i in range(5))
    # The highest byte of each number, less those of numbers of at least 0.
    if entries[7::8].translate(None, bytes(range(128))) or max(columns[1], default=0) >= len(COHORTS):
        raise ValueError("an entry has no cohort that this version knows, or is negative")
    return columns


def decode_step(payload: bytes) -> int:
    """The step of a payload that holds nothing else."""
    return int(STEP.unpack(payload)[1])


def decode_time(payload: bytes) -> tuple[int, float]:
    """The step and the device-seconds of a payload that charges device time."""
    _, step, device_seconds = TIMED.unpack_from(payload)
    return step, device_seconds


def encode_limits(limits: Limits) -> bytes:
    """Payload that records the limits in force from there on."""
    counted = (limits.rollouts or 0, limits.response_tokens or 0)
    timed = (limits.device_seconds or 0.0, limits.money or 0.0, limits.price_per_device_hour or 0.0)
    counts = PAID if limits.counted == "paid" else b""
    if any(timed):
        return TIME_LIMITED.pack(TIMED_LIMIT, *counted, *timed) + counts
    return LIMITED.pack(LIMIT, *counted) + counts


def decode_limits(payload: bytes) -> Limits:
    """The limits that a payload records."""
    size = (TIME_LIMITED if payload[0] == TIMED_LIMIT else LIMITED).size
    payload, counts = payload[:size], payload[size:]
    if counts not in (PAID, b""):
        raise ValueError(f"the limits count {counts!r}")
    if payload[0] == TIMED_LIMIT:
        _, rollouts, response_tokens, device_seconds, money, price = TIME_LIMITED.unpack(payload)
    else:
        (_, rollouts, response_tokens), device_seconds, money, price = LIMITED.unpack(payload), 0.0, 0.0, 0.0
    return Limits(
        rollouts=rollouts or None,
        response_tokens=response_tokens or None,
        device_seconds=device_seconds or None,
        money=money or None,
        price_per_device_hour=price or None,
        counted="paid" if counts else "used",
    )


LINE = b"isocompute ledger 2\n"
"""The first line, with the version of the format."""

WATERMARK = struct.Struct("<QQB")
WATERMARK_AT = len(LINE)
HEAD_BYTES = len(LINE) + WATERMARK.size

RECORD_HEAD = struct.Struct("<HHI")  # 8 bytes
RECORD_FOOT = struct.Struct("<IB")  # 5 bytes
FRAME = RECORD_HEAD.size + RECORD_FOOT.size
NEWLINE = 0x0A

ADVICE = "save what is whole with 'isocompute-budget show --repair', or restore the file from a copy"


def head(synced: int = 0) -> bytes:
    """The head of a file of which the first ``synced`` bytes are on the disk."""
    return LINE + encode_watermark(synced)


def encode_watermark(synced: int) -> bytes:
    """The bytes at ``WATERMARK_AT`` when the first ``synced`` bytes of the file are on the disk."""
    return WATERMARK.pack(synced, synced ^ 0xFFFFFFFFFFFFFFFF, NEWLINE)


def frame(number: int, payload: bytes) -> bytes:
    """One record, ready to be appended as record ``number`` (counted from 0).

    Args:
        payload: Its content, at most 65,535 bytes.
    """
    body = RECORD_HEAD.pack(len(payload), len(payload) ^ 0xFFFF, number) + payload
    return body + RECORD_FOOT.pack(crc32(body), NEWLINE)


def is_ledger(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is a ledger."""
    return data.startswith(LINE)


def read_head(data: bytes, where: str) -> int:
    """Read the watermark in the head of a ledger.

    Raises:
        LedgerError: The bytes are not a ledger's, or the watermark is damaged or beyond the end.
    """
    if not data:
        raise LedgerError(
            f"{where}: is empty, which a ledger never is: what it held is gone; restore it from a copy, or remove it "
            "to begin a new one"
        )
    if not is_ledger(data):
        line = LINE.decode().strip()
        raise LedgerError(f"{where}: not a ledger that this version reads (it does not begin with {line!r})")
    synced = read_watermark(data)
    if synced is None:
        raise LedgerError(f"{where}: the watermark at byte {WATERMARK_AT} is damaged; {ADVICE}")
    if len(data) < synced:
        raise LedgerError(
            f"{where}: ends at byte {len(data)}, but {synced} bytes of it were on the disk; the rest of it was "
            f"acknowledged and is missing; {ADVICE}"
        )
    return synced


def read_watermark(data: bytes) -> int | None:
    """The watermark of a file; None when it is damaged, or just being written."""
    if len(data) < HEAD_BYTES:
        return None
    synced, inverted, newline = WATERMARK.unpack_from(data, WATERMARK_AT)
    return synced if synced ^ inverted == 0xFFFFFFFFFFFFFFFF and newline == NEWLINE else None


def record_at(data: bytes, position: int) -> tuple[int, int, bytes] | None:
    """Read the record at a position.

    Args:
        position: Offset at which the record begins.

    Returns:
        The offset after it, its number and its payload; None when no whole record begins there.
    """
    if position + FRAME > len(data):
        return None
    length, inverted, number = RECORD_HEAD.unpack_from(data, position)
    checked = position + RECORD_HEAD.size + length
    end = checked + RECORD_FOOT.size
    if length ^ inverted != 0xFFFF or end > len(data):
        return None
    checksum, newline = RECORD_FOOT.unpack_from(data, checked)
    if newline != NEWLINE or checksum != crc32(data[position:checked]):
        return None
    return end, number, data[position + RECORD_HEAD.size : checked]


def payloads(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """Take a ledger's bytes apart.

    Yields:
        The offset after each whole record, and its payload; a torn end is left out.

    Raises:
        LedgerError: The bytes are not a ledger's, or a record is damaged, missing or repeated.
    """
    synced = read_head(data, where)
    yield from payloads_after(data, where, synced, position=HEAD_BYTES, number=0)


def payloads_after(data: bytes, where: str, synced: int, *, position: int, number: int) -> Iterator[tuple[int, bytes]]:
    """As ``payloads``, from record ``number`` at ``position`` on.

    Args:
        synced: The watermark.
        position: Offset of the first record to be read.

    Yields:
        The offset after each whole record, and its payload; a torn end is left out.

    Raises:
        LedgerError: A record is damaged, missing or repeated.
    """
    while position < len(data):
        record = record_at(data, position)
        if record is None:
            if position >= synced:
                return
            raise LedgerError(
                f"{where}: record {number} at byte {position} is damaged (its checksum does not match; the "
                f"{number} records before it are whole); {ADVICE}"
            )
        end, numbered, payload = record
        if numbered != number:
            problem = "occurs twice" if numbered < number else "comes too early: records are missing before it"
            raise LedgerError(
                f"{where}: record {numbered} {problem} (at byte {position}, where record {number} belongs); {ADVICE}"
            )
        yield end, payload
        position = end
        number += 1


# Consecutive charges of one size after which a block is tried, and the largest number of charges in a block.
ALIKE = 16
TOGETHER = 65_536


def read_blocks(data: bytes, where: str) -> Iterator[tuple[int, int, bytes]]:
    """Read a ledger's records as ``frames.payloads`` does, but many charges of one size at once where possible.

    Yields:
        The offset after the last of some records, their number, and their payload; for several charges, the payload
        of one charge with the entries of all of them.

    Raises:
        LedgerError: As in ``frames.payloads``.
    """
    synced = read_head(data, where)
    position, count, alike, before = HEAD_BYTES, 0, 0, -1
    rest = payloads_after(data, where, synced, position=position, number=count)
    while True:
        if alike >= ALIKE and (block := _block(data, position, count)):
            many, entries = block
            # The next ones may be of another size than those before.
            position += many * (RECORD_HEAD.unpack_from(data, position)[0] + FRAME)
            count += many
            yield position, many, b"C" + entries
            rest = payloads_after(data, where, synced, position=position, number=count)
            alike = 0
            continue
        try:
            position, payload = next(rest)
        except StopIteration:
            return
        count += 1
        alike = alike + 1 if len(payload) == before and payload[:1] == b"C" else 0
        before = len(payload)
        yield position, 1, payload


def _block(data: bytes, position: int, number: int) -> tuple[int, bytes] | None:
    """The number of whole charges of one size that follow, and their entries; None when records must be read singly.

    Byte k of every record is a slice with the record's size as its step, so that everything but the checksums is
    compared and copied without a loop over records.
    """
    if position + RECORD_HEAD.size > len(data):
        return None
    length = RECORD_HEAD.unpack_from(data, position)[0]
    record = length + FRAME
    many = min(TOGETHER, (len(data) - position) // record)
    block = data[position : position + many * record]
    if len(block) < record:
        return None
    for offset in (0, 1, 2, 3, RECORD_HEAD.size, record - 1):
        column = block[offset::record]
        many = min(many, len(column) - len(column.lstrip(column[:1])))
    if many < ALIKE or block[RECORD_HEAD.size] != CHARGE or block[record - 1] != NEWLINE or length % ENTRY.size != 1:
        return None
    if length ^ RECORD_HEAD.unpack_from(block)[1] != 0xFFFF:
        return None
    block = block[: many * record]
    if _columns(block, RECORD_HEAD.size - 4, 4, record) != _little_endian("I", range(number, number + many)):
        return None
    checked = record - RECORD_FOOT.size
    sums = [crc32(block[begin : begin + checked]) for begin in range(0, len(block), record)]
    if _columns(block, checked, 4, record) != _little_endian("I", sums):
        return None
    return many, _columns(block, RECORD_HEAD.size + 1, length - 1, record)


def _columns(block: bytes, begin: int, width: int, record: int) -> bytes:
    """Bytes ``begin`` to ``begin + width`` of every record, one record after another."""
    out = bytearray(len(block) // record * width)
    for k in range(width):
        out[k::width] = block[begin + k :: record]
    return bytes(out)


def _little_endian(code: str, values: Iterable[int]) -> bytes:
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
