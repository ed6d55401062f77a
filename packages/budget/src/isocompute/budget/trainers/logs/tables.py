"""Rows in files: CSV and Parquet tables, JSON lines, and what veRL prints to a console.

CSV may be separated by commas, semicolons or tabs, with decimal commas for the latter two, and encoded in UTF-8 or
UTF-16. Every cell is text until ``log.cell`` has parsed it.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from ...contract.errors import printable
from ...errors import BudgetError, DamagedLogError, reason
from .log import LOG_CALLS, Log, LogLayout, Row, cell, fields_of, flat, join, row_of, step_columns, text_of

Entry = tuple[str, Mapping[str, Any], tuple[str, ...]]
"""A row's position, its fields, and the columns that count its steps."""
RUNS = ("run_id", "run", "run_name")
"""Columns that distinguish the runs in one file."""


def _runs(path: Path, entries: Iterable[Entry], layout: LogLayout, left_out: Sequence[str] = ()) -> list[Log]:
    """Sort rows by run; rows without a step are skipped if they hold nothing that is read."""
    by_run: dict[str, list[Row]] = {}
    stepless = None
    for where, entry, columns in entries:
        row = row_of(entry, columns, layout, where)
        if row is None:
            stepless = stepless or f"{where} has no {' or '.join(columns) or layout.steps[0]}"
            continue
        label = next((str(entry[c]) for c in RUNS if isinstance(entry.get(c), str | int)), "")
        by_run.setdefault(label, []).append(row)
    if not by_run:
        raise BudgetError(stepless or f"{path}: holds no metrics")
    logs = [join(f"{path} ({label})" if label else str(path), [rows], layout) for label, rows in by_run.items()]
    return [replace(log, left_out=tuple(left_out)) for log in logs]


def read_table(path: Path, data: bytes, layout: LogLayout, named: str | None) -> list[Log]:
    """The runs in a wide table, such as a CSV export of W&B, whose columns may be called ``RUN - METRIC``."""
    left_out: list[str] = []
    commas = False
    if data.startswith(b"PAR1"):
        if problem := _problem(data):
            raise DamagedLogError(f"{path}: is damaged, or no Parquet ({problem})")
        frame = pl.read_parquet(io.BytesIO(data))
        header, rows = frame.columns, [list(row) for row in frame.iter_rows()]
    else:
        known = {*layout.steps, *LOG_CALLS, named}
        header, rows, commas = _csv(path, text_of(path, data), known, left_out)
    if not rows:
        raise BudgetError(f"{path}: holds no rows")
    # A nameless column is the index that pandas writes, or comes from a trailing delimiter.
    names = {k: c.rpartition(" - ")[2] for k, c in enumerate(header) if c and not c.endswith(("__MIN", "__MAX"))}
    prefixes = {header[k].rpartition(" - ")[0] for k in names if " - " in header[k]}
    if len(prefixes) > 1:
        raise BudgetError(f"{path}: mixes the runs {', '.join(sorted(prefixes))}: export one run per file")
    times = Counter(names.values())
    again = [header[k] for k, name in names.items() if times[name] > 1]
    if again:
        raise BudgetError(f"{path}: has the column {again[0]!r} twice, as of two runs of one name: keep one of them")
    columns = step_columns(list(names.values()), layout, named, str(path))
    if not columns:
        raise BudgetError(f"{path}: has no column of steps ({', '.join(layout.steps)})")
    if commas:
        _swap(path, rows, {k: n for k, n in names.items() if n in columns or layout.needed.match(n)})

    def entries() -> Iterator[Entry]:
        for number, row in enumerate(rows, 1):
            fields = {name: row[k] for k, name in names.items() if row[k] not in (None, "")}
            yield f"{path}: row {number}", fields, columns

    return _runs(path, entries(), layout, left_out)


TRY = "import sys, polars; polars.read_parquet(sys.stdin.buffer)"
LONGEST = 300.0
"""Time limit for reading a table, in seconds."""


