"""Logged metrics of runs, from wherever a trainer or its logger left them, read without the logger.

* TensorBoard's event files: every folder is a run, every file a start of its trainer. A file is a sequence of TFRecords
  (length, checksum, payload, checksum), each an ``Event`` of protocol buffers.
* An MLflow store, as any framework logged to it.
* Trackio's database of a project, ``PROJECT.db``: SQLite.
* W&B's file of a run, ``run-ID.wandb``, which it writes offline and online: a LevelDB log (blocks of 32 KiB, records in
  fragments) of ``Record`` messages.
* Files that ``log`` reads.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checks import reason
from ...contract import tracking
from ...contract.errors import TrackingError
from ...errors import BudgetError
from .log import (
    Log,
    LogLayout,
    Row,
    flat,
    join,
    numbers,
    read_arguments,
    read_lines,
    read_state,
    read_table,
    step_columns,
    step_of,
)


def read_logs(source: str, layout: LogLayout, *, step_column: str | None = None) -> list[Log]:
    """Read the runs of a source, one by one.

    Args:
        source: A file, a folder, ``runs:/ID``, ``mlflow:EXPERIMENT`` or a tracking URI.
        step_column: Column that counts the trainer's steps, where a file's own say something else.

    Raises:
        BudgetError: It cannot be read or holds no metrics.
        TrackingError: MLflow does not have it.
    """
    if source.startswith(("mlflow:", "runs:/")) or tracking.is_store(source):
        _refuse_column(source, step_column)
        return [
            join(name, [[(step, numbers(metrics)) for step, metrics in rows]], layout, config)
            for name, rows, config in histories(source)
        ]
    path = Path(source)
    if not path.exists():
        raise BudgetError(f"{path}: there is no such file or folder")
    return _folder(path, layout, step_column) if path.is_dir() else _file(path, layout, step_column)


def _folder(path: Path, layout: LogLayout, step_column: str | None) -> list[Log]:
    """Runs of a folder: Trainer's states, event files, W&B's files, or one file of JSON lines or CSV."""
    states = last_states(path)
    if states:
        _refuse_column(str(path), step_column)
        return [_state(state, layout) for state in states]
    events = sorted(path.rglob("events.out.tfevents.*"))
    if events:
        _refuse_column(str(path), step_column)
        runs = read_events(events, layout)
        if not runs:
            raise BudgetError(f"{path}: its event files hold no metrics")
        return runs
    logs = [read_wandb(file, layout, step_column) for file in sorted(path.rglob("*.wandb"))]
    if any(logs):
        return [log for log in logs if log is not None]
    files = [p for suffix in ("*.jsonl", "*.csv", "*.db") for p in sorted(path.glob(suffix))]
    if len(files) != 1:
        names = f"; it holds {', '.join(p.name for p in files)}, to be named one by one" if files else ""
        raise BudgetError(
            f"{path}: must hold trainer_state.json, TensorBoard events, .wandb files, or one .jsonl or .csv file{names}"
        )
    return _file(files[0], layout, step_column)


def last_states(path: Path) -> list[Path]:
    """The last ``trainer_state.json`` of each run below a folder: the one at its end, else of its last checkpoint."""
    last: dict[Path, tuple[float, Path]] = {}
    for state in sorted(path.rglob("trainer_state.json")):
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        run = state.parent.parent if checkpoint and state.parent != path else state.parent
        # A folder that was copied has lost its times, so they say nothing.
        rank = float(checkpoint[1]) if checkpoint else float("inf")
        last[run] = max(last.get(run, (-1.0, state)), (rank, state))
    return [state for _, state in last.values()]


def _state(path: Path, layout: LogLayout) -> Log:
    """A trainer's state with the arguments that lie beside it, or in the folder of its run."""
    log = read_state(path, layout)
    for folder in (path.parent, path.parent.parent):
        if (folder / "training_args.bin").is_file():
            log.config.update(read_arguments(folder / "training_args.bin"))
            break
    return log


def _file(path: Path, layout: LogLayout, step_column: str | None) -> list[Log]:
    kind = next((k for k in ("events.out.tfevents", "trainer_state.json") if path.name.startswith(k)), path.suffix)
    if kind in ("events.out.tfevents", "trainer_state.json", ".db"):
        _refuse_column(str(path), step_column)
    if kind == "trainer_state.json":
        return [_state(path, layout)]
    runs: list[Log]
    if kind == "events.out.tfevents":
        runs = read_events([path], layout)
    elif kind == ".wandb":
        runs = [log for log in (read_wandb(path, layout, step_column),) if log is not None]
    elif kind == ".db":
        runs = read_trackio(path, layout)
    else:
        return (read_lines if kind == ".jsonl" else read_table)(path, layout, step_column)
    if not runs:
        raise BudgetError(f"{path}: holds no metrics")
    return runs


def _refuse_column(source: str, step_column: str | None) -> None:
    if step_column is not None:
        raise BudgetError(
            f"{source}: has one step for each metric and no column {step_column!r}; step_column is for tables and "
            "JSON lines"
        )


def fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a message: whole numbers as int, everything else as bytes.

    Raises:
        ValueError: It is not a message.
    """
    by_number: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        value: Any
        if kind == 0:
            value, position = _varint(message, position)
        else:
            if kind == 2:
                length, position = _varint(message, position)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError(f"the wire type {kind} is not used by protocol buffers")
            if position + length > len(message):
                raise ValueError("a field is longer than its message")
            value, position = message[position : position + length], position + length
        by_number.setdefault(key >> 3, []).append(value)
    return by_number


def text(value: Any) -> str:
    """The text of a field."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position after it."""
    number = shift = 0
    while position < len(message):
        byte = message[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position
        if shift > 63:
            break
    raise ValueError("a number does not end")


ARGUMENTS = "args/text_summary"
"""Where a transformers Trainer writes its arguments."""
LAST_TAG = "train/epoch"
"""The last metric that a transformers Trainer writes of an entry."""


def read_events(files: Sequence[Path], layout: LogLayout) -> list[Log]:
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
        changed: dict[str, tuple[Any, Any]] = {}
        for path in members:
            try:
                rows, arguments = _read(path)
            except ValueError as error:
                raise BudgetError(f"{path}: is no file of TensorBoard events ({reason(error)})") from None
            starts += [rows] if rows else []
            changed |= {key: (config[key], v) for key, v in arguments.items() if config.get(key, v) != v}
            config |= arguments
        if starts:
            runs.append(replace(join(str(folder), starts, layout, config), changed=changed))
    return runs


def _read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Scalars of one file by entry, and the arguments it holds."""
    entries: list[tuple[int, dict[str, float]]] = []
    config: dict[str, Any] = {}
    closed = True
    for payload in _event_records(path):
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
                closed = tag == LAST_TAG
    return [(step, values) for step, values in entries], config


def _event_records(path: Path) -> Iterator[bytes]:
    """The payloads of a file; the last, incomplete one of a run that was killed is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(reason(error)) from None
    position = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        if position + 16 + length > len(data):
            return
        yield data[position + 12 : position + 12 + length]
        position += 16 + length


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


def histories(source: str) -> Iterator[tuple[str, list[tuple[int, dict[str, float]]], dict[str, str]]]:
    """Logged metrics and parameters of runs.

    Args:
        source: ``runs:/RUN_ID``, ``mlflow:EXPERIMENT``, or a tracking URI for every run there.

    Yields:
        Name of the run, which holds its id; its metrics by step, in the order of logging; its parameters.

    Raises:
        TrackingError: No such run or experiment, or it holds no run.
    """
    client, runs = tracking.runs_of(source)
    if not runs:
        kind = "store" if tracking.is_store(source) else "experiment"
        raise TrackingError(f"{source}: the {kind} holds no run")
    for run in runs:
        run_id = str(run.info.run_id)
        with tracking.answering(source):
            points = [
                (int(point.timestamp), int(point.step), key, float(point.value))
                for key in run.data.metrics
                for point in client.get_metric_history(run_id, key)
            ]
        rows = [(step, {key: value}) for _, step, key, value in sorted(points)]
        name = f" ({run.info.run_name})" if run.info.run_name else ""
        yield f"runs:/{run_id}{name}", rows, dict(run.data.params)


def read_trackio(path: Path, layout: LogLayout) -> list[Log]:
    """The runs of a project.

    Raises:
        BudgetError: It is not such a database.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            configs = dict(database.execute("SELECT run_id, config FROM configs"))
            logged = database.execute("SELECT run_id, run_name, metrics FROM metrics ORDER BY id").fetchall()
        names: dict[str, str] = {}
        rows: dict[str, list[Row]] = {}
        for run, name, metrics in logged:
            entry = json.loads(metrics)
            names[run] = name
            columns = step_columns(entry, layout, None, str(path))
            step = step_of(entry, columns, f"{path} ({name})")
            if step is not None:
                rows.setdefault(run, []).append((step, numbers(entry)))
        return [
            join(f"{path} ({names[run]})", [entries], layout, flat(json.loads(configs.get(run, "{}"))))
            for run, entries in rows.items()
        ]
    except (sqlite3.Error, ValueError, TypeError) as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{path}: is no database of Trackio's ({error})") from None


BLOCK, HEADER = 32_768, 7
FULL, FIRST, MIDDLE, LAST_KEY = 1, 2, 3, 4
HISTORY, CONFIG, RUN = 2, 5, 17
"""Numbers of the fields of ``Record``."""


def read_wandb(path: Path, layout: LogLayout, named: str | None = None) -> Log | None:
    """The run of a ``.wandb`` file, or None where it logged nothing that is read.

    Args:
        named: Column that the user says counts the steps, or None.

    Raises:
        BudgetError: It cannot be read, or counts its rows only by W&B's own step.
    """
    rows: list[Row] = []
    config: dict[str, Any] = {}
    try:
        for payload in _leveldb_records(path):
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
    values = {}
    for message in messages:
        parts = fields(message)
        names = [text(name) for name in parts.get(2, [])]
        key = text(parts[1][0]) if parts.get(1, [b""])[0] else ".".join(names)
        if 16 in parts:
            values[key] = json.loads(parts[16][0])
        elif 6 in parts:
            values[key] = struct.unpack("<d", parts[6][0])[0]
        elif 5 in parts:
            # Whole numbers are zigzag-encoded.
            values[key] = (parts[5][0] >> 1) ^ -(parts[5][0] & 1)
    return values


def _leveldb_records(path: Path) -> Iterator[bytes]:
    """The records of a LevelDB log; a last, incomplete one is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    if data[:4] != b":W&B":
        raise BudgetError(f"{path}: is no file of W&B's")
    position, whole = HEADER, b""
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        part = data[position + HEADER : position + HEADER + length]
        if len(part) < length or kind not in (FULL, FIRST, MIDDLE, LAST_KEY):
            return
        position += HEADER + length
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST_KEY):
            yield whole
