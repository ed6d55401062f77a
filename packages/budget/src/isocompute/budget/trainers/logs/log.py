"""One run's log: the content of its file, the numbers and steps of its entries, and the entries joined by step.

Only regular files are opened, since reading a pipe or a device might never end. A compressed file is not unpacked
beyond ``LARGEST``. Any problem with a file is reported in one sentence that names it.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from io import BufferedIOBase
from itertools import count
from pathlib import Path, PurePath
from typing import IO, Any

from ...contract.documents import DEEPEST
from ...errors import BudgetError, DamagedLogError, reason, shorten

Row = tuple[int, Mapping[str, float]]


EVALUATED = re.compile(r"(?:eval|val|test)[-_/]")
"""Metrics of evaluations, by any trainer."""


class TwoRunsError(BudgetError):
    """One log holds the entries of two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayout:
    """The layout of a trainer's logs.

    Attributes:
        steps: Columns that count the trainer's steps; the first one that a row has is used. W&B's own ``_step``
            (``Step`` in its exports) is included only if the trainer passes its step to W&B; otherwise it counts calls
            of the logger.
        entry: Renames the metrics of one entry before the entries of a step are joined; None keeps the names.
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
        restarts: First step logged after each start from a checkpoint that the log shows.
        changed: Settings that a later start changed, each with its values before and after.
        left_out: Parts of the source that were not read, such as a last entry cut off by a kill.
    """

    name: str
    rows: list[tuple[int, dict[str, float]]]
    config: dict[str, Any] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def keys(self) -> set[str]:
        """Names of all its metrics."""
        return {key for _, metrics in self.rows for key in metrics}


def join(name: str, starts: Sequence[Iterable[Row]], layout: LogLayout, config: Mapping[str, Any] | None = None) -> Log:
    """Join the entries of a run, in the order in which they were logged.

    A run that was killed and resumed from a checkpoint logs some steps twice. The later attempt is the one that
    continued, so what the earlier one logged from that step on is dropped. A step that only evaluates twice (after
    training, or at a start from its checkpoint) was not taken again. Then the first evaluation counts, since it surely
    belongs to that step. If only evaluations are logged, the later one counts.

    Args:
        starts: Metrics by step, for each known start of the trainer.

    Raises:
        TwoRunsError: The entries come from two runs: the steps of a metric begin again.
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
            # Each metric has its own clock: a slow evaluation is logged after later steps. A metric that was already
            # logged with another value, for this step or a later one, went back.
            back = [
                key
                for key in needed
                if step < latest.get(key, -1) or (step == latest.get(key) and whole[step][key] != metrics[key])
            ]
            counted = any(not EVALUATED.match(key) for key in latest)
            if back and counted and all(EVALUATED.match(key) and first[key] < step == latest[key] for key in back):
                notes.append(f"{name} evaluated step {step} again: the first evaluation counts")
                metrics = {key: value for key, value in metrics.items() if not EVALUATED.match(key)}
                needed = [key for key in needed if key in metrics]
                back = []
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
                # A start no longer counts if the run went back before it.
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


def cell(value: Any) -> float | None:
    """The number in a cell, or None if the cell is empty: blank, a dash, NaN, None, null or N/A.

    Commas may separate thousands if nothing else can be meant, as in ``2,010.5``; ``2,010`` is ambiguous.

    Raises:
        ValueError: It is neither; true, false and lists are not numbers.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.strip("+-").lower() in EMPTY:
            return None
        if GROUPED.fullmatch(text):
            text = text.replace(",", "")
        number = float(text)
        if "_" in text or not text.isascii() or (math.isinf(number) and text[-1].isdigit()):
            raise ValueError(text)
    elif value is None:
        return None
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(value)
    else:
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(value) from None
    return None if math.isnan(number) else number


EMPTY = frozenset({"", "nan", "none", "null", "n/a", "#n/a", "na", "<na>"})
GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})", re.ASCII)


def metrics_of(entry: Mapping[str, Any], layout: LogLayout, where: str) -> dict[str, float]:
    """The finite numbers of a log entry; infinity counts as empty, since no count or rate can be infinite."""
    metrics = {}
    for key, value in entry.items():
        try:
            number = cell(value)
        except ValueError:
            if layout.needed.match(key) and not _is_media(key, value, entry):
                raise DamagedLogError(
                    f"{where} has the {key} {shorten(value)}, which is neither a number, such as 2010.5, nor empty"
                ) from None
            continue
        if number is not None and math.isfinite(number):
            metrics[key] = number
    return metrics


def _is_media(key: str, value: Any, entry: Mapping[str, Any]) -> bool:
    """Return whether a value refers to a table or an image that W&B or Trackio store elsewhere: ``{"_type": …}``."""
    parts = key.split(".")
    inside = any(".".join([*parts[:k], "_type"]) in entry for k in range(1, len(parts)))
    whole = isinstance(value, Mapping) or (isinstance(value, str) and value.startswith("{"))
    return inside or (whole and "_type" in value)


LOG_CALLS = ("_step", "Step")
"""Columns with W&B's own count, in its histories and in its exports."""


