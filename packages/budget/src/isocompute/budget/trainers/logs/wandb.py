"""W&B's own file of a run, ``run-ID.wandb``, which it writes offline and online: read without W&B.

The file is a LevelDB log (blocks of 32 KiB, records in fragments) of ``Record`` messages; histories and configurations
are read from it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import BudgetError
from ...wording import reason
from .lines import flat
from .log import Layout, Log, Row, join, numbers
from .protobuf import fields, text
from .steps import step_columns, step_of

BLOCK, HEADER = 32_768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
HISTORY, CONFIG, RUN = 2, 5, 17
"""Numbers of the fields of ``Record``."""


def read_wandb(path: Path, layout: Layout, named: str | None = None) -> Log | None:
    """The run of a ``.wandb`` file, or None where it logged nothing that is read.

    Args:
        named: Column that the user says counts the steps, or None.

    Raises:
        BudgetError: It cannot be read, or counts its rows only by W&B's own step.
    """
    rows: list[Row] = []
    config: dict[str, Any] = {}
    try:
        for payload in _records(path):
            record = fields(payload)
            for message in record.get(HISTORY, []):
                entry = _history(message)
                metrics = numbers(entry)
                if not any(layout.needed.match(key) for key in metrics):
                    continue
                columns = (named,) if named else step_columns(entry, layout, None, str(path))
                step = step_of(entry, columns, str(path))
                if step is not None:
                    rows.append((step, metrics))
            for message in [*record.get(CONFIG, []), *(c for r in record.get(RUN, []) for c in fields(r).get(4, []))]:
                config |= flat(_items(fields(message).get(1, [])))
    except ValueError as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{path}: is damaged, or no file of W&B's ({reason(error)})") from None
    return join(str(path), [rows], layout, config) if rows else None


def _history(message: bytes) -> dict[str, Any]:
    parts = fields(message)
    entry = _items(parts.get(1, []))
    for step in parts.get(2, []):
        entry.setdefault("_step", fields(step).get(1, [0])[0])
    return entry


def _items(messages: list[bytes]) -> dict[str, Any]:
    """Keys and values of ``HistoryItem``s or ``ConfigItem``s."""
    found = {}
    for message in messages:
        parts = fields(message)
        names = [text(name) for name in parts.get(2, [])]
        key = text(parts[1][0]) if parts.get(1, [b""])[0] else ".".join(names)
        if 16 in parts:
            found[key] = json.loads(parts[16][0])
        elif 6 in parts:
            found[key] = struct.unpack("<d", parts[6][0])[0]
        elif 5 in parts:
            # Whole numbers are zigzag-encoded.
            found[key] = (parts[5][0] >> 1) ^ -(parts[5][0] & 1)
    return found


def _records(path: Path) -> Iterator[bytes]:
    """The records of a LevelDB log; a last, incomplete one is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    if data[:4] != b":W&B":
        raise BudgetError(f"{path}: is no file of W&B's")
    place, whole = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        part = data[place + HEADER : place + HEADER + length]
        if len(part) < length or kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        place += HEADER + length
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST):
            yield whole
