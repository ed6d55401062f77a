"""Logs found below folders, whatever trainer and logger left them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path

from ..contract import tracking
from ..errors import BudgetError
from .logs.log import Log
from .logs.sources import last_states, read_logs
from .registry import TRAINERS
from .trainer import LogReader

LOGS = (".jsonl", ".csv", ".wandb", ".db")
"""Suffixes of files that may be logs."""
SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "completions"}


def places(source: str) -> Iterator[str]:
    """What may be logs of a run below a source: each folder of a run, and each file that is one."""
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


def read_place(
    place: str, trainer: str | None = None, *, step_column: str | None = None, named: bool = False
) -> tuple[str, list[Log]]:
    """The trainer that left a log, and its runs; an empty name where it is no log of one that is known.

    Args:
        trainer: The only one that may have left it, if it is known.
        step_column: Column of steps, where the trainer's own is missing.
        named: Whether the user named place and trainer, so that what cannot be read is an error.

    Raises:
        BudgetError: It was named, and cannot be read.
    """
    source = str(Path(place).parent) if Path(place).name.startswith("events.out.tfevents.") else place
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
    """Runs of which several loggers kept a log, once each: with the longest one's rows and all configurations."""
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
    """Whether two logs are of one run: everything that both logged is alike."""
    first = dict(one.rows)
    pairs = [
        (first[step][key], value)
        for step, metrics in other.rows
        for key, value in metrics.items()
        if step in first and key in first[step] and reader.layout.needed.match(key)
    ]
    return len(pairs) > 1 and all(isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in pairs)