def step_columns(names: Collection[str], layout: LogLayout, named: str | None, where: str) -> tuple[str, ...]:
    """The columns of a log that count the trainer's steps, the preferred one first; none if it has no steps."""
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
    """The trainer's step in a row, or None if it has none; ``3/50`` is step 3 of 50, as ms-swift writes it."""
    for column in columns:
        value = entry.get(column)
        if isinstance(value, str) and (parts := re.fullmatch(r"(\d{1,15})/\d+", value.strip(), re.ASCII)):
            value = int(parts[1])
        try:
            number = cell(value)
        except ValueError:
            number = math.nan
        if number is None:
            continue
        if not abs(number) < 2**53 or number != int(number):
            shown = shorten(value) if math.isnan(number) else f"{number:g}"
            raise DamagedLogError(f"{where} has the {column} {shown}, which is not a whole number")
        if number < 0:
            raise DamagedLogError(f"{where} has the {column} {number:g}; steps count from 0")
        return int(number)
    return None


def row_of(entry: Mapping[str, Any], columns: tuple[str, ...], layout: LogLayout, where: str) -> Row | None:
    """The step and the metrics of an entry; None if it has neither a step nor anything that is read."""
    step, metrics = step_of(entry, columns, where), metrics_of(entry, layout, where)
    if step is not None:
        return step, metrics
    if any(layout.needed.match(key) for key in metrics):
        raise DamagedLogError(f"{where} has no {' or '.join(columns) or layout.steps[0]}")
    return None


LONGEST_KEY = 1_000
MOST_KEYS = 100_000


def flat(document: Mapping[Any, Any], where: Path | str) -> dict[str, Any]:
    """Flatten nested mappings: dotted keys, lists of mappings by index, W&B's ``{"value": …}`` as its value."""
    out: dict[str, Any] = {}
    visited = count(1)

    def add(prefix: str, mapping: Mapping[Any, Any], depth: int) -> None:
        if depth > DEEPEST:
            raise BudgetError(f"{where}: is nested more than {DEEPEST} deep, or contains itself")
        for key, value in mapping.items():
            name = prefix + (key if isinstance(key, str) else shorten(key))
            if next(visited) > MOST_KEYS:
                raise BudgetError(f"{where}: holds more than {MOST_KEYS:,} keys")
            if len(name) > LONGEST_KEY:
                raise BudgetError(f"{where}: holds a key of more than {LONGEST_KEY:,} characters")
            if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}:
                value = value["value"]
            if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
                value = dict(enumerate(value))
            if isinstance(value, Mapping):
                add(f"{name}.", value, depth + 1)
            else:
                out[name] = value

    add("", document, 1)
    return out


def fields_of(document: Mapping[str, Any], layout: LogLayout, where: Path | str) -> dict[str, Any]:
    """The flattened fields of a logged object; a nested value in place of a needed metric stays whole, for refusal."""
    whole = {
        k: v for k, v in document.items() if isinstance(v, Mapping) and layout.needed.match(k) and "_type" not in v
    }
    return {**flat(document, where), **whole}


LARGEST = 2**31
"""Most bytes that a compressed file may unpack to."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def _only_member(stream: IO[bytes]) -> IO[bytes]:
    """The only file in an archive."""
    archive = zipfile.ZipFile(stream)
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if "xl/workbook.xml" in names:
        raise BudgetError("is a workbook: save its sheet as CSV")
    if len(names) != 1:
        raise BudgetError(f"is an archive of {len(names)} files: unpack it")
    return archive.open(names[0])


def _zstd(stream: IO[bytes]) -> IO[bytes]:
    raise BudgetError(f"is compressed by zstd: unpack it with zstd -d {Path(stream.name).name}")


OPENERS: dict[bytes, Callable[[IO[bytes]], BufferedIOBase | IO[bytes]]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"PK\x03\x04": _only_member,
    b"\x28\xb5\x2f\xfd": _zstd,
}
"""The unpacker for a file that begins with these bytes."""
UNPACKING = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, KeyError)
"""Errors from a damaged archive, besides OSError and ValueError; a password raises RuntimeError."""
BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by byte order mark; UTF-32's begins like UTF-16's and must come first."""


def name_of(path: Path) -> PurePath:
    """The name of a file's content: without a compression suffix, ``run.csv`` for ``run.csv.gz``."""
    return PurePath(path.stem if path.suffix.lower() in PACKED else path.name)


def require_regular(path: Path) -> None:
    """Refuse anything that is not a regular file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise BudgetError(f"{path}: is {kind} and no file")


def content(path: Path) -> bytes:
    """The content of a file, unpacked."""
    require_regular(path)
    opener = None
    try:
        with path.open("rb") as stream:
            first = stream.read(8)
            stream.seek(0)
            opener = next((o for mark, o in OPENERS.items() if first.startswith(mark)), None)
            if opener is None:
                return stream.read()
            data = opener(stream).read(LARGEST + 1)
    except BudgetError as error:
        raise BudgetError(f"{path}: {error}") from None
    except (*UNPACKING, OSError, ValueError) as error:
        if opener is None:
            raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
        raise DamagedLogError(f"{path}: is damaged: it cannot be unpacked ({reason(error)})") from None
    if len(data) > LARGEST:
        raise BudgetError(f"{path}: unpacks to more than {LARGEST:,} bytes")
    return data


def text_of(path: Path, data: bytes) -> str:
    """Text in UTF-8, or in UTF-16 or UTF-32 as Windows writes them."""
    encoding = next((name for mark, name in BOMS.items() if data.startswith(mark)), "utf-8")
    if encoding == "utf-8" and b"\0" in data[:2]:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DamagedLogError(
            f"{path}: is damaged, or no text in UTF-8 or UTF-16 (byte {error.start + 1:,}): save it as UTF-8"
        ) from None
