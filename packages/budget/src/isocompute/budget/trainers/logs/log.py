"""One run's log, joined by the trainer's step, and such logs in files.

Files are JSON lines, tables such as W&B's exports, and the state and ``training_args.bin`` of a transformers Trainer.
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ...checks import reason
from ...errors import BudgetError

Row = tuple[int, Mapping[str, float]]


class TwoRunsError(BudgetError):
    """One log holds the entries of two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayout:
    """The layout of a trainer's logs.

    Attributes:
        steps: Columns that count the trainer's steps; of those that a row has, the first counts. W&B's own ``_step``
            (``Step`` in its exports) is among them only where the trainer hands its step to W&B, which otherwise
            counts the calls of its logger.
        entry: Renames the metrics of one entry, before those of one step are joined; None leaves them.
    """

    steps: tuple[str, ...]
    needed: re.Pattern[str]
    entry: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One run's log.

    Attributes:
        name: Where it comes from; no two runs share a name.
        rows: Metrics by the trainer's step, in order; several entries of one step are joined.
        config: The configuration that the log holds, flat, with dotted keys.
        restarts: First step logged after each start from a checkpoint that the log shows.
        notes: What to know of how the rows were joined.
        also: Where other loggers left the same run.
    """

    name: str
    rows: list[tuple[int, dict[str, float]]]
    config: dict[str, Any] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def join(name: str, starts: Sequence[Iterable[Row]], layout: LogLayout, config: Mapping[str, Any] | None = None) -> Log:
    """Join the entries of a run, in the order in which they were logged.

    A run that was killed and resumed from a checkpoint logs some steps twice. The later attempt is the one that went
    on, so what the earlier one logged from that step on is dropped.

    Args:
        starts: Metrics by step, for each time that the trainer is known to have been started.
        config: The configuration that the log holds, with dotted keys.

    Raises:
        TwoRunsError: The entries are of two runs: the steps of a metric begin again.
    """
    whole: dict[int, dict[str, float]] = {}
    first: dict[str, int] = {}
    latest: dict[str, int] = {}
    notes: list[str] = []
    restarts: list[int] = []
    for attempt, entries in enumerate(starts):
        fresh = attempt > 0
        for step, logged in entries:
            metrics = layout.entry(logged) if layout.entry else logged
            needed = [key for key in metrics if layout.needed.match(key)]
            # Each metric has a clock of its own: an evaluation that takes long is logged after later steps.
            back = [key for key in needed if key in latest and _logged_before(key, step, metrics, latest, whole)]
            if back and step <= first[back[0]]:
                raise TwoRunsError(
                    f"{name}: {back[0]} begins again at step {step} after step {latest[back[0]]}: these are two runs; "
                    "put each into a file or folder of its own, or give a table of both a column run_id"
                )
            if back:
                notes.append(f"{name} went back to step {step} from step {max(whole)}: the later attempt counts")
                whole = {s: m for s, m in whole.items() if s <= step}
                latest = {key: s for key, s in latest.items() if s < step}
            if needed and (fresh or back):
                # A start that was undone by going back before it no longer counts.
                restarts = [*(earlier for earlier in restarts if earlier < step), step]
                fresh = False
            at = whole.setdefault(step, {})
            for key in needed:
                first.setdefault(key, step)
                latest[key] = step
            at.update(metrics)
    return Log(
        name=name, rows=sorted(whole.items()), config=dict(config or {}), restarts=tuple(restarts), notes=tuple(notes)
    )


def _logged_before(
    key: str, step: int, metrics: Mapping[str, float], latest: Mapping[str, int], whole: Mapping[int, dict[str, float]]
) -> bool:
    """Return whether a metric was logged before, for this step or a later one, with another value."""
    return step < latest[key] or (step == latest[key] and whole[step][key] != metrics[key])


def numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a log entry."""
    return {key: number for key, value in entry.items() if (number := number_of(value)) is not None}


def number_of(value: Any) -> float | None:
    """A finite number, or None for anything else; text, true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


LOG_CALLS = ("_step", "Step")
"""Columns of W&B's own count, in its histories and in its exports."""