@lru_cache(maxsize=1)
def _problem(data: bytes) -> str:
    """Why a Parquet file cannot be read; empty if it can. Cached, since each trainer's reader asks.

    A single flipped bit in a size can end the process that reads the file, so another process tries it.
    """
    try:
        tried = subprocess.run([sys.executable, "-c", TRY], input=data, capture_output=True, timeout=LONGEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        return reason(error)
    said = tried.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return printable(said or f"exit status {tried.returncode}") if tried.returncode else ""


def _csv(
    path: Path, text: str, known: Collection[str | None], left_out: list[str]
) -> tuple[list[str], list[list[Any]], bool]:
    """Header, rows, and whether numbers may have decimal commas; known step columns determine the delimiter."""
    said = re.match(r"sep=(.)\r?\n", text)
    text = text[said.end() :] if said else text
    begin = text.lstrip("\r\n").split("\n", 1)[0]

    def columns(delimiter: str) -> list[str]:
        return [name.rpartition(" - ")[2].strip() for row in csv.reader([begin], delimiter=delimiter) for name in row]

    # The delimiter that gives the header a step column or, failing that, the most columns.
    best = max(",;\t", key=lambda d: (not set(known).isdisjoint(columns(d)), len(columns(d))))
    delimiter = said[1] if said else best
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[Any]] = []
    begins = 0
    try:
        for row in reader:
            rows += [row] if row else []
            begins = reader.line_num
    except csv.Error as error:
        if "end of data" not in str(error) or text.count("\n") > begins:
            raise DamagedLogError(f"{path}: is damaged, or no CSV: row {len(rows)} ({reason(error)})") from None
        left_out.append(f"{path}: its last row, {len(rows)}, is incomplete and is left out")
    header = [name.strip() for name in rows[0]] if rows else []
    for number, row in enumerate(rows[1:], 1):
        if len(row) == len(header):
            continue
        if number < len(rows) - 1 or len(row) > len(header) or text.endswith("\n"):
            uneven = f"row {number} has {len(row)} cells, and the header has {len(header)}"
            raise DamagedLogError(f"{path}: is damaged, or no CSV: {uneven}")
        left_out.append(f"{path}: its last row, {number}, is incomplete and is left out")
        del rows[-1]
    if len(rows) > 1 and not text.endswith(("\n", '"')) and not left_out:
        left_out.append(f"{path}: its last row has no end of line; where the file was cut off, its last number was too")
    return header, rows[1:], delimiter != ","


SWAP = str.maketrans(",.", ".,")
EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""A number whose comma may separate thousands or decimals."""


def _swap(path: Path, rows: Sequence[list[Any]], read: Mapping[int, str]) -> None:
    """Replace decimal commas by points, if a number in the columns that are read has no other meaning."""
    if not any(
        "," in row[k]
        and not EITHER.fullmatch(row[k].strip())
        and not _is_cell(row[k])
        and _is_cell(row[k].translate(SWAP))
        for row in rows
        for k in read
    ):
        return
    for number, row in enumerate(rows, 1):
        for k, text in enumerate(row):
            if _is_cell(text.translate(SWAP)):
                row[k] = text.translate(SWAP)
            elif _is_cell(text):
                if k in read:
                    raise DamagedLogError(
                        f"{path}: row {number} has the {read[k]} {text!r}, where other numbers have decimal commas"
                    )
                row[k] = None


def _is_cell(text: str) -> bool:
    try:
        cell(text)
    except ValueError:
        return False
    return True


def read_lines(path: Path, data: bytes, layout: LogLayout, named: str | None) -> list[Log]:
    """The runs in a file of JSON lines: flat metrics with a step, or veRL's ``{"step": …, "data": {…}}``."""
    left_out: list[str] = []
    lines = list(_objects(path, text_of(path, data), layout, left_out))
    if named is not None and not any(named in fields for _, fields in lines):
        raise BudgetError(f"{path}: no line has {named!r}")

    def entries() -> Iterator[Entry]:
        for number, fields in lines:
            where = f"{path}: line {number}"
            # W&B's count is refused only if the entry matters: tables and system metrics have lines of their own.
            matters = any(layout.needed.match(key) for key in fields)
            columns = (named,) if named else step_columns(fields, layout, None, where) if matters else layout.steps
            yield where, fields, columns

    return _runs(path, entries(), layout, left_out)


