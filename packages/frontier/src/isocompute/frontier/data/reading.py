"""Reading evaluations: an ``evals`` table, or any CSV, Parquet or JSON lines with columns renamed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from ..contract import tables
from ..errors import FrontierError, InputWarning
from .curves import UNITS
from .files import numbers, read_file
from .grouping import check_group

DEFAULTS: dict[str, object] = {"seed": 0, "problem_set": "all", "split": "validation"}
"""Values of these columns where a table lacks them."""


def read_evals(
    sources: Sequence[str | Path],
    *,
    metric: str = "avg_at_4",
    unit: str = "rollouts",
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
    group: str | None = None,
) -> pl.DataFrame:
    """Read evaluations to be fitted.

    Args:
        sources: Files, folders, ``mlflow:EXPERIMENT``, ``runs:/RUN_ID`` or tracking URIs (``sqlite:///…``,
            ``http://…``).
        metric: Metric column that will be fitted.
        columns: Names of ``evals`` to those of the source, such as ``{"rollouts": "C"}``.
        constants: Names of ``evals`` to a value for all rows, such as ``{"problems_per_batch": "32"}``.
        group: A further column that tells runs apart.

    Returns:
        The rows of all sources, with the columns of ``evals`` that a fit needs.

    Raises:
        FrontierError: A column is missing or holds impossible values, or two runs have one seed.
        TableError, TrackingError: A source cannot be read.
    """
    check_group(group)
    if not columns and not constants and all(_is_table(source) for source in sources):
        parts = [tables.read(source, "evals") for source in sources]
        whole = tables.concat(parts, "evals") if len(parts) > 1 else parts[0]
        whole = _with_average(whole, metric)
        _refuse_mixed_units(whole, unit)
        _refuse_one_seed(whole, group)
        return whole
    parts = [_read_rows(Path(source), metric, unit, columns or {}, constants or {}) for source in sources]
    joined = pl.concat(parts, how="diagonal_relaxed")
    keys = ["problems_per_batch", "rollouts_per_problem", "seed", "problem_set", "split", UNITS[unit]]
    # Points read from a figure may share their compute; the same evaluation twice is a mistake in the file.
    keys += [group] if group and group in joined.columns else []
    once = joined.unique([*keys, metric], maintain_order=True)
    if len(once) < len(joined):
        repeated = len(joined) - len(once)
        said = f"{repeated} rows occur more than once and count" if repeated > 1 else "1 row occurs twice and counts"
        warnings.warn(f"{said} once", InputWarning, stacklevel=2)
    _refuse_mixed_units(once, unit)
    _refuse_one_seed(once, group)
    return once.sort(keys)


def _with_average(evals: pl.DataFrame, metric: str) -> pl.DataFrame:
    """A table with the ``avg_at_k`` asked for: the mean over samples is one quantity, so any other one is it."""
    others = [c for c in evals.columns if c.startswith("avg_at_") and re.match(tables.METRIC_PATTERN, c)]
    if metric in evals.columns or not others or not re.fullmatch(r"avg_at_\d+", metric):
        return evals
    return evals.with_columns(pl.col(others[0]).alias(metric))


def _refuse_one_seed(evals: pl.DataFrame, group: str | None) -> None:
    """Refuse two runs that have one seed: they would be one curve, whose points jump from run to run.

    Raises:
        FrontierError: A seed of one n, B_p, learning rate, problem set and split has two ``run_id``.
    """
    if "run_id" not in evals.columns:
        return
    keys = ["rollouts_per_problem", "problems_per_batch", "seed", "problem_set", "split"]
    keys += [name for name in ("learning_rate", group) if name and name in evals.columns]
    runs = (
        evals.group_by(keys)
        .agg(pl.col("run_id").drop_nulls().unique().sort())
        .filter(pl.col("run_id").list.len() > 1)
        .sort(keys)
    )
    if runs.is_empty():
        return
    row = runs.row(0, named=True)
    raise FrontierError(
        f"the runs {row['run_id'][0]} and {row['run_id'][1]} have one seed, {row['seed']}, at "
        f"n = {row['rollouts_per_problem']} and B_p = {row['problems_per_batch']}, so that one curve would be drawn "
        "through both: leave one out if they are the same run, give each a seed of its own, or name the column that "
        "tells them apart with --group"
    )


def _refuse_mixed_units(evals: pl.DataFrame, unit: str) -> None:
    """Refuse a table that counts rollouts in ones for some settings and in thousands or millions for others.

    Raises:
        FrontierError: Rollouts over steps times batch differ a hundredfold between settings.
    """
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
    """Whether a source is to be read as the ``evals`` table, with all its checks."""
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
    for ours, theirs in columns.items():
        if theirs not in frame.columns:
            raise FrontierError(f"{path}: has no column {theirs!r}; it has {', '.join(frame.columns)}")
        if ours in frame.columns and ours != theirs:
            frame = frame.drop(ours)
        frame = frame.rename({theirs: ours})
    out = {name: pl.Series(name, [_parsed(value)]) for name, value in constants.items()}
    frame = frame.with_columns(**{name: pl.lit(series[0]) for name, series in out.items()})
    for name in ("rollouts_per_problem", "problems_per_batch"):
        if name not in frame.columns:
            raise FrontierError(
                f"{path}: has no column {name}: name it with --column {name}=COLUMN or give it with --set {name}=VALUE"
            )
    frame = frame.with_columns(**{k: pl.lit(v) for k, v in DEFAULTS.items() if k not in frame.columns})
    whole = {name: numbers(frame, name, path) for name in ("rollouts_per_problem", "problems_per_batch", "seed")}
    for name, values in whole.items():
        if (values != np.floor(values)).any() or (values < (0 if name == "seed" else 1)).any():
            raise FrontierError(f"{path}: the column {name} must hold whole numbers from {0 if name == 'seed' else 1}")
    compute, reward = numbers(frame, UNITS[unit], path), numbers(frame, metric, path)
    if (compute < 0).any():
        raise FrontierError(f"{path}: the column {UNITS[unit]} is negative in row {int((compute < 0).argmax()) + 1}")
    if ((reward < 0) | (reward > 1)).any():
        row = int(((reward < 0) | (reward > 1)).argmax())
        raise FrontierError(
            f"{path}: the column {metric} is {reward[row]:g} in row {row + 1}; rewards lie within 0 to 1"
        )
    return frame.with_columns(
        **{name: pl.Series(values.astype(np.int64)) for name, values in whole.items()},
        **{UNITS[unit]: pl.Series(compute), metric: pl.Series(reward)},
        problem_set=pl.col("problem_set").cast(pl.String), split=pl.col("split").cast(pl.String),
    )  # fmt: skip


def _parsed(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
