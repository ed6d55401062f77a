"""W&B's file of a run, ``run-ID.wandb``, which it writes offline and online.

It is a LevelDB log: blocks of 32 KiB, and records in fragments, each with a checksum (of CRC-32, where LevelDB has
CRC-32C), a length and a kind. A record is a ``Record`` of protocol buffers.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checks import reason
from ...errors import BudgetError, DamagedLogError
from .files import content
from .log import Log, LogLayout, Row, flat, join, metrics_of, step_columns, step_of
from .tensorboard import Message

MAGIC = b":W&B"
BLOCK, HEADER = 32_768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
FOLLOWS = {None: (FULL, FIRST), FIRST: (MIDDLE, LAST), MIDDLE: (MIDDLE, LAST)}
"""Kinds of fragments that may come after one of an unfinished record, or after none."""
HISTORY, CONFIG, RUN = 2, 5, 17
"""Numbers of the fields of ``Record``."""


def read_wandb(path: Path, layout: LogLayout, named: str | None = None) -> Log | None:
    """The run of a ``.wandb`` file, or None where it logged nothing that is read."""
    rows: list[Row] = []
    config: dict[str, Any] = {}
    left_out: list[str] = []
    empty = True
    for position, payload in _records(path, left_out):
        where = f"{path}: the record at byte {position:,}"
        try:
            record = Message(payload)
            histories = [_history(message) for message in record.parts(HISTORY)]
            configs = [*record.parts(CONFIG), *(c for run in record.parts(RUN) for c in Message(run).parts(4))]
            for message in configs:
                config |= flat(_items(Message(message).parts(1)), where)
        except BudgetError:
            raise
        except (ValueError, RecursionError) as error:
            raise DamagedLogError(f"{where} is damaged, or not W&B's ({reason(error)})") from None
        for entry in histories:
            empty = False
            metrics = metrics_of(entry, layout, where)
            if not any(layout.needed.match(key) for key in metrics):
                continue
            columns = (named,) if named else step_columns(entry, layout, None, str(path))
            step = step_of(entry, columns, where)
            if step is None:
                raise DamagedLogError(f"{where} has no {' or '.join(columns) or layout.steps[0]}")
            rows.append((step, metrics))
    if empty:
        raise DamagedLogError(f"{path}: no metric was logged{''.join(f'; {said}' for said in left_out)}")
    return replace(join(str(path), [rows], layout, config), left_out=tuple(left_out)) if rows else None


def _history(message: bytes) -> dict[str, Any]:
    record = Message(message)
    entry = _items(record.parts(1))
    for step in record.parts(2):
        entry.setdefault("_step", Message(step).whole(1))
    return entry


def _items(messages: list[bytes]) -> dict[str, Any]:
    """Keys and values of ``HistoryItem``s or ``ConfigItem``s."""
    values = {}
    for item in map(Message, messages):
        key = item.text(1) or ".".join(name.decode("utf-8", "replace") for name in item.parts(2))
        if 16 in item:
            values[key] = json.loads(item.part(16))
        elif 6 in item:
            values[key] = item.real(6, "<d")
        elif 5 in item:
            # Whole numbers are zigzag-encoded.
            number = item.whole(5) % 2**64
            values[key] = (number >> 1) ^ -(number & 1)
    return values


def _records(path: Path, left_out: list[str]) -> Iterator[tuple[int, bytes]]:
    """The records of a file, each with the byte at which it begins.

    The last one of a run that was killed is incomplete, or zeros after a crash, and is left out.
    """
    data = content(path)
    if data[: len(MAGIC)] != MAGIC:
        raise BudgetError(f"{path}: is no file of W&B's")
    position = begin = HEADER
    whole, before = b"", None
    while position < len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        rest = len(data) - position
        if not data[position : position + HEADER].strip(b"\0") and not data[position:].strip(b"\0"):
            left_out.append(f"{path}: its last {rest:,} bytes are zeros, as after a crash, and are left out")
            return
        begin = position if before is None else begin
        check, length, kind = struct.unpack_from("<IHB", data, position) if rest >= HEADER else (0, 0, 0)
        if rest < HEADER + length or rest < HEADER:
            break
        fragment = data[position + HEADER : position + HEADER + length]
        if zlib.crc32(data[position + 6 : position + 7] + fragment) != check:
            raise DamagedLogError(f"{path}: is damaged: the checksum of the record at byte {begin:,} does not match")
        if kind not in FOLLOWS[before]:
            raise DamagedLogError(f"{path}: is damaged: a part of the record at byte {begin:,} is missing")
        position += HEADER + length
        whole += fragment
        before = None if kind in (FULL, LAST) else kind
        if before is None:
            yield begin, whole
            whole = b""
    if position < len(data) or before is not None:
        left_out.append(f"{path}: its last record, from byte {begin:,}, is incomplete and is left out")