def _objects(path: Path, text: str, layout: LogLayout, left_out: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects in a file, flattened, each with its line number."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise DamagedLogError(f"{path}: line {number} is not an object")
            inner = entry.pop("data") if isinstance(entry.get("data"), dict) else {}
            fields = fields_of({**inner, **entry}, layout, f"{path}: line {number}")
        except BudgetError:
            raise
        except (ValueError, RecursionError):
            # A killed run leaves its last line incomplete, and a crash leaves zeros.
            if number < len(lines) or not (line.startswith("{") or not line.strip("\0")):
                raise DamagedLogError(f"{path}: line {number} is not JSON") from None
            left_out.append(f"{path}: its last line, {number}, is incomplete and is left out")
            return
        yield number, fields


STEP = re.compile(r"(?<![\w/])step:(\d+) - (?=\S.*?:)")
"""The beginning of a step in veRL's output; ``timing_s/step:12.3`` is a metric."""
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
RAY = re.compile(r"\s*\(([^()]*\bpid=\d+[^()]*)\) ?")
"""The prefix of output from another Ray process."""
REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*")
NUMPY = re.compile(r"np\.\w+\((.*)\)")


def is_console(text: str) -> bool:
    """Return whether a text contains a step as veRL prints it."""
    return STEP.search(text) is not None


def read_console(path: Path, data: bytes, layout: LogLayout, named: str | None) -> list[Log]:
    """The run in veRL's output: ``step:3 - key:value - key:value``, with or without Ray's prefix, between other text.

    The format is that of ``verl/utils/logger/aggregate_logger.py``: older versions print three decimals, newer ones all
    of them, and ``np.float64(0.5)`` if NumPy does. The trainer also prints its configuration when it starts.
    """
    left_out: list[str] = []
    lines = text_of(path, data).split("\n")
    if "step:" in lines[-1]:
        left_out.append(f"{path}: its last line, {len(lines)}, has no end and is left out")

    def entries() -> Iterator[Entry]:
        for number, line in enumerate(lines[:-1], 1):
            where = f"{path}: line {number}"
            for part in line.split("\r"):
                if found := STEP.search(ANSI.sub("", part)):
                    if "\0" in part or "\ufffd" in part:
                        raise DamagedLogError(f"{where} is damaged")
                    metrics = REPEATED.sub("", ANSI.sub("", part)[found.end() :])
                    yield where, {**_metrics(metrics, where, left_out), "step": found[1]}, (named or "step",)

    logs = _runs(path, entries(), layout)
    config, changed = _configuration(path, lines)
    return [replace(log, config=config, changed=changed, left_out=tuple(left_out)) for log in logs]


def _metrics(text: str, where: str, left_out: list[str]) -> dict[str, str]:
    """The metrics in a line."""
    metrics, begin = {}, ""
    for part in text.split(" - "):
        key, colon, value = part.rpartition(":")
        if colon:
            metrics[begin + key] = NUMPY.sub(r"\1", value.strip())
        # A data source may be called "a - b".
        begin = "" if colon else f"{begin}{part} - "
    if begin:
        left_out.append(f"{where} ends with {begin[:-3]!r}, which has no value and is left out")
    return metrics


def _configuration(path: Path, lines: Sequence[str]) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """The configuration that veRL printed at its last start, and what that start changed."""
    config: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}
    open_by: dict[str, list[str]] = {}
    for line in lines:
        plain = ANSI.sub("", line.rstrip("\r"))
        prefix = RAY.match(plain)
        process, plain = (prefix[1], plain[prefix.end() :]) if prefix else ("", plain)
        if plain.startswith("{'"):
            open_by[process] = []
        if process not in open_by:
            continue
        open_by[process].append(plain)
        if not plain.endswith("}") and len(open_by[process]) < MOST_LINES:
            continue
        document = _literal("\n".join(open_by[process]))
        if document or len(open_by[process]) >= MOST_LINES:
            del open_by[process]
        if {"actor_rollout_ref", "data"} <= document.keys():
            one = flat(document, path)
            changed |= {key: (config[key], v) for key, v in one.items() if config.get(key, v) != v}
            config |= one
    return config, changed


MOST_LINES = 5_000
"""Most lines in a configuration."""


def _literal(text: str) -> dict[str, Any]:
    """A dictionary as Python prints it, empty if the text is not one."""
    try:
        # Infinity has no literal.
        document = ast.literal_eval(re.sub(r"(?<=: )-?(?:inf|nan)(?=[,}\]])", "None", text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return document if isinstance(document, dict) else {}
