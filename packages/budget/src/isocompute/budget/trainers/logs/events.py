"""TensorBoard's event files, read without TensorBoard: every folder is a run, every file a start of its trainer.

A file is a sequence of TFRecords (length, checksum, payload, checksum), each an ``Event`` of protocol buffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import BudgetError
from ...wording import reason
from .lines import flat
from .log import Layout, Log, Row, join
from .protobuf import fields, text

ARGUMENTS = "args/text_summary"
"""Where a transformers Trainer writes its arguments."""
LAST = "train/epoch"
"""What a transformers Trainer writes last of an entry."""


def read_events(files: Sequence[Path], layout: Layout) -> list[Log]:
    """Runs of event files, one a folder; folders without metrics, such as those of hyperparameters, hold none.

    Raises:
        BudgetError: A file cannot be read, or one folder holds two runs.
    """
    folders: dict[Path, list[Path]] = {}
    for path in sorted(files):
        folders.setdefault(path.parent, []).append(path)
    runs = []
    for folder, members in folders.items():
        starts: list[list[Row]] = []
        config: dict[str, Any] = {}
        for path in members:
            try:
                found, arguments = _read(path)
            except ValueError as error:
                raise BudgetError(f"{path}: is no file of TensorBoard events ({reason(error)})") from None
            starts += [found] if found else []
            config |= arguments
        if starts:
            runs.append(join(str(folder), starts, layout, config))
    return runs


def _read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Scalars of one file by entry, and the arguments it holds."""
    entries: list[tuple[int, dict[str, float]]] = []
    config: dict[str, Any] = {}
    closed = True
    for payload in _records(path):
        event = fields(payload)
        step = event.get(2, [0])[0]
        for summary in event.get(5, []):
            for value in fields(summary).get(1, []):
                parts = fields(value)
                tag = text(parts.get(1, [b""])[0])
                if tag == ARGUMENTS:
                    config |= _arguments(parts)
                    continue
                number = _scalar(parts)
                if number is None:
                    continue
                # A tag that comes again at one step belongs to a further entry, such as of a second evaluation set.
                if closed or entries[-1][0] != step or tag in entries[-1][1]:
                    entries.append((step, {}))
                entries[-1][1][tag] = number
                closed = tag == LAST
    return [(step, values) for step, values in entries], config


def _records(path: Path) -> Iterator[bytes]:
    """The payloads of a file; the last, incomplete one of a run that was killed is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(reason(error)) from None
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        if place + 16 + length > len(data):
            return
        yield data[place + 12 : place + 12 + length]
        place += 16 + length


def _scalar(parts: dict[int, list[Any]]) -> float | None:
    """The number of a ``Summary.Value``: its simple value, or a tensor of one number."""
    if 2 in parts:
        return float(struct.unpack("<f", parts[2][0])[0])
    if 8 not in parts:
        return None
    tensor = fields(parts[8][0])
    if 5 in tensor and len(tensor[5][0]) == 4:
        return float(struct.unpack("<f", tensor[5][0])[0])
    return float(struct.unpack("<f", tensor[4][0])[0]) if 4 in tensor and len(tensor[4][0]) == 4 else None


def _arguments(parts: dict[int, list[Any]]) -> dict[str, Any]:
    try:
        document = json.loads(fields(parts[8][0])[8][0])
        return flat(document) if isinstance(document, dict) else {}
    except (ValueError, RecursionError, KeyError):
        return {}
