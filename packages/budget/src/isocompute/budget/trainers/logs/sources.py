"""Logged metrics of runs, from wherever a trainer or its logger left them, read without the logger.

The content of a file decides how it is read; its name decides only if the content does not. This module reads the
states and arguments that a transformers Trainer saves, and databases: an MLflow store, which any framework may log to,
and Trackio's ``PROJECT.db``. Other formats have their own modules.
"""

from __future__ import annotations

import json
import pickletools
import re
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...contract import tracking
from ...contract.errors import TrackingError
from ...errors import BudgetError, DamagedLogError, reason
from .log import (
    Log,
    LogLayout,
    Row,
    content,
    fields_of,
    flat,
    join,
    metrics_of,
    name_of,
    require_regular,
    row_of,
    step_columns,
    step_of,
    text_of,
)
from .records import WANDB, read_events, read_wandb
from .tables import is_console, read_console, read_lines, read_table

EVENTS, STATE = "events.out.tfevents.", "trainer_state.json"
EVENTS_BEGIN = b"brain.Event:"
"""Part of the first record of a TensorBoard file, whatever the file is called."""
SQLITE = b"SQLite format 3\0"
LINES, TABLES = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv", ".parquet")


def read_logs(source: str, layout: LogLayout, *, step_column: str | None = None) -> list[Log]:
    """Read the runs of a source, one by one; none if it holds nothing that is read.

    Args:
        source: A file (a TensorBoard file stands for its whole folder) or an MLflow source.
        step_column: Column that counts the trainer's steps, if the file's usual ones do not.

    Raises:
        DamagedLogError: It is damaged, or not in the format that its name implies.
        TrackingError: MLflow does not have it.
    """
    path = Path(source)
    stored = not path.exists() and tracking.is_of_mlflow(source)
    first = b""
    if not stored:
        require_regular(path)
        with path.open("rb") as stream:
            first = stream.read(64)
    events = path.name.startswith(EVENTS)
    database = first.startswith(SQLITE) or path.suffix == ".db"
    if stored or path.name.startswith(STATE) or events or EVENTS_BEGIN in first or database:
        if step_column is not None:
            raise BudgetError(f"{source}: has no column {step_column!r}; step_column is for tables and JSON lines")
        if stored:
            return read_store(source, layout)
        if path.name.startswith(STATE):
            return [read_state(path, layout)]
        if events:
            return read_events([p for p in path.parent.iterdir() if p.name.startswith(EVENTS) and p.is_file()], layout)
        return read_events([path], layout) if EVENTS_BEGIN in first else read_database(path, layout)
    data, suffix = content(path), name_of(path).suffix.lower()
    if data.startswith(WANDB) or suffix == ".wandb":
        log = read_wandb(path, layout, step_column)
        return [] if log is None else [log]
    if data.startswith(b"PAR1") or suffix == ".parquet":
        return read_table(path, data, layout, step_column)
    text = text_of(path, data)
    is_json = text.lstrip().startswith("{")
    if suffix not in TABLES and is_console(text) and not (is_json and suffix in LINES):
        return read_console(path, data, layout, step_column)
    return (read_lines if is_json or suffix in LINES else read_table)(path, data, layout, step_column)


def last_states(path: Path) -> list[Path]:
    """The last ``trainer_state.json`` of each run in a folder: the one at its end, else of its last checkpoint."""
    last: dict[Path, tuple[float, Path]] = {}
    for state in sorted(path.rglob(STATE)):
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        run = state.parent.parent if checkpoint and state.parent != path else state.parent
        # Copying a folder loses its times, so they are not used.
        rank = float(checkpoint[1]) if checkpoint else float("inf")
        last[run] = max(last.get(run, (-1.0, state)), (rank, state))
    return [state for _, state in last.values()]


