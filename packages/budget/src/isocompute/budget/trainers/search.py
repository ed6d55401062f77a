"""Logs in folders: every file that looks like one is read, or reported with the reason why it was not.

A file looks like a log by its name or its content, and its metrics tell which trainer wrote it. A readable file without
any trainer's metrics is not a log.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isclose
from pathlib import Path
from typing import Any

from ..contract.tracking import is_of_mlflow
from ..errors import BudgetError, DamagedLogError, reason
from .logs.log import LOG_CALLS, OPENERS, PACKED, Log, LogLayout, content, name_of, text_of
from .logs.records import WANDB
from .logs.sources import (
    EVENTS,
    EVENTS_BEGIN,
    OF_MLFLOW,
    SQLITE,
    STATE,
    has_metrics,
    last_states,
    opened,
    read_logs,
    runs_of,
)
from .registry import READERS, TRAINERS
from .settings import Settings, load, plain
from .trainer import LogReader, Trainer

NAMED = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".wandb", ".db")
"""Suffixes of files that look like logs, also if compressed; other files are judged by their content."""
LOGS = (*NAMED, ".log", ".txt", ".out")
"""Suffixes of files that loggers write to."""
SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "completions"}
NO_LOGS = re.compile(
    r".*\.(pyi?|ipynb|md|rst|html|css|js|ts|tex|sh|bash|ya?ml|toml|ini|cfg|lock|svg|png|jpg|pdf|npy|npz|pth?|bin"
    r"|safetensors|so|c|cc|cpp|h|cu|rs|go|java|xml)",
    re.IGNORECASE,
)
"""Suffixes of files that are not logs, though they may mention metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that looks like a log but was not read."""

    source: str
    reason: str


def log_sources(source: str) -> tuple[list[str], list[Unread]]:
    """Find possible logs of runs under a source, to be read one by one, and what cannot be opened.

    Only regular files are opened, and links to folders are not followed.
    """
    path = Path(source)
    if not path.exists():
        if is_of_mlflow(source):
            return [source], []
        raise BudgetError(f"{path}: there is no such file or folder")
    if path.is_dir():
        return _below(path)
    return ([_source_of(path) or source], []) if path.is_file() else ([], [_no_file(path)])


def _below(root: Path) -> tuple[list[str], list[Unread]]:
    sources, unread = [str(state) for state in last_states(root) if state.is_file()], []
    beside = [reader.beside for reader in READERS.values() if reader.beside]

    def closed(error: OSError) -> None:
        unread.append(Unread(source=str(error.filename), reason=f"cannot be opened ({reason(error)})"))

    for folder, below, files in os.walk(root, onerror=closed):
        here = Path(folder)
        # MLflow's file store, such as mlruns.
        if any(b"artifact_location" in _head(meta) for meta in sorted(here.glob("*/meta.yaml"))[:3]):
            sources.append(here.resolve().as_uri())
            below.clear()
            continue
        links = [here / name for name in below if name not in SKIPPED and (here / name).is_symlink()]
        # A link's target is read at its own place if that is under the root too.
        away = [link for link in links if not link.resolve().is_relative_to(root.resolve())]
        unread += [Unread(source=str(link), reason="links to another folder: name that one") for link in sorted(away)]
        below[:] = sorted(name for name in below if name not in SKIPPED and here / name not in links)
        events = False
        for path in [here / name for name in sorted(files)]:
            if not path.is_file():
                named = _named_like_a_log(path) or path.suffix.lower() in LOGS
                unread += [_no_file(path)] if named else []
            elif path.name.startswith(EVENTS):
                sources += [] if events else [str(path)]
                events = True
            elif path.name != STATE and not any(names.fullmatch(path.name) for names in beside):
                sources += [found for found in (_source_of(path),) if found is not None]
    return sources, unread


def _named_like_a_log(path: Path) -> bool:
    name = name_of(path)
    return name.name == STATE or name.name.startswith(EVENTS) or name.suffix.lower() in NAMED


def _no_file(path: Path) -> Unread:
    what = "links to nothing" if path.is_symlink() and not path.exists() else "is a pipe, a socket or a device"
    return Unread(source=str(path), reason=what)


def _source_of(path: Path) -> str | None:
    """The source that a file is read as, or None if it is not a log."""
    if _head(path).startswith(SQLITE):
        return _database(path)
    if path.suffix.lower() == ".parquet" and _footer(path):
        # Tables of rollouts are large.
        return str(path) if mentioned(path) else None
    if _named_like_a_log(path) or _kind(path):
        return str(path)
    if _is_packed(path) and name_of(path).suffix.lower() in LOGS and not _text(path):
        return str(path)
    return str(path) if not NO_LOGS.fullmatch(path.name) and mentioned(path) else None


def _database(path: Path) -> str | None:
    """An MLflow database as a tracking URI, or a Trackio database; None for others and if nothing was logged."""
    try:
        with opened(path) as (database, tables):
            if not (has_metrics(database, tables) if "metrics" in tables else "experiments" in tables):
                return None
    except (sqlite3.Error, OSError, ValueError):
        # Its reader says what is wrong with it.
        return str(path)
    return f"sqlite:///{path.resolve()}" if tables >= OF_MLFLOW else str(path)


def _head(path: Path, length: int = 2**12) -> bytes:
    """The first bytes of a regular file; none for anything else."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(length)
    return b""


