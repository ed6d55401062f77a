"""Logged metrics of runs, from wherever a trainer or its logger left them, read without the logger.

What a file holds decides how it is read, whatever it is called; its name decides where the content does not.
"""

from __future__ import annotations

from pathlib import Path

from ...contract import tracking
from ...errors import BudgetError
from . import databases, wandb
from .databases import read_database, read_store
from .files import content, name_of, require_regular, text_of
from .log import Log, LogLayout
from .states import last_states, read_state
from .tables import is_console, read_console, read_lines, read_table
from .tensorboard import read_events
from .wandb import read_wandb

EVENTS, STATE = "events.out.tfevents.", "trainer_state.json"
LINES, TABLES, PRINTED = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv", ".parquet"), (".log", ".txt", ".out", "")
"""Suffixes of files whose content is text, or a table."""


def read_logs(source: str, layout: LogLayout, *, step_column: str | None = None) -> list[Log]:
    """Read the runs of a source, one by one.

    Args:
        source: A file, a folder, ``runs:/ID``, ``mlflow:EXPERIMENT`` or a tracking URI.
        step_column: Column that counts the trainer's steps, where a file's own say something else.

    Raises:
        BudgetError: It cannot be read or holds no metrics.
        DamagedLogError: It is damaged, or not in the format that its name says.
        TrackingError: MLflow does not have it.
    """
    if source.startswith(("mlflow:", "runs:/")) or tracking.is_store(source):
        _refuse_column(source, step_column)
        return read_store(source, layout)
    path = Path(source)
    try:
        found = path.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise BudgetError(f"{path}: there is no such file or folder")
    return _folder(path, layout, step_column) if path.is_dir() else _file(path, layout, step_column)


def may_be_log(path: Path) -> bool:
    """Return whether a file's name, or for a text a line in it, says that it may be the log of a run."""
    name = name_of(path)
    if name.name.startswith((EVENTS, STATE)) or name.suffix in (".jsonl", ".ndjson", *TABLES, ".wandb", ".db"):
        return True
    try:
        return name.suffix in PRINTED and path.is_file() and is_console(text_of(path, content(path)))
    except BudgetError:
        return False


def _folder(path: Path, layout: LogLayout, step_column: str | None) -> list[Log]:
    """Runs of a folder: Trainer's states, event files, W&B's files, or one file of another kind."""
    states = last_states(path)
    if states:
        _refuse_column(str(path), step_column)
        return [read_state(state, layout) for state in states]
    events = sorted(path.rglob(f"{EVENTS}*"))
    if events:
        _refuse_column(str(path), step_column)
        runs = read_events(events, layout)
        if not runs:
            raise BudgetError(f"{path}: its event files hold no metrics")
        return runs
    logs = [read_wandb(file, layout, step_column) for file in sorted(path.rglob("*.wandb"))]
    if any(logs):
        return [log for log in logs if log is not None]
    files = [file for file in sorted(path.iterdir()) if may_be_log(file)]
    if len(files) != 1:
        names = f"; it holds {', '.join(p.name for p in files)}, to be named one by one" if files else ""
        raise BudgetError(
            f"{path}: must hold trainer_state.json, TensorBoard events, .wandb files, or one .jsonl or .csv file{names}"
        )
    return _file(files[0], layout, step_column)


def _file(path: Path, layout: LogLayout, step_column: str | None) -> list[Log]:
    """Runs of a file."""
    require_regular(path)
    if path.name.startswith(STATE):
        _refuse_column(str(path), step_column)
        return [read_state(path, layout)]
    if path.name.startswith(EVENTS):
        _refuse_column(str(path), step_column)
        return _some(path, read_events([path], layout))
    with path.open("rb") as stream:
        first = stream.read(len(databases.MAGIC))
    if first == databases.MAGIC or path.suffix == ".db":
        _refuse_column(str(path), step_column)
        return _some(path, read_database(path, layout))
    data, suffix = content(path), name_of(path).suffix.lower()
    if data.startswith(wandb.MAGIC) or suffix == ".wandb":
        return _some(path, [log for log in (read_wandb(path, layout, step_column),) if log is not None])
    if data.startswith(b"PAR1") or suffix == ".parquet":
        return read_table(path, data, layout, step_column)
    text = text_of(path, data)
    printed = suffix not in TABLES and is_console(text)
    if printed and not (text.lstrip().startswith("{") and suffix in LINES):
        return read_console(path, data, layout, step_column)
    lines = suffix in LINES or text.lstrip().startswith("{")
    return (read_lines if lines else read_table)(path, data, layout, step_column)


def _some(path: Path, runs: list[Log]) -> list[Log]:
    if not runs:
        raise BudgetError(f"{path}: holds no metrics")
    return runs


def _refuse_column(source: str, step_column: str | None) -> None:
    if step_column is not None:
        raise BudgetError(
            f"{source}: has one step for each metric and no column {step_column!r}; step_column is for tables and "
            "JSON lines"
        )
