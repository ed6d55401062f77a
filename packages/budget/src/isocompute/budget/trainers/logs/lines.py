"""Logs in files: JSON lines, tables such as W&B's exports, and the state of a transformers Trainer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import BudgetError
from ...wording import reason
from .log import Layout, Log, Row, join, numbers
from .steps import step_columns, step_of

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


def read_lines(path: Path, layout: Layout, named: str | None) -> list[Log]:
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


def read_table(path: Path, layout: Layout, named: str | None) -> list[Log]:
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


def read_state(path: Path, layout: Layout) -> Log:
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


def _runs(path: Path, entries: Iterator[Entry], layout: Layout) -> list[Log]:
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
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise BudgetError(f"{path}: line {number} is not an object")
            inner = entry.pop("data") if isinstance(entry.get("data"), dict) else {}
            found.append((number, {**flat(inner), **flat(entry)}))
        except BudgetError:
            raise
        except (ValueError, RecursionError):
            # A run that was killed leaves its last line incomplete.
            if number < len(lines):
                raise BudgetError(f"{path}: line {number} is not JSON") from None
    return found