def _kind(path: Path) -> str:
    """The kind of a file from its content, whatever its name."""
    head = _head(path, 64)
    return "wandb" if head.startswith(WANDB) else "events" if EVENTS_BEGIN in head else ""


LONGEST = 2**26
"""Most bytes of a text to search for metrics."""
KEYS = (
    # JSON, veRL's console and the first row of a table.
    re.compile(r"\"([^\"\\\n]{3,200})\"\s*:\s*(?:-?\d|null|NaN)"),
    re.compile(r"(?<= - )([\w@./-]{3,200}):-?[\d.]"),
)


@cache
def _trainers_of(key: str) -> frozenset[str]:
    """The trainers that log a metric and that no other one logs."""
    found = set()
    for name, reader in READERS.items():
        entry = reader.layout.entry
        names = entry({key: 0.0}) if entry else {key: 0.0}
        found |= {name} if any(map(reader.marks.match, names)) else set()
    return frozenset(found)


def mentioned(path: Path) -> set[str]:
    """Names of the trainers that a text or Parquet file holds a metric of, as the key of a number."""
    footer = _footer(path)
    if footer:
        # Column names are plain text there; polars may crash on a damaged file.
        return set().union(*map(_trainers_of, re.findall(r"[\w@./-]+", footer.decode("utf-8", "replace"))))
    text = _text(path)
    if path.suffix.lower() == ".json" and not re.match(r"\s*\{.+\}\s*\n|[^\0]*\"log_history\"", text):
        # A document, such as the results at a run's end, is not a log.
        return set()
    keys = {key for pattern in KEYS for key in pattern.findall(text)}
    cells = re.split(r"[,;\t]", text.strip("\ufeff\n\r ").partition("\n")[0])
    keys |= {cell.strip("\" '\r").rpartition(" - ")[2] for cell in cells} if len(cells) > 1 else set()
    return set().union(*map(_trainers_of, keys))


def _footer(path: Path) -> bytes:
    """The part of a Parquet file that describes its content; empty if it is not Parquet or is truncated."""
    with suppress(OSError, ValueError), path.open("rb") as stream:
        size = stream.seek(-8, os.SEEK_END)
        length = int.from_bytes(stream.read(4), "little")
        if stream.read(4) == b"PAR1" and length <= size:
            stream.seek(size - length)
            return stream.read(length)
    return b""


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED or _head(path).startswith((*OPENERS,))


def _text(path: Path) -> str:
    """The beginning of a text; empty if it cannot be unpacked or is not text."""
    if _is_packed(path):
        with suppress(BudgetError):
            if name_of(path).suffix.lower() in (*LOGS, ".json", ""):
                return text_of(path, content(path))
        return ""
    # Lost blocks of a file system read as zeros, which does not make the file binary.
    begin = re.sub(rb"\0{64,}", b"", _head(path))
    if begin.count(0) + begin.decode("utf-8", "replace").count("\ufffd") > 0.6 * len(begin):
        return ""
    data = _head(path, LONGEST)
    with suppress(BudgetError):
        return text_of(path, data)
    return data.decode("utf-8", "replace")


