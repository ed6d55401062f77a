"""Record files of protocol buffers, as TensorBoard and W&B write them, read without either library.

TensorBoard's event files are sequences of TFRecords: the length of the payload, a checksum of the length, the payload,
and its checksum. Checksums are CRC-32C, rotated and offset. Every folder is a run, and every file is a start of its
trainer.

W&B's run file, ``run-ID.wandb``, is written offline and online. It is a LevelDB log: blocks of 32 KiB, and records in
fragments, each with a checksum (CRC-32, where LevelDB has CRC-32C), a length and a kind.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BudgetError, DamagedLogError, reason
from .log import Log, LogLayout, Row, content, flat, join, metrics_of, row_of, step_columns, step_of


class Message:
    """A protocol buffer message: whole numbers are int, everything else is bytes.

    Every method that returns a field raises ValueError if the field has another type than requested.
    """

    def __init__(self, message: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(message):
            key, position = _varint(message, position)
            kind, values = key & 7, self._fields.setdefault(key >> 3, [])
            if kind not in (0, 1, 2, 5):
                raise ValueError(f"the wire type {kind} is not used by protocol buffers")
            length = {1: 8, 5: 4}.get(kind, 0)
            if kind in (0, 2):
                length, position = _varint(message, position)
            if kind == 0:
                values.append(length)
                continue
            if position + length > len(message):
                raise ValueError("a field is longer than its message")
            values.append(message[position : position + length])
            position += length

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def parts(self, number: int) -> list[bytes]:
        """Every value of a field that is not a whole number."""
        values = self._fields.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise ValueError(f"the field {number} is a whole number")
        return [value for value in values if isinstance(value, bytes)]

    def part(self, number: int) -> bytes:
        """The last value of such a field, empty if there is none."""
        return self.parts(number)[-1] if number in self._fields else b""

    def text(self, number: int) -> str:
        """The text of a field."""
        return self.part(number).decode("utf-8", "replace")

    def whole(self, number: int) -> int:
        """A signed whole number, 0 if there is none."""
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"the field {number} is no whole number")
        return value - 2**64 if value >= 2**63 else value

    def real(self, number: int, form: str) -> float:
        """A number of the ``struct`` format ``form``."""
        part = self.part(number)
        if len(part) != struct.calcsize(form):
            raise ValueError(f"the field {number} is a number of {len(part)} bytes")
        return float(struct.unpack(form, part)[0])


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """A number encoded in seven bits a byte, and the position after it."""
    number = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            if number >= 2**64:
                raise ValueError("a number has more than 64 bits")
            return number, position
    raise ValueError("a number does not end")


ARGUMENTS = "args/text_summary"
"""Tag under which a transformers Trainer writes its arguments."""
LAST_TAG = "train/epoch"
"""The last metric that a transformers Trainer writes in an entry."""
LARGE = 2**16
"""Size in bytes of texts, images and histograms, which are not read; checking them byte by byte would take long."""


def read_events(files: Sequence[Path], layout: LogLayout) -> list[Log]:
    """The runs in event files, one per folder; folders without metrics, such as those of hyperparameters, hold none."""
    folders: dict[Path, list[Path]] = {}
    for path in sorted(files):
        folders.setdefault(path.parent, []).append(path)
    runs = []
    for folder, members in folders.items():
        starts: list[list[Row]] = []
        config: dict[str, Any] = {}
        changed: dict[str, tuple[Any, Any]] = {}
        left_out: list[str] = []
        for path in members:
            own: dict[str, Any] = {}
            rows = _scalars(path, layout, own, left_out)
            starts += [rows] if rows else []
            changed |= {key: (config[key], value) for key, value in own.items() if config.get(key, value) != value}
            config |= own
        if starts:
            log = join(str(folder), starts, layout, config)
            runs.append(replace(log, changed=changed, left_out=tuple(left_out)))
        elif left_out:
            raise DamagedLogError(f"{left_out[0]}; before it, no metric was logged")
    return runs


def _scalars(path: Path, layout: LogLayout, config: dict[str, Any], left_out: list[str]) -> list[Row]:
    """The scalars of one file, by entry."""
    entries: list[tuple[int, dict[str, float]]] = []
    closed = True
    for position, payload, check in _tfrecords(path, left_out):
        try:
            event = Message(payload)
            step = event.whole(2)
            values = [Message(value) for summary in event.parts(5) for value in Message(summary).parts(1)]
            tagged = [(value.text(1), value) for value in values]
            for tag, value in tagged:
                config |= _arguments(value, path) if tag == ARGUMENTS else {}
            scalars = [(tag, n) for tag, value in tagged if tag != ARGUMENTS and (n := _scalar(value)) is not None]
        except BudgetError:
            raise
        except ValueError as error:
            raise DamagedLogError(
                f"{path}: is damaged, or no file of TensorBoard events: the record at byte {position:,} is no event "
                f"({reason(error)})"
            ) from None
        if scalars:
            step_of({"step": step}, ("step",), f"{path}: the record at byte {position:,}")
            if len(payload) > LARGE:
                _verify(path, position, payload, check)
        for tag, number in scalars:
            # A tag repeated at one step belongs to a further entry, such as a second evaluation set.
            if closed or entries[-1][0] != step or tag in entries[-1][1]:
                entries.append((step, {}))
            entries[-1][1][tag] = number
            closed = tag == LAST_TAG
    return [(step, metrics_of(values, layout, str(path))) for step, values in entries]


def _tfrecords(path: Path, left_out: list[str]) -> Iterator[tuple[int, bytes, int]]:
    """The payloads of a file, each with its record's first byte and its checksum, verified if the payload is short.

    The last record of a killed run is incomplete, or zeros after a crash, and is skipped.
    """
    data = content(path)
    position = 0
    while position < len(data):
        rest = len(data) - position
        if _ends_in_zeros(path, data, position, left_out):
            return
        if rest >= 12:
            length, check = struct.unpack_from("<QI", data, position)
            _verify(path, position, data[position : position + 8], check)
        if rest < 12 or rest < length + 16:
            left_out.append(f"{path}: its last record, of {rest:,} bytes, is incomplete and is left out")
            return
        payload = data[position + 12 : position + 12 + length]
        (check,) = struct.unpack_from("<I", data, position + 12 + length)
        if length <= LARGE:
            _verify(path, position, payload, check)
        yield position, payload, check
        position += 16 + length


def _ends_in_zeros(path: Path, data: bytes, position: int, left_out: list[str]) -> bool:
    zeros = not data[position : position + 7].strip(b"\0") and not data[position:].strip(b"\0")
    if zeros:
        left_out.append(f"{path}: its last {len(data) - position:,} bytes are zeros, as after a crash: left out")
    return zeros


def _verify(path: Path, position: int, data: bytes, check: int) -> None:
    if check == _checksum(data):
        return
    rest = f"what is before it can be read from a copy (head -c {position})" if position else "or it is no event file"
    raise DamagedLogError(f"{path}: is damaged at byte {position:,}: the checksum of a record does not match; {rest}")


def _checksum(data: bytes) -> int:
    """CRC-32C as TFRecords store it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[crc & 255 ^ byte]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


