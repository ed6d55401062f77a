r"""The bytes of a ledger: framed records, of which a torn one is told from a damaged one.

A file is the line ``isocompute ledger 1`` and then records::

    length u16 | length inverted u16 | number u32 | payload | CRC-32 u32 | newline

all little-endian; the checksum covers everything before it. A write that was cut short leaves a prefix of a
record at the end of the file, and (after a power cut) possibly zeros in place of bytes that never reached
the disk: a torn tail, which was never acknowledged. Anything else that does not fit is damage.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from zlib import crc32

from .counts import COHORTS, Counts, Limits
from .errors import LedgerError

MAGIC = b"isocompute ledger 1\n"

HEAD = struct.Struct("<HHI")  # 8 bytes
FOOT = struct.Struct("<IB")  # 5 bytes
NEWLINE = 0x0A

# The first byte of a payload says what it is.
ATTEMPT, CHARGE, LIMIT, TIMED_CHARGE, TIMED_LIMIT = b"ACLTM"
ATTEMPTED = struct.Struct("<Bq")
LIMITED = struct.Struct("<Bqq")
# Step and device-seconds, before the entries of a charge that took device time.
TIMED = struct.Struct("<Bqd")
# Rollouts, response tokens, device-seconds, money, price of a device-hour; 0 is none.
TIME_LIMITED = struct.Struct("<Bqqddd")
# Step, cohort, rollouts, prompt tokens, response tokens: as many as there are cohorts in the charge.
ENTRY = struct.Struct("<5q")

CODES = {cohort: code for code, cohort in enumerate(COHORTS)}


def framed(number: int, payload: bytes) -> bytes:
    """One record, ready to be appended as record ``number`` (counted from 0)."""
    body = HEAD.pack(len(payload), len(payload) ^ 0xFFFF, number) + payload
    return body + FOOT.pack(crc32(body), NEWLINE)


def attempt(run_id: str, resumed_from: int) -> bytes:
    """Payload that opens an attempt at a run."""
    return ATTEMPTED.pack(ATTEMPT, resumed_from) + run_id.encode()


def attempt_in(payload: bytes) -> tuple[str, int]:
    """The run and the step resumed from, of a payload that opens an attempt."""
    return payload[ATTEMPTED.size :].decode(), ATTEMPTED.unpack_from(payload)[1]


def charge(step: int, counts: Mapping[str, Counts], device_seconds: float = 0.0) -> bytes:
    """Payload that charges a step, one record whatever the number of cohorts."""
    head = TIMED.pack(TIMED_CHARGE, step, device_seconds) if device_seconds else b"C"
    if len(counts) == 1:
        ((cohort, c),) = counts.items()
        return head + ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens)
    return head + b"".join(
        ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens) for cohort, c in counts.items()
    )


def time_in(payload: bytes) -> tuple[int, float]:
    """The step and the device-seconds of a payload that charges device time."""
    _, step, device_seconds = TIMED.unpack_from(payload)
    return step, device_seconds


def limit(limits: Limits) -> bytes:
    """Payload that notes the limits in force from here on."""
    counted = (limits.rollouts or 0, limits.response_tokens or 0)
    timed = (limits.device_seconds or 0.0, limits.money or 0.0, limits.price_per_device_hour or 0.0)
    if any(timed):
        return TIME_LIMITED.pack(TIMED_LIMIT, *counted, *timed)
    return LIMITED.pack(LIMIT, *counted)


def limit_in(payload: bytes) -> Limits:
    """The limits that a payload notes."""
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
    )


def payloads(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """Take a ledger's bytes apart.

    Args:
        data: The file's content.
        where: The file, for error messages.

    Yields:
        The offset after each whole record, and its payload; a torn tail is left out.

    Raises:
        LedgerError: The bytes are not a ledger's, or a record is damaged, missing or there twice.
    """
    # Every whole record ends in a newline, so trailing zeros can only be bytes that were never written.
    data = data.rstrip(b"\0")
    if len(data) < len(MAGIC) and MAGIC.startswith(data):
        return
    if not data.startswith(MAGIC):
        raise LedgerError(
            f"{where}: not a ledger that this version reads (it does not begin with {MAGIC.decode().strip()!r})"
        )
    yield from _payloads(data, where, len(MAGIC), 0)


def _payloads(data: bytes, where: str, position: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Take apart what follows record ``number`` at ``position``."""
    size = len(data)
    # A million records are taken apart here, so what the loop needs is looked up once.
    head, foot, checksum_of = HEAD.unpack_from, FOOT.unpack_from, crc32
    while position + 8 <= size:
        length, inverted, found = head(data, position)
        if length ^ inverted != 0xFFFF:
            raise _damaged(where, number, position)
        checked = position + 8 + length
        end = checked + 5
        if end > size:
            return
        checksum, newline = foot(data, checked)
        if checksum != checksum_of(data[position:checked]) or newline != NEWLINE:
            raise _damaged(where, number, position)
        if found != number:
            problem = "is there twice" if found < number else "comes too early: records are missing before it"
            raise LedgerError(
                f"{where}: record {found} {problem} (at byte {position}, where record {number} belongs); "
                "restore the file from a copy"
            )
        yield end, data[position + 8 : checked]
        position = end
        number += 1


