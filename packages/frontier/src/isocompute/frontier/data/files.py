"""Files of any columns: CSV, Parquet, JSON or JSON lines, read as they are or as columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from ..contract import tables
from ..contract.errors import TableError
from ..contract.files import atomic_write
from ..errors import FrontierError


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the others; the same table gives the same bytes.

    Raises:
        FrontierError: It cannot be written.
    """
    with atomic_write(path, error=FrontierError) as stream:
        frame.write_parquet(stream, compression="zstd", statistics=False)


def read_file(path: Path) -> pl.DataFrame:
    """Read a CSV, Parquet, JSON or JSON-lines file without changes.

    Raises:
        FrontierError: It cannot be read, or is not what its name says, or is empty.
        TableError: It is a table of ours of a newer major schema version.
    """
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": pl.read_csv,
        ".parquet": pl.read_parquet,
        ".jsonl": pl.read_ndjson,
        ".json": pl.read_json,
    }
    if path.suffix not in readers:
        raise FrontierError(f"{path}: a file of evaluations ends in {', '.join(readers)}")
    try:
        if path.suffix == ".parquet":
            tables.check_version(path, where=str(path))
        # Rows enough that a column of whole numbers with a fraction far down is still read as numbers.
        frame = pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else readers[path.suffix](path)
    except FileNotFoundError:
        raise FrontierError(f"{path}: there is no such file") from None
    except TableError:
        raise
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FrontierError(f"{path}: cannot be read as {path.suffix[1:]} ({first})") from None
    if frame.is_empty():
        raise FrontierError(f"{path}: holds no rows")
    return frame


def numbers(frame: pl.DataFrame, name: str, path: Path) -> np.ndarray:
    """A column of finite numbers, shape ``(rows,)``.

    Raises:
        FrontierError: The column is missing, or a row holds no finite number.
    """
    if name not in frame.columns:
        raise FrontierError(f"{path}: has no column {name!r}; it has {', '.join(frame.columns)}")
    column = frame[name]
    values = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise FrontierError(
            f"{path}: the column {name} must hold finite numbers, but row {row + 1} holds {column[row]!r}"
        )
    return np.asarray(values)


def read_columns(path: Path, names: Sequence[str], *, where: Mapping[str, str] | None = None) -> list[np.ndarray]:
    """Read numeric columns of a file.

    Args:
        where: Only rows in which these columns hold these values.

    Raises:
        FrontierError: The file cannot be read, lacks a column, holds no number where one must be, or no row
            is left.
        TableError: The file is a table of ours of a newer major schema version.
    """
    frame = read_file(path)
    for name, value in (where or {}).items():
        if name not in frame.columns:
            raise FrontierError(f"{path}: has no column {name!r}; it has {', '.join(frame.columns)}")
        frame = frame.filter(pl.col(name).cast(pl.String) == value)
        if frame.is_empty():
            raise FrontierError(f"{path}: no row has {name} = {value}")
    return [numbers(frame, name, path) for name in names]


def read_series(
    path: Path, x: str, y: str, *, by: str, where: Mapping[str, str] | None = None, least: float = 0.0,
    most: float = float("inf"),
) -> dict[str, tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """Read the curves that a column tells apart, sorted by compute.

    Args:
        y: Column of rewards, within 0 to 1.
        where: Only rows in which these columns hold these values.

    Raises:
        FrontierError: As for ``read_columns``, or a reward lies outside 0 to 1.
    """
    frame = read_file(path)
    if by not in frame.columns:
        raise FrontierError(f"{path}: has no column {by!r}; it has {', '.join(frame.columns)}")
    found = {}
    for name in frame[by].cast(pl.String).unique().drop_nulls().sort().to_list():
        compute, reward = read_columns(path, [x, y], where={**(where or {}), by: name})
        if ((reward < 0) | (reward > 1)).any():
            raise FrontierError(f"{path}: the column {y} has rewards of {name} outside 0 to 1")
        kept = np.argsort(compute, kind="stable")
        kept = kept[(compute[kept] >= least) & (compute[kept] <= most)]
        found[name] = (compute[kept], reward[kept])
    return found