def step_columns(names: Collection[str], layout: LogLayout, named: str | None, where: str) -> tuple[str, ...]:
    """Those of a log's columns that count the trainer's steps, the preferred one first.

    Args:
        names: Columns of a table, or keys of a line.
        named: Column that the user says it is.

    Returns:
        The columns; none where the log has no steps at all.

    Raises:
        BudgetError: The named column is not there, or the log has W&B's count alone.
    """
    if named is not None:
        if named not in names:
            raise BudgetError(f"{where}: has no column {named!r}; it has {', '.join(names)}")
        return (named,)
    columns = tuple(column for column in layout.steps if column in names)
    calls = [column for column in LOG_CALLS if column in names]
    if not columns and calls:
        raise BudgetError(
            f"{where}: counts its rows only by {calls[0]}, with which W&B counts calls of its logger and not the "
            f"trainer's steps: export {layout.steps[0]} too, or name the column of steps with --set step_column=COLUMN"
        )
    return columns


def step_of(entry: Mapping[str, Any], columns: tuple[str, ...], where: str) -> int | None:
    """The trainer's step of one row, or None where the row has none.

    Args:
        columns: Columns that count steps, the preferred one first.

    Raises:
        BudgetError: The value there is not a step.
    """
    column = next((c for c in columns if entry.get(c) is not None), None)
    if column is None:
        return None
    value = entry[column]
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 2**53 or number != int(number):
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise BudgetError(f"{where} has the {column} {shown}, which is not a whole number")
    if number < 0:
        raise BudgetError(f"{where} has the {column} {number:g}; steps count from 0")
    return int(number)


