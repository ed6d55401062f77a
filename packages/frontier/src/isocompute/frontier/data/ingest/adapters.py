"""The adapters, and what all of them share: runs of one source are checked, numbered and joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ...contract import tables
from ...errors import FrontierError
from . import openrlhf, prime_rl, trl, verl
from .config import read_config
from .counting import LARGEST_COUNT
from .history import read_runs
from .run import Layout, Run
from .settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What reads the logs of one framework.

    Attributes:
        layout: Of its logs.
        rows: Called with a run and its settings. Returns rows of ``evals``, and notes on which defaults were used and
            what is biased; both are empty where the run has no evaluation. Raises a FrontierError where a setting that
            is needed is missing, or a count or a metric in the logs is impossible.
    """

    layout: Layout
    rows: Callable[[Run, Settings], tuple[list[dict[str, Any]], list[str]]]


ADAPTERS = {
    "verl": Adapter(layout=verl.LAYOUT, rows=verl.rows),
    "trl": Adapter(layout=trl.LAYOUT, rows=trl.rows),
    "openrlhf": Adapter(layout=openrlhf.LAYOUT, rows=openrlhf.rows),
    "prime-rl": Adapter(layout=prime_rl.LAYOUT, rows=prime_rl.rows),
}


def ingest(
    framework: str,
    sources: Sequence[str],
    *,
    config: Path | None = None,
    constants: Mapping[str, str] | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Turn another framework's logs into an ``evals`` table.

    Args:
        framework: ``verl``, ``trl``, ``openrlhf`` or ``prime-rl``.
        sources: Files, folders, ``runs:/ID``, ``mlflow:EXPERIMENT`` or tracking URIs; each run found stays a run of
            its own.
        config: The runs' configuration, where the logs do not hold it.
        constants: What neither says, such as ``questions``; these take precedence over both.

    Returns:
        The table, and notes on which defaults of the framework were used and what is biased.

    Raises:
        FrontierError: The framework is unknown, a source cannot be read or holds no evaluation, two runs have one
            seed, or nothing says a setting that is needed; its name is in the message.
    """
    if framework not in ADAPTERS:
        raise FrontierError(f"there is no adapter for {framework!r}; there are {', '.join(ADAPTERS)}")
    adapter, given = ADAPTERS[framework], constants or {}
    shared = read_config(config) if config else {}
    parts: list[tuple[str, pl.DataFrame]] = []
    notes: list[str] = []
    for source in sources:
        for run in read_runs(source, adapter.layout, step_column=given.get("step_column")):
            settings = Settings(run.name, run.config, shared, given)
            found, said = adapter.rows(run, settings)
            if not found:
                raise FrontierError(f"{run.name}: holds no evaluation that {framework} would have logged")
            _refuse_beyond_counts(run.name, found)
            parts.append((run.name, pl.DataFrame(found, infer_schema_length=None)))
            notes += [note for note in (*run.notes, *said) if note not in notes]
    if given.get("seed") == "auto":
        parts = _with_seed_numbers(parts)
    _refuse_one_seed(parts)
    frame, dropped = _without_partial_metrics(pl.concat([part for _, part in parts], how="diagonal"))
    return tables.check(frame, "evals", where=", ".join(sources)), notes + dropped


def _refuse_beyond_counts(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        for count in ("step", "rollouts", "tokens"):
            if not 0 <= row[count] < LARGEST_COUNT:
                raise FrontierError(
                    f"{name}: adds up to {row[count]:.3g} {count}, which is impossible: a count in it is wrong"
                )


def _with_seed_numbers(parts: Sequence[tuple[str, pl.DataFrame]]) -> list[tuple[str, pl.DataFrame]]:
    """Runs of one n and B_p with the seeds 0, 1, 2, … in the order of their sources."""
    counts: dict[tuple[int, int], int] = {}
    out = []
    for name, part in parts:
        cell = (part["rollouts_per_problem"][0], part["problems_per_batch"][0])
        out.append((name, part.with_columns(seed=pl.lit(counts.get(cell, 0)))))
        counts[cell] = counts.get(cell, 0) + 1
    return out


def _refuse_one_seed(parts: Sequence[tuple[str, pl.DataFrame]]) -> None:
    """Refuse two runs that a fit would take for one.

    Raises:
        FrontierError: Two runs have the same n, B_p, seed and problem set.
    """
    seen: dict[tuple[int, int, int, str], str] = {}
    for name, part in parts:
        keys = ["rollouts_per_problem", "problems_per_batch", "seed", "problem_set"]
        for cell in part.select(keys).unique().sort(keys).iter_rows():
            other = seen.setdefault(cell, name)
            if other != name:
                raise FrontierError(
                    f"{other} and {name} have one seed, {cell[2]}, at n = {cell[0]} and B_p = {cell[1]}, so that one "
                    "curve would be drawn through both: leave one out if they are the same run, else ingest them "
                    "apart with --set seed=NUMBER each, or number them all with --set seed=auto"
                )


def _without_partial_metrics(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Leave out metrics that some evaluations lack, where others are of all."""
    metrics = [column for column in frame.columns if re.match(tables.METRIC_PATTERN, column)]
    partial = [column for column in metrics if frame[column].null_count()]
    if not partial or len(partial) == len(metrics):
        return frame, []
    return frame.drop(partial), [f"left out, because not every evaluation has it: {', '.join(partial)}"]
