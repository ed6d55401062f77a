"""Responses that trainers write to files, as a table of one row each: for runs that never knew of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import polars as pl

from ..errors import BudgetError
from ..wording import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFiles:
    """Files of a trainer's responses.

    Attributes:
        pattern: Their names.
        prompt: Column of the prompt, which is the problem.
        response: Column of the response.
        rewards: Columns that may be the reward; none where every other column of numbers is one reward function's.
        others: Columns of numbers that are no rewards.
        note: What a file leaves out.
    """

    pattern: str
    prompt: str
    response: str
    rewards: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    note: str = ""


def read_responses(folder: Path, files: RolloutFiles, *, metric: str = "") -> pl.DataFrame:
    """The responses in a folder.

    Args:
        files: Of the trainer.
        metric: Column of the reward; needed where there are several.

    Returns:
        ``run_id``, ``step``, ``phase`` (all ``train``), ``problem_id``, ``sample``, ``reward`` and ``text``.

    Raises:
        BudgetError: There are none, one cannot be read, or which column is the reward is not known.
    """
    paths = sorted(folder.rglob(files.pattern))
    if not paths:
        raise BudgetError(f"{folder}: holds no {files.pattern}")
    whole = pl.concat([_load(path, files) for path in paths], how="diagonal_relaxed")
    column = _reward(whole, files, metric, folder)
    run = sha256(str(folder).encode()).hexdigest()[:16]
    prompt = pl.col(files.prompt)
    rows = whole.select(
        run_id=pl.lit(run),
        step=pl.col("step").cast(pl.Int64),
        phase=pl.lit("train"),
        problem_id=prompt.map_elements(_identity, return_dtype=pl.String),
        reward=pl.col(column).cast(pl.Float32),
        text=pl.col(files.response).cast(pl.String, strict=False),
    )
    numbered = pl.int_range(pl.len(), dtype=pl.Int32).over("step", "problem_id")
    return rows.with_columns(sample=numbered).sort("step", "problem_id", "sample")


def rates(responses: pl.DataFrame) -> pl.DataFrame | None:
    """Successes of every problem at every step as a ``pass_rates`` table, or None where rewards are not 0 and 1."""
    if not responses["reward"].is_in([0.0, 1.0]).all():
        return None
    return responses.group_by("run_id", "step", "problem_id", maintain_order=True).agg(
        successes=pl.col("reward").sum().cast(pl.Int32), samples=pl.len().cast(pl.Int32)
    )


def _load(path: Path, files: RolloutFiles) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    lacking = [c for c in ("step", files.prompt, files.response) if c not in frame.columns]
    if lacking:
        raise BudgetError(f"{path}: has no column {', '.join(lacking)}; it has {', '.join(frame.columns)}")
    # Chats are lists of messages.
    nested = [c for c in (files.prompt, files.response) if frame[c].dtype.is_nested()]
    return frame.with_columns(pl.col(c).map_elements(str, return_dtype=pl.String) for c in nested)


def _reward(frame: pl.DataFrame, files: RolloutFiles, metric: str, folder: Path) -> str:
    """The column of the reward."""
    others = {"step", files.prompt, files.response, *files.others}
    numbers = [c for c in frame.columns if c not in others and frame[c].dtype.is_numeric()]
    if metric and metric not in numbers:
        raise BudgetError(f"{folder}: has no column {metric!r} of numbers; it has {', '.join(numbers)}")
    found = [metric] if metric else [c for c in files.rewards if c in numbers][:1] or numbers
    if len(found) != 1:
        names = ", ".join(numbers) or "no column"
        raise BudgetError(f"{folder}: which of {names} is the reward is not known: --metric")
    if frame[found[0]].null_count():
        raise BudgetError(f"{folder}: {found[0]} is missing for some responses")
    return found[0]


def _identity(prompt: Sequence[object] | str) -> str:
    return sha256(str(prompt).encode()).hexdigest()[:16]