def read_source(
    source: str, trainer: str | None = None, *, step_column: str | None = None
) -> tuple[dict[str, list[Log]], list[Unread]]:
    """The runs of a log by trainer, and what was not read and why; neither if it is not a log."""
    path = Path(source)
    if not path.exists() and is_of_mlflow(source):
        return _stored(source, trainer)
    if path.stat().st_size == 0:
        return {}, [Unread(source=source, reason="is empty")]
    name = str(path.parent if path.name.startswith(EVENTS) else path)
    try:
        return _claimed(name, partial(read_logs, source, step_column=step_column), trainer), []
    except (BudgetError, OSError) as error:
        return {}, [_unread(source, error)]


def _stored(source: str, trainer: str | None) -> tuple[dict[str, list[Log]], list[Unread]]:
    """The runs of an MLflow store, each read separately."""
    found: dict[str, list[Log]] = {}
    unread: list[Unread] = []
    for name, metrics, read in runs_of(source):
        if trainer is None and not any(map(_trainers_of, metrics)):
            continue
        try:
            for key, logs in _claimed(name, read, trainer).items():
                found.setdefault(key, []).extend(logs)
        except BudgetError as error:
            unread.append(_unread(name, error))
    return found, unread


def _unread(source: str, error: Exception) -> Unread:
    said = reason(error) if isinstance(error, OSError) else str(error)
    return Unread(source=source, reason=said.removeprefix(f"{source}: "))


def _claimed(source: str, logs_in: Callable[[LogLayout], list[Log]], trainer: str | None) -> dict[str, list[Log]]:
    """Runs by the trainer whose metrics they hold."""
    found: dict[str, list[Log]] = {}
    claimed: set[str] = set()
    problems: dict[str, BudgetError] = {}
    readers = {name: reader for name, reader in READERS.items() if trainer in (None, name)}
    for name, reader in readers.items():
        marks = reader.marks if trainer is None else reader.layout.needed
        try:
            logs = logs_in(reader.layout)
        except BudgetError as error:
            problems[name] = error
            continue
        own = [g for g in logs if g.name not in claimed and any(map(marks.match, {*g.config, *g.keys}))]
        if own:
            found[name] = own
            claimed |= {log.name for log in own}
        if own and all(log.name == source for log in logs):
            # These files hold one run each; a file with several may hold runs of several trainers.
            break
    if found or not problems:
        return found
    theirs = mentioned(Path(source)) if Path(source).is_file() else set(problems)
    for name in [*(name for name in problems if name in theirs), *problems]:
        # A file that fits some layout is read, but is a log only if it holds what the other readers need.
        damaged = len(problems) == len(readers) and isinstance(problems[name], DamagedLogError)
        if name in theirs or damaged or trainer is not None or _is_decided(Path(source)):
            raise problems[name]
    return found


def _is_decided(path: Path) -> bool:
    """Return whether a file that fits no trainer's layout is a log by its name, or may be one that was cut off."""
    if path.name.startswith(EVENTS) or _kind(path):
        return bool(read_logs(str(path), _anyones()))
    if path.name == STATE or name_of(path).suffix.lower() in (".wandb", ".db"):
        return True
    named = _named_like_a_log(path) or _is_packed(path)
    return named and "\n" not in _text(path).strip()


@cache
def _anyones() -> LogLayout:
    """The layout of any trainer's log, to see whether it holds any trainer's metrics."""
    marks = "|".join(re.sub(r"\(\?P<\w+>", "(", reader.marks.pattern) for reader in READERS.values())
    steps = dict.fromkeys([*(step for reader in READERS.values() for step in reader.layout.steps), *LOG_CALLS])
    return LogLayout(steps=tuple(steps), needed=re.compile(f"(?:train/|eval/)?(?:{marks})"))


BESIDE = (".hydra/config.yaml", "config.yaml", "config.json", "args.json")
"""Configuration files beside a log or in the folder above."""
ANYBODYS = {"num_processes", "nproc_per_node", "nnodes", "world_size", "max_steps", "num_train_epochs", "eval_strategy"}
"""Settings that launchers' and other trainers' files contain too."""


