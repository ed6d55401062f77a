"""Runs below folders, whatever trainer and logger left them: what is understood of each, and what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path
from typing import Any

import polars as pl

from ..contract import tracking
from ..errors import BudgetError
from .evals import SHARED, join_restarts, reader_of, rows_of, table
from .logs.log import Log
from .logs.sources import read_logs
from .logs.states import last_states
from .registry import TRAINERS
from .settings import MissingSettingError
from .trainer import LogReader, Trainer

MOST_QUESTIONS = 20
"""A run of which more than this is missing is not understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A run that was found.

    Attributes:
        rows: Of ``evals``; none where something is missing.
        missing: Settings that nothing says, and what each may be, where that is known.
        training: Whether the rows are of the reward of training.
        notes: Defaults that were used, and what is biased.
        problem: Why it cannot be read, or an empty text.
    """

    name: str
    trainer: Trainer
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: Mapping[str, str] = field(default_factory=dict)
    training: bool = False
    notes: tuple[str, ...] = ()
    problem: str = ""


def examine(
    sources: Sequence[str],
    given: Mapping[str, str],
    *,
    trainer: str | None = None,
    shared: Mapping[str, Any] | None = None,
) -> list[Patient]:
    """Find runs and say what is understood of each.

    Args:
        sources: Folders, files, MLflow experiments or tracking URIs.
        given: What the user says of all runs.
        trainer: Whose logs they are; None where their metrics say it.
        shared: The configuration of all runs, with dotted keys, where their logs lack it.

    Raises:
        BudgetError: There is no such file or folder, no run in it, or a file of a given trainer cannot be read.
        TrackingError: MLflow does not have it.
    """
    by_trainer: dict[str, list[Log]] = {}
    for source in sources:
        for below in log_sources(source):
            named = trainer is not None and below == source
            name, logs = read_source(below, trainer, step_column=given.get("step_column"), named=named)
            by_trainer.setdefault(name, []).extend(logs)
    by_trainer.pop("", None)
    if not by_trainer:
        raise BudgetError(
            f"{', '.join(sources)}: no run of {', '.join(n for n, t in TRAINERS.items() if t.logs)} found"
        )
    patients, used = [], set(SHARED)
    for name, logs in by_trainer.items():
        known = TRAINERS[name]
        for log in join_restarts(once(logs, reader_of(known)), reader_of(known)):
            patients.append(_examine(known, log, shared or {}, given, used))
    unused = sorted(set(given) - used)
    if unused and not any(p.missing or p.problem for p in patients):
        raise BudgetError(f"no run is read by a setting {unused[0]}; there are {', '.join(sorted(used))}")
    return patients


def written(patients: Sequence[Patient]) -> tuple[pl.DataFrame, list[str]]:
    """One ``evals`` table of all runs that are understood, at least one, and notes; runs alike are numbered."""
    whole = [p for p in patients if p.rows]
    # A curve of evaluations and one of training rewards are not of one quantity.
    measured = [p for p in whole if not p.training] or whole
    parts, notes = [], []
    seen: dict[tuple[Any, ...], int] = {}
    for patient in measured:
        frame = pl.DataFrame(patient.rows, infer_schema_length=None)
        cell = (
            *(frame[c][0] for c in ("rollouts_per_problem", "problems_per_batch", "learning_rate")),
            frame["seed"][0],
        )
        if cell in seen:
            number = frame["seed"][0] + seen[cell]
            notes.append(f"{patient.name} has the seed of another run like it, and is numbered {number}")
            frame = frame.with_columns(seed=pl.lit(number))
        seen[cell] = seen.get(cell, 0) + 1
        parts.append((patient.name, frame))
    return table(parts, notes, where="the runs", numbered=False)


def _examine(known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str], used: set[str]) -> Patient:
    """Read a run as far as it is understood, and gather all that is missing."""
    said, missing, training = dict(given), {}, given.get("train_reward") == "true"
    for _ in range(MOST_QUESTIONS):
        try:
            rows, notes = rows_of(known, log, shared, said, used=used)
        except MissingSettingError as error:
            # Which setting is missed next does not depend on the value.
            missing[error.name] = error.choices
            said[error.name] = re.split(",| or ", error.choices)[-1].strip() or "1"
            continue
        except BudgetError as error:
            return Patient(name=log.name, trainer=known, missing=missing, problem="" if missing else str(error))
        if not rows and not training and known.name == "trl":
            said["train_reward"], training = "true", True
            continue
        problem = "" if rows else "it logged neither evaluations nor rewards"
        kept = [] if missing else rows
        return Patient(
            name=log.name,
            trainer=known,
            rows=kept,
            missing=missing,
            training=training,
            problem=problem,
            notes=(*log.notes, *log.left_out, *notes),
        )
    return Patient(name=log.name, trainer=known, missing=missing, problem="too much of it is missing")


LOGS = (".jsonl", ".csv", ".wandb", ".db")
"""Suffixes of files that may be logs."""
SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "completions"}


def log_sources(source: str) -> Iterator[str]:
    """Find what may be logs of runs below a source: folders of a run, and files that are one."""
    if source.startswith(("mlflow:", "runs:/")) or tracking.is_store(source):
        yield source
        return
    path = Path(source)
    if not path.exists():
        raise BudgetError(f"{path}: there is no such file or folder")
    if path.is_file():
        yield source
        return
    yield from map(str, last_states(path))
    for folder, below, files in os.walk(path):
        below[:] = sorted(d for d in below if d not in SKIPPED)
        if any(f.startswith("events.out.tfevents.") for f in files):
            yield from [str(Path(folder, f)) for f in files if f.startswith("events.out.tfevents.")][:1]
        yield from sorted(str(Path(folder, f)) for f in files if f.endswith(LOGS))


def read_source(
    source: str, trainer: str | None = None, *, step_column: str | None = None, named: bool = False
) -> tuple[str, list[Log]]:
    """The trainer that left a log, and its runs; an empty name where it is no log of one that is known.

    Args:
        trainer: The only one that may have left it, if it is known.
        step_column: Column of steps, where the trainer's own is missing.
        named: Whether the user named source and trainer, so that what cannot be read is an error.

    Raises:
        BudgetError: It was named, and cannot be read.
    """
    if Path(source).name.startswith("events.out.tfevents."):
        source = str(Path(source).parent)
    for name, known in TRAINERS.items():
        if known.logs is None or trainer not in (None, name):
            continue
        try:
            logs = read_logs(source, known.logs.layout, step_column=step_column)
        except BudgetError:
            if named:
                raise
            continue
        marks = known.logs.marks
        logs = [log for log in logs if any(marks.match(key) for _, metrics in log.rows for key in metrics)]
        if logs:
            return name, logs
    return "", []


def once(logs: Sequence[Log], reader: LogReader) -> list[Log]:
    """Merge logs of the same run: the longest one's rows, and all configurations."""
    out: list[Log] = []
    for log in sorted(logs, key=lambda log: -len(log.rows)):
        same = next((k for k, other in enumerate(out) if _same(other, log, reader)), None)
        if same is None:
            out.append(log)
        else:
            saved = {s: {k: v for k, v in m.items() if k.startswith("trainer_state.")} for s, m in log.rows}
            rows = {s: {**saved.get(s, {}), **m} for s, m in out[same].rows}
            rows = {**{s: m for s, m in saved.items() if m}, **rows}
            config = {**log.config, **out[same].config}
            out[same] = replace(out[same], config=config, rows=sorted(rows.items()))
    return sorted(out, key=lambda log: log.name)


def _same(one: Log, other: Log, reader: LogReader) -> bool:
    """Return whether two logs are of one run: everything that both logged is alike."""
    first = dict(one.rows)
    pairs = [
        (first[step][key], value)
        for step, metrics in other.rows
        for key, value in metrics.items()
        if step in first and key in first[step] and reader.layout.needed.match(key)
    ]
    return len(pairs) > 1 and all(isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in pairs)
