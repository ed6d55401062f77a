"""Reading evaluations: an ``evals`` table, or any CSV, Parquet or JSON lines with renamed columns; units of compute."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from ..contract import tables
from ..contract.errors import TableError
from ..contract.files import atomic_write
from ..errors import FrontierError, InputWarning
from .curves import UNITS, check_group, refuse_one_seed

DEFAULTS: dict[str, object] = {"seed": 0, "problem_set": "all", "split": "validation"}
"""Values of these columns if a table lacks them."""
SETTING = ("problems_per_batch", "rollouts_per_problem", "seed", "problem_set", "split")
"""Columns of an ``evals`` table that distinguish runs."""
AT = "isocompute.at"
"""Column with the origin of each row, used while reading."""


def read_evals(
    sources: Sequence[str | Path],
    *,
    metric: str = "avg_at_4",
    unit: str = "rollouts",
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
    group: str | None = None,
) -> pl.DataFrame:
    """Read evaluations to fit.

    Args:
        sources: Files, folders of tables, ``mlflow:EXPERIMENT``, ``runs:/RUN_ID`` or tracking URIs (``sqlite:///…``,
            ``http://…``).
        columns: ``evals`` column names, each mapped to the source's name, such as ``{"rollouts": "C"}``.
        constants: ``evals`` column names, each mapped to a value for all rows, such as ``{"problems_per_batch":
            "32"}``.
        group: A further column that distinguishes runs.

    Returns:
        The rows of all sources, with the ``evals`` columns that a fit needs.

    Raises:
        FrontierError: A column is missing or holds impossible values, or two runs have one seed.
        TableError, TrackingError: A source cannot be read.
    """
    check_group(group)
    sources = [table for source in sources for table in _tables_of(source)]
    if not columns and not constants and all(_is_table(source) for source in sources):
        parts = [tables.read(source, "evals") for source in sources]
        whole = tables.concat(parts, "evals") if len(parts) > 1 else parts[0]
        whole = _with_average(whole, metric)
        _refuse_mixed_units(whole, unit)
        refuse_one_seed(whole, [*SETTING, "learning_rate", group])
        return whole
    parts = [_read_rows(Path(source), metric, unit, columns or {}, constants or {}) for source in sources]
    joined = _later_attempts(pl.concat(parts, how="diagonal_relaxed"), UNITS[unit], metric, group)
    # Points read from a figure may share their compute; a repeated evaluation is a mistake in the file.
    keys = [*SETTING, UNITS[unit], *([group] if group and group in joined.columns else [])]
    once = joined.unique([*keys, metric], maintain_order=True)
    if len(once) < len(joined):
        repeated = len(joined) - len(once)
        said = f"{repeated} rows occur more than once and count" if repeated > 1 else "1 row occurs twice and counts"
        warnings.warn(f"{said} once", InputWarning, stacklevel=2)
    _refuse_mixed_units(once, unit)
    refuse_one_seed(once, [*SETTING, "learning_rate", group])
    return once.sort(keys)


def _tables_of(source: str | Path) -> list[str | Path]:
    """A source itself, or the evaluation tables in a folder that has none called ``evals``."""
    folder = Path(source)
    if not folder.is_dir():
        return [source]
    named = any(next(folder.rglob(f"evals.{suffix}"), None) for suffix in ("parquet", "csv"))
    files = folder.glob("*.*") if named else folder.rglob("*.*")
    ours = [f for f in sorted(files) if f.suffix in {".parquet", ".csv"} and f.stem != "evals"]
    # A table written in both formats counts once.
    ours = [f for f in ours if f.suffix == ".parquet" or f.with_suffix(".parquet") not in ours]
    tables_of = [file for file in ours if _is_table(file)]
    if not named and not tables_of:
        raise FrontierError(f"{source}: the folder holds no evals.parquet or evals.csv; {_instead(folder)}")
    if not named:
        return [*tables_of]
    if tables_of:
        names = ", ".join(file.name for file in tables_of)
        said = f"{source}: evals counts, and these tables of evaluations do not, unless they are named: {names}"
        warnings.warn(said, InputWarning, stacklevel=3)
    return [source]


RUNS, FIT = "runs.csv", "posterior.json"
"""The file that ``isocompute-budget doctor`` asks the user to fill in, and the file of a fit."""


def _instead(folder: Path) -> str:
    """Advice for a folder without evaluations."""
    if (folder / FIT).is_file():
        return "it is a fit, which `isocompute-frontier prescribe` and `next` read: name what it was made from"
    if not (folder / RUNS).is_file():
        return f"of trainers' logs `isocompute-budget doctor {folder} --out TABLES` makes one"
    asked = pl.read_csv(folder / RUNS, infer_schema=False)
    blank = {name: count for name, count in asked.null_count().row(0, named=True).items() if count}
    lacking = ", ".join(f"{name} of {counted(count, 'run')}" for name, count in blank.items())
    todo = (
        f"{RUNS} there lacks {lacking}: fill in its blank cells, then" if blank else f"{RUNS} there is filled in: now"
    )
    return f"{todo} `isocompute-budget doctor LOGS --runs {folder / RUNS} --out {folder}` makes one of the same logs"


MANIFEST = "manifest.json"


def not_read(sources: Sequence[str | Path]) -> list[str]:
    """What is missing from the tables in folders, since their makers report that they did not read it."""
    said = []
    for folder in dict.fromkeys(Path(s) if Path(s).is_dir() else Path(s).parent for s in sources if Path(s).exists()):
        for path in sorted(folder.rglob(MANIFEST)):
            try:
                document = json.loads(path.read_text("utf-8"))
                files = {u["source"]: u["reason"] for u in document.get("unread", [])}
                runs = {
                    r["source"]: r.get("problem") or f"{', '.join(r['missing'])} is missing"
                    for r in document.get("runs", [])
                    if r["run_id"] is None
                }
            except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
                # Other programs use files of this name.
                continue
            for lost, noun, verb in ((files, "file", "read"), (runs, "run", "understood")):
                if lost:
                    why = "; ".join(f"{name} ({reason})" for name, reason in lost.items())
                    were = "was" if len(lost) == 1 else "were"
                    said.append(f"{counted(len(lost), noun)} of {path.parent} {were} not {verb}: {why}")
    return said


def _later_attempts(rows: pl.DataFrame, compute: str, metric: str, group: str | None) -> pl.DataFrame:
    """Keep the later row if a run has two rewards at one compute; other curves keep both.

    Without a column ``run_id`` it is unknown whether the rows are attempts: points read from a figure may share their
    compute.
    """
    keys = [*SETTING, compute]
    keys += [name for name in ("run_id", "step", "learning_rate", group) if name and name in rows.columns]
    several = rows.filter(pl.struct(keys).is_duplicated()).filter(pl.col(metric).n_unique().over(keys) > 1)
    if not several.is_empty():
        groups = several.group_by(keys, maintain_order=True).agg(AT, gap=pl.col(metric).max() - pl.col(metric).min())
        named = "run_id" in rows.columns and not rows["run_id"].null_count()
        gap = max(groups["gap"].to_list())
        first = groups.row(0, named=True)
        run = f"run {first['run_id']}" if named else f"the curve of n = {first['rollouts_per_problem']}"
        run += " and others" if groups.n_unique([key for key in keys if key not in (compute, "step")]) > 1 else ""
        places = "; ".join(" and ".join(at) for at in groups[AT].head(SHOWN).to_list())
        places += "; …" if len(groups) > SHOWN else ""
        counts = "the later row counts" if named else "both count; a column run_id would tell whose they are"
        warnings.warn(
            f"{run}: two rewards at {counted(len(groups), 'value')} of {compute}, up to {gap:.3g} "
            f"apart: {counts} ({places})",
            InputWarning,
            stacklevel=3,
        )
        if named:
            rows = rows.unique(keys, keep="last", maintain_order=True)
    return rows.drop(AT)


def _with_average(evals: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Add the requested ``avg_at_k`` from any other: the mean over samples is the same quantity for every k."""
    others = [c for c in evals.columns if c.startswith("avg_at_") and re.match(tables.METRIC_PATTERN, c)]
    if metric in evals.columns or not others or not re.fullmatch(r"avg_at_\d+", metric):
        return evals
    return evals.with_columns(pl.col(others[0]).alias(metric))


def _refuse_mixed_units(evals: pl.DataFrame, unit: str) -> None:
    """Refuse a table that counts rollouts in units for some settings and in thousands or millions for others."""
    if unit != "rollouts" or "step" not in evals.columns or not evals["step"].dtype.is_numeric():
        return
    scale = pl.col("rollouts") / (pl.col("step") * pl.col("rollouts_per_problem") * pl.col("problems_per_batch"))
    found = (
        evals.filter((pl.col("step") > 0) & (pl.col("rollouts") > 0))
        .group_by("rollouts_per_problem", "problems_per_batch")
        .agg(scale.median().alias("scale"))
        .sort("scale")
    )
    if len(found) < 2 or found["scale"][-1] < 100 * found["scale"][0]:
        return
    low, high = found.row(0, named=True), found.row(-1, named=True)
    raise FrontierError(
        f"rollouts per step are {low['scale']:.3g} times B_p n at n = {low['rollouts_per_problem']} and "
        f"{high['scale']:.3g} times at n = {high['rollouts_per_problem']}: the rows mix units of compute; "
        "count rollouts in ones everywhere"
    )


def _is_table(source: str | Path) -> bool:
    """Return whether a source is read as an ``evals`` table, with all its checks."""
    path = Path(source)
    if not path.is_file():
        return True
    if path.suffix not in {".csv", ".parquet"}:
        return False
    named = set(read_file(path).columns)
    return all(column.optional or column.name in named for column in tables.schema("evals").columns)


def _read_rows(
    path: Path, metric: str, unit: str, columns: Mapping[str, str], constants: Mapping[str, str]
) -> pl.DataFrame:
    frame = read_file(path)
    _refuse_missing(frame, columns.values(), path)
    others = [name for name in frame.columns if name not in columns and name not in columns.values()]
    frame = frame.select(*others, **{ours: pl.col(theirs) for ours, theirs in columns.items()})
    out = {name: pl.Series(name, [_parsed(value)]) for name, value in constants.items()}
    frame = frame.with_columns(**{name: pl.lit(series[0]) for name, series in out.items()})
    needed = ("rollouts_per_problem", "problems_per_batch", UNITS[unit], metric)
    _refuse_missing(frame, needed, path, how="name each with --column NAME=COLUMN, or give it with --set NAME=VALUE")
    frame = frame.with_columns(**{k: pl.lit(v) for k, v in DEFAULTS.items() if k not in frame.columns})

    def column(name: str, least: float, what: str, most: float = np.inf) -> np.ndarray:
        own = columns.get(name, name)
        return numbers(frame.select(pl.col(name).alias(own)), own, path, least=least, most=most, what=what)

    whole = {name: column(name, 1, "whole numbers from 1") for name in needed[:2]}
    whole["seed"] = column("seed", 0, "whole numbers from 0")
    compute = column(UNITS[unit], 0, "compute from 0")
    reward = column(metric, 0, "rewards within 0 to 1", most=1)
    return frame.with_columns(
        pl.format(f"{path.name} row {{}}", pl.int_range(1, pl.len() + 1)).alias(AT),
        **{name: pl.Series(values.astype(np.int64)) for name, values in whole.items()},
        **{UNITS[unit]: pl.Series(compute), metric: pl.Series(reward)},
        problem_set=pl.col("problem_set").cast(pl.String),
        split=pl.col("split").cast(pl.String),
    )


def _parsed(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def read_file(path: Path) -> pl.DataFrame:
    """Read a CSV, Parquet, JSON or JSON-lines file without changes.

    Raises:
        FrontierError: It cannot be read, is not what its name says, or is empty.
        TableError: It is one of our tables, with a newer major schema version.
    """
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        # Scan all rows, so that a column of whole numbers with a fraction far down is still read as numbers.
        ".csv": partial(pl.read_csv, infer_schema_length=None),
        ".parquet": pl.read_parquet,
        ".jsonl": pl.read_ndjson,
        ".json": pl.read_json,
    }
    if path.suffix not in readers:
        raise FrontierError(f"{path}: a file of evaluations ends in {', '.join(readers)}")
    try:
        if path.suffix == ".parquet":
            tables.check_version(path, where=str(path))
        frame = readers[path.suffix](path)
    except FileNotFoundError:
        raise FrontierError(f"{path}: there is no such file") from None
    except TableError:
        raise
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        if path.is_file() and not path.read_bytes().strip():
            raise FrontierError(f"{path}: the file is empty") from None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FrontierError(f"{path}: cannot be read as {path.suffix[1:]} ({first})") from None
    if frame.is_empty():
        raise FrontierError(f"{path}: holds no rows")
    return frame


def _refuse_missing(frame: pl.DataFrame, names: Iterable[str], path: Path, *, how: str = "") -> None:
    """Refuse a file, naming all columns that it lacks at once."""
    if missing := [name for name in dict.fromkeys(names) if name not in frame.columns]:
        lacks = f"{path}: has no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise FrontierError(f"{lacks}; it has {', '.join(frame.columns)}{how and ': '}{how}")


def numbers(
    frame: pl.DataFrame,
    name: str,
    path: Path,
    *,
    least: float = -np.inf,
    most: float = np.inf,
    what: str = "finite numbers",
) -> np.ndarray:
    """A column of finite numbers, shape ``(rows,)``.

    Args:
        what: What it must hold, in words; ``whole numbers`` requires these.

    Raises:
        FrontierError: A row holds something else.
    """
    column = frame[name]
    values = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    bad = ~np.isfinite(values) | (values < least) | (values > most)
    bad |= (values != np.floor(values)) & ("whole" in what)
    if bad.any():
        row = int(bad.argmax())
        number = frame[ROW][row] if ROW in frame.columns else row + 1
        raise FrontierError(f"{path}: the column {name} must hold {what}, but row {number} holds {column[row]!r}")
    return np.asarray(values)


ROW = "row of the file"
"""Column with a file's row numbers from before any rows are dropped."""
EMPTY = ("", "nan", "none", "null", "n/a", "#n/a", "na", "<na>")
SHOWN = 5


def read_curve(path: Path, x: str, y: str, *, where: Mapping[str, str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read the curve of one run; rows with an empty x or y are dropped, and counted in a warning.

    Args:
        y: Column of rewards, within 0 to 1.
        where: Use only rows in which these columns have these values.

    Raises:
        FrontierError: The file cannot be read, lacks a column, holds a value that is neither a number nor empty, or a
            reward outside 0 to 1; no row is left; or the rows belong to several runs.
        TableError: The file is one of our tables, with a newer major schema version.
    """
    frame = read_file(path)
    _refuse_missing(frame, (*(where or {}), x, y), path)
    frame = frame.with_row_index(ROW, offset=1)
    for name, value in (where or {}).items():
        frame = frame.filter(pl.col(name).cast(pl.String) == value)
        if frame.is_empty():
            raise FrontierError(f"{path}: no row has {name} = {value}")
    for name in (x, y):
        # This is normal between two evaluations.
        empty = pl.col(name).cast(pl.String).str.strip_chars().str.to_lowercase().is_in(EMPTY).fill_null(True)
        whole, frame = len(frame), frame.filter(~empty)
        if frame.is_empty():
            raise FrontierError(f"{path}: every row has an empty {name}")
        if len(frame) < whole:
            out = f"{whole - len(frame):,} of {counted(whole, 'row')} left out, whose {name} is empty"
            warnings.warn(f"{path}: {out}", InputWarning, stacklevel=2)
    found = numbers(frame, x, path), numbers(frame, y, path, least=0, most=1, what="rewards within 0 to 1")
    _refuse_several(frame.drop(ROW), x, y, path)
    return found


def read_series(
    path: Path,
    x: str,
    y: str,
    *,
    by: str,
    where: Mapping[str, str] | None = None,
    least: float = 0.0,
    most: float = float("inf"),
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read one curve for each value of a column, sorted by compute and limited to a range of compute.

    Raises:
        FrontierError, TableError: As for ``read_curve``.
    """
    frame = read_file(path)
    _refuse_missing(frame, (by, x, y), path)
    found = {}
    for name in frame[by].cast(pl.String).unique().drop_nulls().sort().to_list():
        compute, reward = read_curve(path, x, y, where={**(where or {}), by: name})
        kept = np.argsort(compute, kind="stable")
        kept = kept[(compute[kept] >= least) & (compute[kept] <= most)]
        found[name] = (compute[kept], reward[kept])
    return found


def _refuse_several(frame: pl.DataFrame, x: str, y: str, path: Path) -> None:
    """Refuse rows of several runs, which would be fitted as one curve; say which columns select a run.

    Rows belong to several runs if runs differ in a column, or if most values of compute occur more than once.
    """
    others = [c for c in frame.columns if c not in (x, y)]
    several = [c for c in (*SETTING, "run_id") if c in others and frame[c].n_unique() > 1]
    repeated = frame.filter(pl.col(x).is_duplicated())
    if not several:
        # A name is shared by many rows; a measurement differs from row to row.
        named = [c for c in others if 1 < frame[c].n_unique() <= len(frame) / 2]
        kinds = repeated.group_by(x).agg(pl.col(named).n_unique())
        several = [c for c in named if len(kinds) and (kinds[c] > 1).all()]
    if several:
        names = "; ".join(f"{c} = {_values(frame[c])}" for c in several)
        raise FrontierError(
            f"{path}: {len(frame)} rows belong to several runs ({names}): choose one with --where {several[0]}=VALUE"
        )
    if len(repeated) > len(frame) / 2:
        raise FrontierError(
            f"{path}: most values of {x} occur more than once, and no column tells runs apart: "
            "a forecast is of one run, so write each to a file of its own"
        )


def _values(column: pl.Series) -> str:
    distinct = column.cast(pl.String).unique(maintain_order=True).to_list()
    more = f", … ({len(distinct)})" if len(distinct) > SHOWN else ""
    return ", ".join(str(v) for v in distinct[:SHOWN]) + more


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the others; equal tables give equal bytes."""
    with atomic_write(path, error=FrontierError) as stream:
        frame.write_parquet(stream, compression="zstd", statistics=False)


def with_gpu_hours(evals: pl.DataFrame, timings: pl.DataFrame) -> pl.DataFrame:
    """Add ``gpu_hours``: device-seconds of all steps up to and including an evaluation's, over 3,600.

    The time of evaluations is excluded, as their rollouts and tokens are.

    Args:
        evals: An ``evals`` table with ``run_id`` and ``step``.

    Raises:
        FrontierError: A table lacks the key, or a run or its last steps have no timings.
    """
    for name, table in (("evals", evals), ("timings", timings)):
        missing = [c for c in ("run_id", "step") if c not in table.columns]
        if missing:
            raise FrontierError(f"the {name} lack {', '.join(missing)}: GPU-hours join the two on run_id and step")
    spent = (
        timings.filter(pl.col("phase") != "evaluate")
        .group_by("run_id", "step")
        .agg(pl.col("device_seconds").sum())
        .sort("run_id", "step")
        .with_columns(gpu_hours=pl.col("device_seconds").cum_sum().over("run_id") / 3600)
        .select("run_id", "step", "gpu_hours")
    )
    ends = spent.group_by("run_id").agg(pl.col("step").max().alias("timed"))
    short = (
        evals.group_by("run_id")
        .agg(pl.col("step").max().alias("evaluated"))
        .join(ends, on="run_id", how="left")
        .filter(pl.col("timed").is_null() | (pl.col("timed") < pl.col("evaluated")))
        .sort("run_id")
    )
    if not short.is_empty():
        row = short.row(0, named=True)
        known = "no timings" if row["timed"] is None else f"timings up to step {row['timed']}"
        raise FrontierError(f"run {row['run_id']} is evaluated at step {row['evaluated']} and has {known}")
    # A step without its own timings has those of the steps before it.
    evals = evals.sort("step")
    joined = evals.join_asof(spent.sort("step"), on="step", by="run_id", check_sortedness=False)
    return joined.with_columns(pl.col("gpu_hours").fill_null(0.0)).sort("run_id", "step")


def amount(compute: float) -> str:
    """Compute as text: whole numbers if large, three digits if small."""
    return f"{compute:,.0f}" if compute >= 1000 else f"{compute:.3g}"


def short(compute: float) -> str:
    """An amount in three digits, with the suffixes used for reading amounts: 920, 16k, 1.3M, 2T."""
    for factor, sign in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if compute >= 0.9995 * factor:
            return f"{float(f'{compute / factor:.3g}'):,g}{sign}"
    return f"{compute:.3g}"


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as ``1 run`` or ``2,048 runs``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