def runs(data: bytes, where: str) -> Iterator[tuple[int, int, bytes]]:
    """Take a ledger's bytes apart as ``payloads`` does, many charges of one size at once where there are.

    Yields:
        The offset after the last of some records, how many they are, and their payload; of several charges, what
        one charge with the entries of all of them would have.

    Raises:
        LedgerError: As in ``payloads``.
    """
    position, count, alike, before = len(MAGIC), 0, 0, -1
    size = len(data.rstrip(b"\0"))
    data = data[:size]
    rest = payloads(data, where)
    while True:
        if alike >= ALIKE and (found := _charges(data, position, count, size)):
            many, entries = found
            # The next ones may be of another size than those before.
            position += many * (HEAD.unpack_from(data, position)[0] + FRAME)
            count += many
            yield position, many, b"C" + entries
            rest = _payloads(data, where, position, count)
            alike = 0
            continue
        try:
            position, payload = next(rest)
        except StopIteration:
            return
        count += 1
        alike = alike + 1 if len(payload) == before and payload[0] == CHARGE else 0
        before = len(payload)
        yield position, 1, payload


# Bytes of a record beside its payload; charges of one size in a row that make it worth a look for more, and how
# many are looked at together.
FRAME = HEAD.size + FOOT.size
ALIKE = 16
TOGETHER = 65_536


def _charges(data: bytes, position: int, number: int, size: int) -> tuple[int, bytes] | None:
    """How many whole charges of one size follow, and their entries; None when it takes a closer look.

    Byte k of every record is a slice with the record's size as its step, so that everything but the checksums is
    compared and copied without a loop over records.
    """
    if position + HEAD.size > size:
        return None
    length = HEAD.unpack_from(data, position)[0]
    record = length + FRAME
    many = min(TOGETHER, (size - position) // record)
    block = data[position : position + many * record]
    if len(block) < record:
        return None
    for offset in (0, 1, 2, 3, HEAD.size, record - 1):
        column = block[offset::record]
        many = min(many, len(column) - len(column.lstrip(column[:1])))
    if many < ALIKE or block[HEAD.size] != CHARGE or block[record - 1] != NEWLINE or length % ENTRY.size != 1:
        return None
    if length ^ HEAD.unpack_from(block)[1] != 0xFFFF:
        return None
    block = block[: many * record]
    if _columns(block, HEAD.size - 4, 4, record) != _little("I", range(number, number + many)):
        return None
    checked = record - FOOT.size
    sums = [crc32(block[begin : begin + checked]) for begin in range(0, len(block), record)]
    if _columns(block, checked, 4, record) != _little("I", sums):
        return None
    return many, _columns(block, HEAD.size + 1, length - 1, record)


def _columns(block: bytes, begin: int, width: int, record: int) -> bytes:
    """Bytes ``begin`` to ``begin + width`` of every record, one record after another."""
    out = bytearray(len(block) // record * width)
    for k in range(width):
        out[k::width] = block[begin + k :: record]
    return bytes(out)


def _little(code: str, values: Iterable[int]) -> bytes:
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _damaged(where: str, number: int, position: int) -> LedgerError:
    return LedgerError(
        f"{where}: record {number} at byte {position} is damaged (its checksum does not match; the "
        f"{number} records before it are whole); restore the file from a copy"
    )