Entry = tuple[str, Mapping[str, Any], tuple[str, ...]]
"""Where a row stands, its fields, and the columns that count its steps."""
RUNS = ("run_id", "run", "run_name")
"""Columns that tell the runs of one file apart."""


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys, and lists of mappings by index; W&B's ``{"value": …}`` is its value.

    Args:
        prefix: What every key begins with.
    """
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and set(value) <= {"value", "desc"} and "value" in value:
            value = value["value"]
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def read_lines(path: Path, layout: LogLayout, named: str | None) -> list[Log]:
    """Runs of a file of JSON lines: flat metrics with a step, or veRL's ``{"step": …, "data": {…}}``.

    Args:
        named: Column that the user says counts the steps, or None.

    Raises:
        BudgetError: It cannot be read, a line is not an object, or a line with metrics that are read has no step.
    """
    lines = _objects(path)
    if named is not None and not any(named in fields for _, fields in lines):
        raise BudgetError(f"{path}: no line has {named!r}")

    def entries() -> Iterator[Entry]:
        for number, fields in lines:
            where = f"{path}: line {number}"
            # W&B's count is asked about only where it matters: tables and system metrics have lines of their own.
            matters = any(layout.needed.match(key) for key in numbers(fields))
            columns = (named,) if named else step_columns(fields, layout, None, where) if matters else layout.steps
            yield where, fields, columns

    return _runs(path, entries(), layout)


def read_table(path: Path, layout: LogLayout, named: str | None) -> list[Log]:
    """Runs of a wide table, such as a CSV export of W&B, whose columns may be called ``RUN - METRIC``.

    Args:
        named: Column that the user says counts the steps, or None.

    Raises:
        BudgetError: It cannot be read, has no column of steps, a row that matters has no step, or its columns are
            of several runs.
    """
    frame = _frame(path)
    names = {c: c.rpartition(" - ")[2] for c in frame.columns if not c.endswith(("__MIN", "__MAX"))}
    prefixes = {c.rpartition(" - ")[0] for c in names if " - " in c}
    if len(prefixes) > 1:
        raise BudgetError(f"{path}: mixes the runs {', '.join(sorted(prefixes))}: export one run per file")
    # Two runs may have one name; polars renames the second column.
    again = [re.sub(r"_duplicated_\d+$", "", c) for c in names if re.search(r"_duplicated_\d+$", c)]
    again += [c for c in names if Counter(names.values())[names[c]] > 1]
    if again:
        raise BudgetError(f"{path}: has the column {again[0]!r} twice, as of two runs of one name: keep one of them")
    columns = step_columns(list(names.values()), layout, named, str(path))
    if not columns:
        raise BudgetError(f"{path}: has no column of steps ({', '.join(layout.steps)})")

    def entries() -> Iterator[Entry]:
        for number, row in enumerate(frame.iter_rows(named=True), 1):
            yield f"{path}: row {number}", {names[c]: row[c] for c in names}, columns

    return _runs(path, entries(), layout)


def read_state(path: Path, layout: LogLayout) -> Log:
    """The run of a ``trainer_state.json``.

    Raises:
        BudgetError: The file is not one.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        rows: list[Row] = [(int(entry["step"]), numbers(entry)) for entry in state["log_history"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise BudgetError(f"{path}: is not the trainer_state.json of a transformers Trainer") from None
    # Every checkpoint says how many tokens had been seen by then.
    for other in (
        path,
        *path.parent.parent.glob("checkpoint-*/trainer_state.json"),
        *path.parent.glob("checkpoint-*/trainer_state.json"),
    ):
        rows += _seen(other)
    kept = ("train_batch_size", "max_steps", "num_train_epochs", "logging_steps", "save_steps")
    config = {f"trainer_state.{name}": state.get(name) for name in kept}
    return join(str(path), [rows], layout, {k: v for k, v in config.items() if v is not None})


def _seen(path: Path) -> list[Row]:
    """Tokens that a Trainer had seen when it saved a state."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return [(int(state["global_step"]), {"trainer_state.num_tokens": float(state["num_input_tokens_seen"])})]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return []


def _frame(path: Path) -> pl.DataFrame:
    """A table, read without changes."""
    try:
        # Rows enough that a column of whole numbers with a fraction far down is still read as numbers.
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema_length=None)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise BudgetError(f"{path}: cannot be read as {path.suffix[1:] or 'csv'} ({reason(error)})") from None
    if frame.is_empty():
        raise BudgetError(f"{path}: holds no rows")
    return frame


def _runs(path: Path, entries: Iterator[Entry], layout: LogLayout) -> list[Log]:
    """Sort rows by their run; rows without a step are skipped where they hold nothing that is read."""
    by_run: dict[str, list[Row]] = {}
    stepless = None
    for where, entry, columns in entries:
        step, metrics = step_of(entry, columns, where), numbers(entry)
        if step is None:
            lacking = f"{where} has no {' or '.join(columns) or 'step'}"
            if any(layout.needed.match(key) for key in metrics):
                raise BudgetError(lacking)
            stepless = stepless or lacking
            continue
        label = next((str(entry[c]) for c in RUNS if isinstance(entry.get(c), str | int)), "")
        by_run.setdefault(label, []).append((step, metrics))
    if not by_run:
        raise BudgetError(stepless or f"{path}: holds no metrics")
    return [join(f"{path} ({label})" if label else str(path), [rows], layout) for label, rows in by_run.items()]


def _objects(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file, flattened, each with the number of its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise BudgetError(f"{path}: cannot be read as text") from None
    objects = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise BudgetError(f"{path}: line {number} is not an object")
            inner = entry.pop("data") if isinstance(entry.get("data"), dict) else {}
            objects.append((number, {**flat(inner), **flat(entry)}))
        except BudgetError:
            raise
        except (ValueError, RecursionError):
            # A run that was killed leaves its last line incomplete.
            if number < len(lines):
                raise BudgetError(f"{path}: line {number} is not JSON") from None
    return objects


MARK, UNKNOWN = object(), object()
PLAIN = (bool, int, float, str)
LARGEST = 2**24


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments whose values are numbers, texts, switches or None.

    The file is a pickle, which could run code if it were loaded. Its instructions are followed here only as far as
    they push plain values and set them in a dictionary; whatever they would build is left out.

    Raises:
        BudgetError: It is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > LARGEST:
                raise BudgetError(f"{path}: is too large for a Trainer's arguments")
            code = archive.read(name)
        return _plain_items(code)
    except (OSError, ValueError, StopIteration, IndexError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{path}: is not the training_args.bin of a transformers Trainer ({reason(error)})") from None


def _plain_items(code: bytes) -> dict[str, Any]:
    """Keys and values that a pickle sets in dictionaries, of those values that are plain."""
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
                first = len(stack) - stack[::-1].index(MARK)
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
    """Take from the stack what an instruction takes, and push placeholders for what it makes."""
    before = list(operation.stack_before)
    if pickletools.markobject in before or pickletools.stackslice in before:
        while stack and stack.pop() is not MARK:
            pass
        before = before[: before.index(pickletools.markobject)] if pickletools.markobject in before else []
    for _ in before:
        if stack:
            stack.pop()
    stack += [UNKNOWN] * len(operation.stack_after)
