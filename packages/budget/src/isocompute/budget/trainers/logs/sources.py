"""Logged metrics of runs, from wherever a trainer or its logger left them."""

from __future__ import annotations

import re
from pathlib import Path

from ...contract import tracking
from ...errors import BudgetError
from .arguments import read_arguments
from .events import read_events
from .lines import read_lines, read_state, read_table
from .log import Layout, Log, join, numbers
from .tracked import histories
from .trackio import read_trackio
from .wandb import read_wandb


def read_logs(source: str, layout: Layout, *, step_column: str | None = None) -> list[Log]:
    """Read the runs of a source, one by one.

    Args:
        source: A file, a folder, ``runs:/ID``, ``mlflow:EXPERIMENT`` or a tracking URI.
        step_column: Column that counts the trainer's steps, where a file's own say something else.

    Raises:
        BudgetError: It cannot be read or holds no metrics.
        TrackingError: MLflow does not have it.
    """
    if source.startswith(("mlflow:", "runs:/")) or tracking.is_store(source):
        _refuse_column(source, step_column)
        return [
            join(name, [[(step, numbers(metrics)) for step, metrics in rows]], layout, config)
            for name, rows, config in histories(source)
        ]
    path = Path(source)
    if not path.exists():
        raise BudgetError(f"{path}: there is no such file or folder")
    return _folder(path, layout, step_column) if path.is_dir() else _file(path, layout, step_column)


def _folder(path: Path, layout: Layout, step_column: str | None) -> list[Log]:
    """Runs of a folder: Trainer's states, event files, W&B's files, or one file of JSON lines or CSV."""
    states = last_states(path)
    if states:
        _refuse_column(str(path), step_column)
        return [_state(state, layout) for state in states]
    events = sorted(path.rglob("events.out.tfevents.*"))
    if events:
        _refuse_column(str(path), step_column)
        runs = read_events(events, layout)
        if not runs:
            raise BudgetError(f"{path}: its event files hold no metrics")
        return runs
    found = [read_wandb(file, layout, step_column) for file in sorted(path.rglob("*.wandb"))]
    if any(found):
        return [log for log in found if log is not None]
    files = [p for suffix in ("*.jsonl", "*.csv", "*.db") for p in sorted(path.glob(suffix))]
    if len(files) != 1:
        names = f"; it holds {', '.join(p.name for p in files)}, to be named one by one" if files else ""
        raise BudgetError(
            f"{path}: must hold trainer_state.json, TensorBoard events, .wandb files, or one .jsonl or .csv file{names}"
        )
    return _file(files[0], layout, step_column)


def last_states(path: Path) -> list[Path]:
    """The last ``trainer_state.json`` of each run below a folder: the one at its end, else of its last checkpoint."""
    last: dict[Path, tuple[float, Path]] = {}
    for state in sorted(path.rglob("trainer_state.json")):
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        run = state.parent.parent if checkpoint and state.parent != path else state.parent
        # A folder that was copied has lost its times, so they say nothing.
        rank = float(checkpoint[1]) if checkpoint else float("inf")
        last[run] = max(last.get(run, (-1.0, state)), (rank, state))
    return [state for _, state in last.values()]


def _state(path: Path, layout: Layout) -> Log:
    """A trainer's state with the arguments that lie beside it, or in the folder of its run."""
    log = read_state(path, layout)
    for folder in (path.parent, path.parent.parent):
        if (folder / "training_args.bin").is_file():
            log.config.update(read_arguments(folder / "training_args.bin"))
            break
    return log


def _file(path: Path, layout: Layout, step_column: str | None) -> list[Log]:
    kind = next((k for k in ("events.out.tfevents", "trainer_state.json") if path.name.startswith(k)), path.suffix)
    if kind in ("events.out.tfevents", "trainer_state.json", ".db"):
        _refuse_column(str(path), step_column)
    if kind == "trainer_state.json":
        return [_state(path, layout)]
    runs: list[Log]
    if kind == "events.out.tfevents":
        runs = read_events([path], layout)
    elif kind == ".wandb":
        runs = [log for log in (read_wandb(path, layout, step_column),) if log is not None]
    elif kind == ".db":
        runs = read_trackio(path, layout)
    else:
        return (read_lines if kind == ".jsonl" else read_table)(path, layout, step_column)
    if not runs:
        raise BudgetError(f"{path}: holds no metrics")
    return runs


def _refuse_column(source: str, step_column: str | None) -> None:
    if step_column is not None:
        raise BudgetError(
            f"{source}: has one step for each metric and no column {step_column!r}; step_column is for tables and "
            "JSON lines"
        )