def read_state(path: Path, layout: LogLayout) -> Log:
    """The run in a ``trainer_state.json``, with the arguments beside it or in its run's folder."""
    state = _state(path)
    history = state.get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise DamagedLogError(f"{path}: is not the trainer_state.json of a transformers Trainer, or is damaged")
    rows: list[Row] = []
    for number, entry in enumerate(history, 1):
        where = f"{path}: entry {number}"
        step = step_of(entry, ("step",), where)
        if step is None:
            raise DamagedLogError(f"{where} has no step")
        rows.append((step, metrics_of(entry, layout, where)))
    # Every checkpoint records how many tokens had been seen by then.
    left_out = []
    checkpoints = [p for folder in (path.parent.parent, path.parent) for p in folder.glob(f"checkpoint-*/{STATE}")]
    for other in dict.fromkeys((path, *checkpoints)):
        try:
            rows += _seen(other, state if other == path else _state(other))
        except BudgetError as error:
            left_out.append(f"{error}; the tokens that it counts are left out")
    kept = ("train_batch_size", "max_steps", "num_train_epochs", "logging_steps", "save_steps")
    config = {f"trainer_state.{name}": state[name] for name in kept if state.get(name) is not None}
    for folder in (path.parent, path.parent.parent):
        if (folder / "training_args.bin").is_file():
            config |= read_arguments(folder / "training_args.bin")
            break
    return replace(join(str(path), [rows], layout, config), left_out=tuple(left_out))


def _state(path: Path) -> dict[str, Any]:
    state = _object(text_of(path, content(path)))
    if state is None:
        raise DamagedLogError(f"{path}: is not the trainer_state.json of a transformers Trainer, or is damaged")
    return state


def _seen(path: Path, state: dict[str, Any]) -> list[Row]:
    """Tokens that a Trainer had seen when it saved a state; none if it did not count them."""
    name = "num_input_tokens_seen"
    if state.get(name) is None:
        return []
    step = step_of(state, ("global_step",), str(path))
    tokens = step_of(state, (name,), str(path))
    return [] if step is None or tokens is None else [(step, {"trainer_state.num_tokens": float(tokens)})]


MARK, UNKNOWN = object(), object()
PLAIN = (bool, int, float, str)
LARGEST = 2**24
UNREADABLE = (OSError, ValueError, TypeError, LookupError, StopIteration, EOFError, RuntimeError, ArithmeticError)
"""Errors from damaged archives and pickles, besides their modules' own errors."""


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments whose values are numbers, texts, switches or None.

    The file is a pickle, which could run code if it were loaded. Its instructions are followed only as far as they push
    plain values and set them in a dictionary; objects that they would build are skipped.
    """
    require_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > LARGEST:
                raise BudgetError(f"{path}: is too large for a Trainer's arguments")
            with archive.open(name) as member:
                code = member.read(LARGEST)
        return _plain_items(code)
    except BudgetError:
        raise
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise DamagedLogError(
            f"{path}: is not the training_args.bin of a Trainer, or is damaged ({reason(error)})"
        ) from None


def _plain_items(code: bytes) -> dict[str, Any]:
    """Keys and plain values that a pickle sets in dictionaries."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    values: dict[str, Any] = {}
    for operation, argument, _ in pickletools.genops(code):
        name = operation.name
        if name in ("MARK",):
            stack.append(MARK)
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else int(str(argument))] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[int(str(argument))])
        elif name in ("NEWTRUE", "NEWFALSE", "NONE"):
            stack.append({"NEWTRUE": True, "NEWFALSE": False, "NONE": None}[name])
        elif name in ("SETITEMS", "SETITEM"):
            first = len(stack) - 2
            if name == "SETITEMS":
                first = next(k for k in range(len(stack), 0, -1) if stack[k - 1] is MARK)
            items = stack[first:]
            del stack[first - (name == "SETITEMS") :]
            for key, value in zip(items[::2], items[1::2], strict=False):
                if isinstance(key, str) and (value is None or isinstance(value, PLAIN)):
                    values.setdefault(key, value)
        elif isinstance(argument, PLAIN) and operation.stack_after and name not in ("GLOBAL", "INST"):
            stack.append(argument)
        else:
            _step(stack, operation)
    return values


def _step(stack: list[Any], operation: pickletools.OpcodeInfo) -> None:
    """Pop what an instruction takes from the stack, and push placeholders for its results."""
    before = list(operation.stack_before)
    if pickletools.markobject in before or pickletools.stackslice in before:
        while stack and stack.pop() is not MARK:
            pass
        before = before[: before.index(pickletools.markobject)] if pickletools.markobject in before else []
    for _ in before:
        if stack:
            stack.pop()
    stack += [UNKNOWN] * len(operation.stack_after)


