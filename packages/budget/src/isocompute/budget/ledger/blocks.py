"""Fast reading of a ledger's bytes: many charges at once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from zlib import crc32

from . import frames
from .frames import FRAME, NEWLINE, RECORD_FOOT, RECORD_HEAD
from .records import CHARGE, ENTRY

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
    synced = frames.read_head(data, where)
    position, count, alike, before = frames.HEAD_BYTES, 0, 0, -1
    rest = frames.payloads_after(data, where, synced, position=position, number=count)
    while True:
        if alike >= ALIKE and (block := _block(data, position, count)):
            many, entries = block
            # The next ones may be of another size than those before.
            position += many * (RECORD_HEAD.unpack_from(data, position)[0] + FRAME)
            count += many
            yield position, many, b"C" + entries
            rest = frames.payloads_after(data, where, synced, position=position, number=count)
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