@cache
def _names(name: str) -> frozenset[str]:
    """Names of the settings that determine a trainer's batches."""
    empty = Settings(values={}, where=name)
    TRAINERS[name].parse(empty)
    return frozenset(empty.read - ANYBODYS)


def with_settings_beside(log: Log, source: str, known: Trainer, shared: Mapping[str, Any]) -> Log:
    """Add to a log the settings of the nearest configuration beside it that the log and ``shared`` lack."""
    path = Path(source)
    folder, notes = path if path.is_dir() else path.parent, []
    for file in [Path(os.path.normpath(f / name)) for f in (folder, folder / "..") for name in BESIDE]:
        if not file.is_file():
            continue
        try:
            said = plain(load(file))
        except BudgetError as error:
            notes.append(f"NOT READ: {error}")
            continue
        if not said.keys() & _names(known.name):
            continue
        own = {key: value for key, value in plain(log.config, log.name).items() if value is not None}
        read = {*_names(known.name), *READERS[known.name].seeds, *READERS[known.name].learning_rates}
        new = {key: value for key, value in said.items() if key not in own and key not in shared}
        other = sorted(k for k in read & said.keys() & own.keys() if str(own[k]) != str(said[k]))
        if new.keys() & read:
            notes.append(f"settings of {file}, which lies beside it")
        if other:
            values = ", ".join(f"{key} {own[key]} and not {said[key]}" for key in other)
            notes.append(f"its log says {values} as {file} does: the log counts")
        config = {**(new if new.keys() & read else {}), **log.config}
        return replace(log, config=config, notes=(*log.notes, *notes))
    return replace(log, notes=(*log.notes, *notes))


MOST_DIFFERING = 5
"""Most differing settings to name for two logs of one run."""


def once(
    logs: Sequence[Log], reader: LogReader, apart: Callable[[str, str], bool] = lambda one, other: False
) -> list[Log]:
    """Merge logs of the same run: the longest one's rows, values that only the others have, and all configurations.

    Args:
        apart: Whether two logs, given by name, are known to belong to different runs.
    """
    out: list[Log] = []
    for log in sorted(logs, key=lambda log: -len(log.rows)):
        alike = (k for k, other in enumerate(out) if _same(other, log, reader) and not apart(other.name, log.name))
        same = next(alike, None)
        if same is None:
            out.append(log)
        else:
            # A logger may have been killed before it wrote its last entry, an evaluation.
            kept = re.compile(rf"trainer_state\.|{reader.layout.needed.pattern}")
            rows = {s: own for s, m in log.rows if (own := {k: v for k, v in m.items() if kept.match(k)})}
            rows |= {s: {**rows.get(s, {}), **m} for s, m in out[same].rows}
            first = out[same]
            differ = sorted(k for k in log.config.keys() & first.config.keys() if log.config[k] != first.config[k])
            values = ", ".join(f"{k} {log.config[k]} and not {first.config[k]}" for k in differ[:MOST_DIFFERING])
            note = (f"{log.name} logs the same and has {values}: those of {first.name} count",) if differ else ()
            out[same] = replace(
                first,
                config={**log.config, **first.config},
                rows=sorted(rows.items()),
                also=(*first.also, log.name, *log.also),
                notes=(*first.notes, *note),
            )
    return sorted(out, key=lambda log: log.name)


def _same(one: Log, other: Log, reader: LogReader) -> bool:
    """Return whether two logs are of one run: all values that both logged agree, and so do seed and learning rate."""
    configs = plain(one.config, one.name), plain(other.config, other.name)
    for name in (*reader.seeds, *reader.learning_rates):
        values = {config[name] for config in configs if isinstance(config.get(name), int | float)}
        if len(values) > 1:
            return False
    first = dict(one.rows)
    pairs = [
        (first[step][key], value)
        for step, metrics in other.rows
        for key, value in metrics.items()
        if step in first and key in first[step] and reader.layout.needed.match(key)
    ]
    return len(pairs) > 1 and all(isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in pairs)