OF_MLFLOW = {"alembic_version", "experiments", "runs", "metrics", "latest_metrics", "params", "tags"}
"""Tables that MLflow would create in the file if they were missing."""


def read_store(source: str, layout: LogLayout) -> list[Log]:
    """The runs of an MLflow store."""
    return [log for _, _, read in runs_of(source) for log in read(layout)]


def runs_of(source: str) -> Iterator[tuple[str, set[str], Callable[[LogLayout], list[Log]]]]:
    """The runs of an MLflow store or one of its experiments: each run's name, its metrics, and its reader."""
    client, runs = tracking.runs_of(source)
    if not runs:
        kind = "experiment" if source.startswith("mlflow:") else "store"
        raise TrackingError(f"{source}: the {kind} holds no run")
    for run in runs:
        name = f"runs:/{run.info.run_id}" + (f" ({run.info.run_name})" if run.info.run_name else "")
        with tracking.answering(source):
            points = sorted(
                (int(point.timestamp), int(point.step), key, float(point.value))
                for key in run.data.metrics
                for point in client.get_metric_history(str(run.info.run_id), key)
            )
        yield name, set(run.data.metrics), partial(_run, name, points, dict(run.data.params))


def _run(
    name: str, points: Sequence[tuple[int, int, str, float]], config: dict[str, Any], layout: LogLayout
) -> list[Log]:
    rows: list[Row] = [(step, metrics_of({key: value}, layout, name)) for _, step, key, value in points]
    return [join(name, [rows], layout, config)]


@contextmanager
def opened(path: Path) -> Iterator[tuple[sqlite3.Connection, set[str]]]:
    """Open a database to read it, and list its tables: reading anything else, such as a view, may never end."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'")
        yield database, {str(name) for (name,) in found}


def has_metrics(database: sqlite3.Connection, tables: set[str]) -> bool:
    """Return whether something was logged to MLflow's store or Trackio's project."""
    return "metrics" in tables and database.execute("SELECT 1 FROM metrics LIMIT 1").fetchone() is not None


def read_database(path: Path, layout: LogLayout) -> list[Log]:
    """The runs in an SQLite file: a Trackio project, or an MLflow store."""
    try:
        with opened(path) as (database, tables):
            if {"metrics", "configs"} <= tables:
                return _projects(path, database, layout)
    except BudgetError:
        raise
    except (sqlite3.Error, OSError, ValueError) as error:
        raise DamagedLogError(f"{path}: is damaged, or not Trackio's nor MLflow's ({reason(error)})") from None
    if OF_MLFLOW - tables:
        has = ", ".join(sorted(tables)) or "no table"
        raise BudgetError(f"{path}: is no database of Trackio's or MLflow's: it has {has}")
    try:
        return read_store(f"sqlite:///{path.resolve()}", layout)
    except TrackingError as error:
        # Callers that search a folder continue after this error.
        raise BudgetError(str(error)) from None


def _projects(path: Path, database: sqlite3.Connection, layout: LogLayout) -> list[Log]:
    """The runs of a Trackio project."""

    def parsed(what: str, text: Any) -> dict[str, Any]:
        document = _object(text)
        if document is None:
            raise DamagedLogError(f"{path}: {what} is no JSON object")
        return document

    configured = database.execute("SELECT run_id, config FROM configs").fetchall()
    configs = {run: flat(parsed(f"the configuration of {run}", text), path) for run, text in configured}
    names: dict[str, str] = {}
    rows: dict[str, list[Row]] = {}
    logged = database.execute("SELECT id, run_id, run_name, metrics FROM metrics ORDER BY id").fetchall()
    for number, run, name, document in logged:
        what = f"entry {number} ({name})"
        entry = fields_of(parsed(what, document), layout, f"{path}: {what}")
        names[run] = name
        row = row_of(entry, step_columns(entry, layout, None, str(path)), layout, f"{path}: {what}")
        if row is not None:
            rows.setdefault(run, []).append(row)
    return [join(f"{path} ({names[run]})", [entries], layout, configs.get(run)) for run, entries in rows.items()]


def _object(text: Any) -> dict[str, Any] | None:
    """A JSON object, or None."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
