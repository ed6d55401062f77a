"""Logged metrics of runs, from wherever a framework or its logger left them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from .. import tracking
from ..errors import FrontierError
from ..reading import raw

STEPS = ("step", "_step", "global_step", "Step", "training/global_step", "train/global_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's logs.

    Attributes:
        name: Where they come from.
        rows: Metrics by logged step, in order; several logs of one step are joined.
        config: The configuration that the logs hold, flat, with dotted keys.
    """

    name: str
    rows: list[tuple[int, dict[str, float]]]
    config: dict[str, Any] = field(default_factory=dict)


def read_runs(source: str) -> list[Run]:
    """Read the runs of a source.

    Raises:
        FrontierError: It cannot be read or holds no metrics.
        TrackingError: MLflow does not have it.
    """
    if source.startswith(("mlflow:", "runs:/")):
        return [Run(name=name, rows=_joined(rows), config=config)
                for name, rows, config in tracking.histories(source)]  # fmt: skip
    path = Path(source)
    if not path.exists():
        raise FrontierError(f"{path}: there is no such file or folder")
    if path.is_dir():
        return [_folder(path)]
    return [_file(path)]


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML configuration, made flat with dotted keys.

    Raises:
        FrontierError: It cannot be read.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise FrontierError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        document = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise FrontierError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(document, dict):
        raise FrontierError(f"{path}: a configuration is a mapping")
    return flat(document)


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; a W&B ``{"value": …}`` is its value."""
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and set(value) <= {"value", "desc"} and "value" in value:
            value = value["value"]
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise FrontierError('a YAML configuration needs PyYAML: pip install "isocompute-frontier[ingest]"') from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _folder(path: Path) -> Run:
    """A folder holds one run: Trainer's state, event files, or one file of JSON lines or CSV."""
    states = sorted(path.rglob("trainer_state.json"), key=lambda p: p.stat().st_mtime)
    if states:
        return _file(states[-1])
    events = sorted(path.rglob("events.out.tfevents.*"))
    if events:
        return Run(name=str(path), rows=_joined(row for event in events for row in _events(event)))
    files = [p for suffix in ("*.jsonl", "*.csv") for p in sorted(path.glob(suffix))]
    if len(files) != 1:
        raise FrontierError(
            f"{path}: has to hold one run's trainer_state.json, TensorBoard events, or one .jsonl or .csv file"
        )
    return _file(files[0])


def _file(path: Path) -> Run:
    if path.name.startswith("events.out.tfevents"):
        return Run(name=str(path), rows=_joined(_events(path)))
    if path.name == "trainer_state.json":
        return _trainer_state(path)
    if path.suffix == ".jsonl":
        return Run(name=str(path), rows=_joined(_lines(path)))
    return Run(name=str(path), rows=_joined(_table(raw(path), path)))


def _trainer_state(path: Path) -> Run:
    try:
        state = json.loads(path.read_text())
        history = state["log_history"]
        rows = [(int(entry["step"]), _numbers(entry)) for entry in history]
    except (OSError, ValueError, KeyError, TypeError):
        raise FrontierError(f"{path}: is not the trainer_state.json of a transformers Trainer") from None
    # Beside it, Trainer leaves the arguments only as a pickle, which is never opened.
    config = {"trainer_state.train_batch_size": state.get("train_batch_size")}
    return Run(name=str(path), rows=_joined(rows), config={k: v for k, v in config.items() if v is not None})


def _lines(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """JSON lines: flat metrics with a step, or veRL's ``{"step": …, "data": {…}}``."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise FrontierError(f"{path}: cannot be read as text") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            if number == len(lines):
                # A run that was killed leaves its last line torn.
                return
            raise FrontierError(f"{path}: line {number} is not JSON") from None
        if not isinstance(entry, dict):
            raise FrontierError(f"{path}: line {number} is not an object")
        metrics = flat(entry["data"]) if isinstance(entry.get("data"), dict) else flat(entry)
        step = next((entry[k] for k in STEPS if k in entry), next((metrics[k] for k in STEPS if k in metrics), None))
        if step is None:
            raise FrontierError(f"{path}: line {number} has no step ({', '.join(STEPS)})")
        yield int(step), _numbers(metrics)


def _table(frame: pl.DataFrame, path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """A wide table, such as a CSV export of W&B, whose columns may be called ``RUN - METRIC``."""
    step = next((c for c in STEPS if c in frame.columns), None)
    if step is None:
        raise FrontierError(f"{path}: has no column of steps ({', '.join(STEPS)})")
    names = {c: c.rpartition(" - ")[2] for c in frame.columns if not c.endswith(("__MIN", "__MAX"))}
    prefixes = {c.rpartition(" - ")[0] for c in names if " - " in c}
    if len(prefixes) > 1:
        raise FrontierError(f"{path}: mixes the runs {', '.join(sorted(prefixes))}: export one run a file")
    for row in frame.iter_rows(named=True):
        yield int(row[step]), _numbers({names[c]: row[c] for c in names})


def _events(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise FrontierError('event files need TensorBoard: pip install "isocompute-frontier[ingest]"') from None
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            yield int(event.step), {tag: float(event.value)}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            if len(event.tensor_proto.float_val) == 1:
                yield int(event.step), {tag: float(event.tensor_proto.float_val[0])}


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in entry.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _joined(rows: Any) -> list[tuple[int, dict[str, float]]]:
    joined: dict[int, dict[str, float]] = {}
    for step, metrics in rows:
        joined.setdefault(step, {}).update(metrics)
    return sorted(joined.items())
