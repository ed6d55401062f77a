"""Logged metrics of runs, from wherever a framework or its logger left them."""

from __future__ import annotations

import re
from pathlib import Path

from ...contract import tracking
from ...errors import FrontierError
from .events import read_events
from .lines import read_lines, read_state, read_table
from .run import Layout, Run, numbers, run_of
from .tracked import histories


def read_runs(source: str, layout: Layout, *, step_column: str | None = None) -> list[Run]:
    """Read the runs of a source, one by one.

    Args:
        source: A file, a folder, ``runs:/ID``, ``mlflow:EXPERIMENT`` or a tracking URI.
        layout: Of the framework that logged it.
        step_column: Column that counts the trainer's steps, where a file's own say something else.

    Raises:
        FrontierError: It cannot be read or holds no metrics.
        TrackingError: MLflow does not have it.
    """
    if source.startswith(("mlflow:", "runs:/")) or tracking.is_store(source):
        _refuse_column(source, step_column)
        return [
            run_of(name, ((step, numbers(metrics)) for step, metrics in rows), layout, config)
            for name, rows, config in histories(source)
        ]
    path = Path(source)
    if not path.exists():
        raise FrontierError(f"{path}: there is no such file or folder")
    return _folder(path, layout, step_column) if path.is_dir() else _file(path, layout, step_column)


def _folder(path: Path, layout: Layout, step_column: str | None) -> list[Run]:
    """Runs of a folder: Trainer's states, event files, or one file of JSON lines or CSV."""
    states = _last_states(path)
    events = sorted(path.rglob("events.out.tfevents.*"))
    if states or events:
        _refuse_column(str(path), step_column)
    if states:
        return [read_state(state, layout) for state in states]
    if events:
        runs = read_events(events, layout)
        if not runs:
            raise FrontierError(f"{path}: its event files hold no metrics")
        return runs
    files = [p for suffix in ("*.jsonl", "*.csv") for p in sorted(path.glob(suffix))]
    if len(files) != 1:
        found = f"; it holds {', '.join(p.name for p in files)}, to be named one by one" if files else ""
        raise FrontierError(
            f"{path}: must hold trainer_state.json, TensorBoard events, or one .jsonl or .csv file{found}"
        )
    return _file(files[0], layout, step_column)


def _last_states(path: Path) -> list[Path]:
    """The last ``trainer_state.json`` of each run: the one at its end, else that of its last checkpoint."""
    last: dict[Path, tuple[float, Path]] = {}
    for state in sorted(path.rglob("trainer_state.json")):
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        run = state.parent.parent if checkpoint and state.parent != path else state.parent
        # A folder that was copied has lost its times, so they say nothing.
        rank = float(checkpoint[1]) if checkpoint else float("inf")
        last[run] = max(last.get(run, (-1.0, state)), (rank, state))
    return [state for _, state in last.values()]


def _file(path: Path, layout: Layout, step_column: str | None) -> list[Run]:
    if path.name.startswith("events.out.tfevents"):
        _refuse_column(str(path), step_column)
        runs = read_events([path], layout)
        if not runs:
            raise FrontierError(f"{path}: holds no metrics")
        return runs
    if path.name == "trainer_state.json":
        _refuse_column(str(path), step_column)
        return [read_state(path, layout)]
    read = read_lines if path.suffix == ".jsonl" else read_table
    return read(path, layout, step_column)


def _refuse_column(source: str, step_column: str | None) -> None:
    if step_column is not None:
        raise FrontierError(
            f"{source}: has one step for each metric and no column {step_column!r}; step_column is for tables and "
            "JSON lines"
        )
