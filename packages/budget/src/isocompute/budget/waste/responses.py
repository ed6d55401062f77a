"""The columns of a ``rollouts`` table that show what training learnt from: four of them are enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..contract import tables, tracking
from ..contract.errors import printable
from ..wording import reason

if TYPE_CHECKING:
    import polars as pl

NEEDED = ("run_id", "step", "problem_id", "reward")
"""Columns that must be there."""

USED = ("phase", "sample", "prompt_ids", "response_ids", "finish_reason")
"""Columns without which phases, tokens, and truncated and failed responses stay unknown."""


def read(source: str | Path) -> pl.DataFrame:
    """Read responses from wherever a ``rollouts`` table is.

    Args:
        source: As ``tables.read`` takes it: a Parquet or CSV file, a folder of ``rollouts.parquet`` files, or MLflow.

    Returns:
        As ``training`` returns it; a response that occurs in two files counts once.

    Raises:
        TableError: There is no such source, or what it holds is not the table.
        TrackingError: MLflow does not hold it.
    """
    import polars as pl

    text = str(source)
    if text.startswith(("mlflow:", "runs:/")) or tracking.is_store(text):
        paths = tracking.fetch(text, "rollouts")
    elif (path := Path(source)).is_dir():
        paths = sorted(path.rglob("rollouts.parquet")) or sorted(path.rglob("rollouts.csv"))
        if not paths:
            raise tables.TableError(f"{path}: the folder holds no rollouts.parquet or rollouts.csv")
    elif path.exists():
        paths = [path]
    else:
        raise tables.TableError(f"{path}: no such file or folder")
    frames = [_check_columns(_load(path), str(path)) for path in paths]
    whole = frames[0] if len(frames) == 1 else pl.concat(frames).unique(maintain_order=True)
    key = ["run_id", "step", "phase", "problem_id", "sample"]
    repeated = whole.filter(pl.col("sample").is_not_null()).select(key).is_duplicated()
    if repeated.any():
        row = whole.row(repeated.arg_true()[0], named=True)
        raise tables.TableError(f"{source}: two files differ in {', '.join(f'{name}={row[name]}' for name in key)}")
    return _training_rows(whole, str(source))


def training(rollouts: pl.DataFrame, where: str = "memory") -> pl.DataFrame:
    """The training responses of a ``rollouts`` table.

    Args:
        rollouts: ``run_id``, ``step``, ``problem_id`` and ``reward``, and any other columns of the table. Without
            ``phase`` all rows count as training.
        where: The file or source, for error messages.

    Returns:
        ``run_id``, ``step``, ``problem_id``, ``reward``, ``prompt_tokens``, ``response_tokens``, ``truncated`` and
        ``failed``, one row per response; null throughout where the columns they are derived from are missing.

    Raises:
        TableError: A column is missing, or a value does not fit the schema.
    """
    return _training_rows(_check_columns(rollouts, where), where)


def _training_rows(checked: pl.DataFrame, where: str) -> pl.DataFrame:
    import polars as pl

    found = checked.filter(pl.col("phase") == "train").drop("phase", "sample")
    if found.is_empty():
        raise tables.TableError(f"{where}: the rollouts table holds no rollouts of phase train")
    return found


def _check_columns(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    """Check the columns present as the whole table is checked, and reduce lists to their lengths."""
    import polars as pl

    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise tables.TableError(
            f"{where}: the rollouts table lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"(it has {', '.join(map(printable, frame.columns))})"
        )
    there = [name for name in USED if name in frame.columns]
    neutral = {
        "phase": pl.lit("train"),
        # One number per row, so that no two rows share a key.
        "sample": pl.int_range(pl.len(), dtype=pl.Int64).cast(pl.Int32, strict=False),
        "prompt_ids": pl.lit([], dtype=pl.List(pl.Int32)),
        "response_ids": pl.lit([], dtype=pl.List(pl.Int32)),
        "finish_reason": pl.lit("stop"),
        "logprobs": pl.lit([], dtype=pl.List(pl.Float32)),
        "weights_version": pl.lit(0, dtype=pl.Int64),
    }
    filled = frame.select(*NEEDED, *there).with_columns(
        **{name: value for name, value in neutral.items() if name not in there}
    )
    checked = tables.check(filled, "rollouts", where=where)

    def where_present(value: pl.Expr, column: str, dtype: type[pl.DataType]) -> pl.Expr:
        return value.cast(dtype) if column in there else pl.lit(None, dtype=dtype)

    return checked.select(
        *NEEDED,
        "phase",
        sample=where_present(pl.col("sample"), "sample", pl.Int32),
        prompt_tokens=where_present(pl.col("prompt_ids").list.len(), "prompt_ids", pl.Int64),
        response_tokens=where_present(pl.col("response_ids").list.len(), "response_ids", pl.Int64),
        truncated=where_present(pl.col("finish_reason") == "length", "finish_reason", pl.Boolean),
        failed=where_present(pl.col("finish_reason") == "aborted", "finish_reason", pl.Boolean),
    )


def _load(path: Path) -> pl.DataFrame:
    """Read the columns that are needed or used from one file."""
    import polars as pl

    if path.suffix not in {".parquet", ".csv"}:
        raise tables.TableError(f"{path}: a table is a .parquet or a .csv file")
    try:
        if path.suffix == ".parquet":
            tables.check_version(path, where=str(path))
        scanned = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_csv(path)
        names = scanned.collect_schema().names()
        wanted = [name for name in (*NEEDED, *USED) if name in names]
        # The error for a file without the needed columns lists all names.
        return (scanned.select(wanted) if set(NEEDED) <= set(wanted) else scanned.head(0)).collect()
    except pl.exceptions.NoDataError:
        raise tables.TableError(f"{path}: the file is empty") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise tables.TableError(f"{path}: not readable as {path.suffix[1:]} ({reason(error)})") from None
