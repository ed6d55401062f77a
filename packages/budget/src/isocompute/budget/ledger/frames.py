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

What the payloads mean, and which of them a reader may leave out, is in ``records``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32

from ..errors import LedgerError

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
    """Whether a file that begins with these bytes is a ledger."""
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
