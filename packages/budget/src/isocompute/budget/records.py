r"""The bytes of a ledger: framed records, of which a torn one is told from a damaged one.

A file is the line ``isocompute ledger 1`` and then records::

    length u16 | length inverted u16 | number u32 | payload | CRC-32 u32 | newline

all little-endian; the checksum covers everything before it. A write that was cut short leaves a prefix of a
record at the end of the file, and (after a power cut) possibly zeros in place of bytes that never reached
the disk: a torn tail, which was never acknowledged. Anything else that does not fit is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from zlib import crc32

from .counts import COHORTS, Counts, Limits
from .errors import LedgerError

MAGIC = b"isocompute ledger 1\n"

HEAD = struct.Struct("<HHI")
FOOT = struct.Struct("<IB")
NEWLINE = 0x0A

# The first byte of a payload says what it is.
ATTEMPT, CHARGE, LIMIT = b"ACL"
ATTEMPTED = struct.Struct("<Bq")
LIMITED = struct.Struct("<Bqq")
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


def charge(step: int, counts: Mapping[str, Counts]) -> bytes:
    """Payload that charges a step, one record whatever the number of cohorts."""
    entries = (
        ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens) for cohort, c in counts.items()
    )
    return bytes((CHARGE,)) + b"".join(entries)


def limit(limits: Limits) -> bytes:
    """Payload that notes the limits in force from here on."""
    return LIMITED.pack(LIMIT, limits.rollouts or 0, limits.response_tokens or 0)


def limit_in(payload: bytes) -> Limits:
    """The limits that a payload notes."""
    _, rollouts, response_tokens = LIMITED.unpack(payload)
    return Limits(rollouts=rollouts or None, response_tokens=response_tokens or None)


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
    position = len(MAGIC)
    number = 0
    size = len(data)
    while position + HEAD.size <= size:
        length, inverted, found = HEAD.unpack_from(data, position)
        if length ^ inverted != 0xFFFF:
            raise _damaged(where, number, position)
        checked = position + HEAD.size + length
        end = checked + FOOT.size
        if end > size:
            return
        checksum, newline = FOOT.unpack_from(data, checked)
        if checksum != crc32(data[position:checked]) or newline != NEWLINE:
            raise _damaged(where, number, position)
        if found != number:
            problem = "is there twice" if found < number else "comes too early: records are missing before it"
            raise LedgerError(
                f"{where}: record {found} {problem} (at byte {position}, where record {number} belongs); "
                "restore the file from a copy"
            )
        yield end, data[position + HEAD.size : checked]
        position = end
        number += 1


def _damaged(where: str, number: int, position: int) -> LedgerError:
    return LedgerError(
        f"{where}: record {number} at byte {position} is damaged (its checksum does not match; the "
        f"{number} records before it are whole); restore the file from a copy"
    )