TABLE = list(range(256))
"""The CRC-32C of each byte value."""
for _ in range(8):
    TABLE = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in TABLE]


def _scalar(value: Message) -> float | None:
    """The number in a ``Summary.Value``: its simple value, or a tensor of one number; None for other values."""
    if 2 in value:
        return value.real(2, "<f")
    if 8 not in value:
        return None
    tensor = Message(value.part(8))
    for form, kind, field in (("<f", 1, 5), ("<d", 2, 6)):
        if tensor.whole(1) == kind:
            # Stored in one piece, or as a list of numbers.
            places = [number for number in (4, field) if len(tensor.part(number)) == struct.calcsize(form)]
            return tensor.real(places[0], form) if places else None
    return None


def _arguments(value: Message, path: Path) -> dict[str, Any]:
    """The arguments of a transformers Trainer, empty if they are not JSON."""
    try:
        document = json.loads(Message(value.part(8)).part(8))
    except (ValueError, RecursionError):
        return {}
    return flat(document, path) if isinstance(document, dict) else {}


WANDB = b":W&B"
BLOCK, HEADER = 32_768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
FOLLOWS = {None: (FULL, FIRST), FIRST: (MIDDLE, LAST), MIDDLE: (MIDDLE, LAST)}
"""Kinds of fragments that may follow each kind in an unfinished record, or follow none."""
HISTORY, CONFIG, RUN = 2, 5, 17
"""Field numbers of ``Record``."""


def read_wandb(path: Path, layout: LogLayout, named: str | None = None) -> Log | None:
    """The run of a ``.wandb`` file, or None if it logged nothing that is read."""
    rows: list[Row] = []
    config: dict[str, Any] = {}
    left_out: list[str] = []
    empty = True
    for position, payload in _leveldb(path, left_out):
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
            if not any(layout.needed.match(key) for key in metrics_of(entry, layout, where)):
                continue
            columns = (named,) if named else step_columns(entry, layout, None, str(path))
            rows += [row for row in (row_of(entry, columns, layout, where),) if row is not None]
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


def _leveldb(path: Path, left_out: list[str]) -> Iterator[tuple[int, bytes]]:
    """The records of a file, each with its first byte's position.

    The last record of a killed run is incomplete, or zeros after a crash, and is skipped.
    """
    data = content(path)
    if data[: len(WANDB)] != WANDB:
        raise BudgetError(f"{path}: is no file of W&B's")
    position = begin = HEADER
    whole, before = b"", None
    while position < len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        rest = len(data) - position
        if _ends_in_zeros(path, data, position, left_out):
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
