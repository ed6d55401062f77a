"""The tables exchanged between parts: named, versioned schemas, checked whenever a table is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import TableError
from .files import atomic_write

if TYPE_CHECKING:
    import polars as pl

__all__ = ["METRIC_PATTERN", "TableError", "check", "check_version", "concat", "read", "schema", "write"]
METRIC_PATTERN = r"^(avg|best|worst)_at_\d+$"
TABLE_KEY, VERSION_KEY = "isocompute.table", "isocompute.schema_version"
"""Keys of a Parquet file's metadata."""
SUFFIXES = (".parquet", ".csv")
KINDS = {"i": "a whole number", "f": "a number", "b": "true or false", "s": "text"}
"""Column types in words, by first letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a schema.

    Attributes:
        type: One of ``str``, ``bool``, ``i32``, ``i64``, ``f32``, ``f64``, or a ``list[...]`` of one of these.
        optional: Whether the column may be absent (and its values null).
    """

    name: str
    type: str
    description: str
    optional: bool = False
    min: float | None = None
    max: float | None = None
    values: tuple[str, ...] = ()

    def dtype(self) -> Any:
        """The polars type of the column."""
        import polars as pl

        plain: dict[str, Any] = {"str": pl.String, "bool": pl.Boolean, "i32": pl.Int32, "i64": pl.Int64}
        plain |= {"f32": pl.Float32, "f64": pl.Float64}
        return pl.List(plain[self.type[5:-1]]) if self.type.startswith("list[") else plain[self.type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A named table, as in ``docs/artifacts.md``.

    Attributes:
        version: ``major.minor``. A new major version would be misread by older readers; a minor one adds columns.
        keys: Columns that identify a row; a table is sorted by them.
        metrics: Whether the table has columns such as ``avg_at_4``, at least one.
    """

    name: str
    version: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    metrics: bool = False


@cache
def schema(name: str) -> Schema:
    """Return the schema of the table called ``name``."""
    path = files(__package__) / "schemas" / f"{name}.json"
    if not path.is_file():
        raise TableError(f"there is no table called {name!r}")
    raw = json.loads(path.read_text("utf-8"))
    return Schema(**{**raw, "columns": tuple(Column(**column) for column in raw["columns"])})


def check(frame: pl.DataFrame, name: str, *, where: str) -> pl.DataFrame:
    """Check a table against its schema.

    Returns:
        The table with the schema's types, its columns first, sorted by the key.
    """
    import polars as pl

    wanted = schema(name)
    if frame.is_empty():
        raise TableError(f"{where}: the {name} table has no rows")
    missing = [c.name for c in wanted.columns if not c.optional and c.name not in frame.columns]
    if missing:
        raise TableError(
            f"{where}: the {name} table lacks the column{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)} (it has {', '.join(frame.columns)})"
        )
    present = [c for c in wanted.columns if c.name in frame.columns]
    if wanted.metrics:
        found = [c for c in frame.columns if re.match(METRIC_PATTERN, c)]
        if not found:
            raise TableError(f"{where}: the {name} table has no metric column such as avg_at_4")
        # Fill each ``avg_at_k`` from the others: the mean over samples estimates the same quantity for every k.
        averages = [c for c in found if c.startswith("avg_at_")]
        frame = frame.with_columns(pl.coalesce(c, *(o for o in averages if o != c)).alias(c) for c in averages)
        present += [Column(name=c, type="f64", description="metric", min=0, max=1) for c in found]
    frame = frame.with_columns(_checked(frame[column.name], column, name, where) for column in present)
    keys = list(wanted.keys)
    repeated = frame.select(keys).is_duplicated()
    if repeated.any():
        row = repeated.arg_true()[0]
        key = ", ".join(f"{k}={frame[k][row]}" for k in keys)
        raise TableError(f"{where}: row {row + 1} of the {name} table repeats the key {key}")
    first = [c.name for c in present]
    return frame.select(first + [c for c in frame.columns if c not in first]).sort(keys)


def _checked(series: pl.Series, column: Column, table: str, where: str) -> pl.Series:
    """Cast one column to its type, or say which row does not fit."""
    import polars as pl

    of_table = f"{where}: column {column.name} of the {table} table"

    def refuse(wrong: pl.Series, problem: str) -> None:
        # Hardly ever, and to look for the row takes ten times as long.
        if wrong.any():
            row = wrong.fill_null(False).arg_true()[0]
            raise TableError(f"{of_table}, row {row + 1}: {series[row]!r} {problem}")

    try:
        cast = series.cast(column.dtype(), strict=False)
    except pl.exceptions.PolarsError:
        raise TableError(f"{of_table} is {series.dtype}, not {column.type}") from None
    refuse(cast.is_null() & series.is_not_null(), f"is not {KINDS.get(column.type[0], column.type)}")
    if series.dtype.is_float() and cast.dtype.is_integer():
        refuse(cast.cast(series.dtype) != series, "is not a whole number")
    if not column.optional:
        refuse(cast.is_null(), "is missing")
    if cast.dtype.is_float():
        refuse(~cast.is_finite(), "is not a finite number")
    if column.min is not None:
        refuse(cast < column.min, f"is below {column.min:g}")
    if column.max is not None:
        refuse(cast > column.max, f"is above {column.max:g}")
    if column.values:
        refuse(~cast.is_in(list(column.values)), f"is not one of {', '.join(column.values)}")
    return cast


def read(source: str | Path, name: str) -> pl.DataFrame:
    """Read a table from any source.

    Args:
        source: A Parquet or CSV file, a folder with ``NAME.parquet`` files at any depth, ``mlflow:EXPERIMENT``,
            ``runs:/RUN_ID[/NAME]``, or a tracking URI (``sqlite:///…``, ``http://…``).

    Returns:
        The checked table; the tables of several files or runs are joined into one.
    """
    text, path = str(source), Path(source)
    if path.is_dir():
        return concat([_load(p, str(p)) for p in files_of(path, name)], name, where=text)
    if path.exists():
        return check(_load(path, text), name, where=text)
    from . import tracking

    if not tracking.is_of_mlflow(text):
        raise TableError(f"{path}: no such file or folder")
    return concat([_load(p, f"{text} ({p.parent.name})") for p in tracking.fetch(text, name)], name, where=text)


def files_of(folder: Path, name: str) -> list[Path]:
    """The files of a table in a folder, at any depth."""
    paths = sorted(folder.rglob(f"{name}.parquet")) or sorted(folder.rglob(f"{name}.csv"))
    if not paths:
        raise TableError(f"{folder}: the folder holds no {name}.parquet or {name}.csv")
    return paths


def _load(path: Path, where: str) -> pl.DataFrame:
    """Read one file of any table, unless its schema is newer than ours."""
    import polars as pl

    _check_suffix(path, where)
    try:
        if path.suffix == ".csv":
            return pl.read_csv(path)
        check_version(path, where=where)
        return pl.read_parquet(path)
    except pl.exceptions.NoDataError:
        raise TableError(f"{where}: the file is empty") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TableError(f"{where}: not readable as {path.suffix[1:]} ({reason})") from None


def _check_suffix(path: Path, where: object) -> None:
    if path.suffix not in SUFFIXES:
        raise TableError(f"{where}: a table is a .parquet or a .csv file")


def check_version(path: Path, *, where: str) -> None:
    """Refuse one of our Parquet files if its schema has a newer major version; a file without a version is accepted."""
    import polars as pl

    stated = pl.read_parquet_metadata(path)
    name, version = stated.get(TABLE_KEY, ""), stated.get(VERSION_KEY, "")
    major = version.partition(".")[0]
    package = "isocompute-" + (__package__ or "").split(".")[1]
    if not name or not major.isdigit():
        return
    try:
        known = schema(name).version.partition(".")[0]
    except TableError:
        raise TableError(f"{where}: {package} has no table named {name}: pip install --upgrade {package}") from None
    if int(major) > int(known):
        raise TableError(
            f"{where}: the {name} table has schema version {version}, and this {package} reads "
            f"{known}.x: pip install --upgrade {package}"
        )


def concat(frames: Iterable[pl.DataFrame], name: str, *, where: str = "memory") -> pl.DataFrame:
    """Join tables of one kind into one checked table; a row that occurs identically in two of them counts once."""
    import polars as pl

    checked = [check(frame, name, where=where) for frame in frames]
    if not checked:
        raise TableError(f"{where}: there is no {name} table")
    joined = pl.concat(checked, how="diagonal_relaxed")
    return check(joined.unique(maintain_order=True), name, where=where)


def write(frame: pl.DataFrame, name: str, path: str | Path) -> Path:
    """Check a table and write it atomically; a Parquet file states its schema's version.

    Args:
        path: A ``.parquet`` or ``.csv`` file; its folder is created if it does not exist.
    """
    import polars as pl

    path = Path(path)
    checked = check(frame, name, where=str(path))
    _check_suffix(path, path)
    stated = {TABLE_KEY: name, VERSION_KEY: schema(name).version}
    with atomic_write(path, error=TableError) as stream:
        try:
            if path.suffix == ".parquet":
                checked.write_parquet(stream, compression="zstd", statistics=False, metadata=stated)
            else:
                checked.write_csv(stream)
        except pl.exceptions.PolarsError as error:
            # polars reports a full disk as its own error, with the system's message at the end.
            raise OSError(str(error).rpartition("error: ")[2]) from None
    return path
