"""One run on its way to MLflow: what is new is sent, and sent again without harm where nobody knows if it arrived."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from isocompute.budget.contract import tracking
from isocompute.learner import EvaluationRecord

from ..outbox import Parcel
from . import work
from .spool import Position, Spool, Spooled

METRICS, PARAMETERS, TAGS = 800, 100, 100
"""Most of each in one request; MLflow takes 1,000 of all together, and 100 parameters and tags."""
RESULTS = ("eval/", "train/reward")
"""How the names of numbers begin that are logged even where they stay the same."""
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""By how much two values may differ and still be the same: rounding is no change."""
ROUNDING = 1e-6
"""The absolute part of it where two programs' log-probabilities are compared, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric.

    Attributes:
        time: When it was measured, in ms since 1970.
        rollouts: Cumulative rollouts.
    """

    name: str
    value: float
    time: int
    rollouts: int


class Changes:
    """The points of one run that are worth keeping, from its records in their order.

    A number that has never changed has none. Of one that stays the same for a while the first and the last point of
    that while are kept, so that straight lines between the points show what was measured.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Point] = {}
        self._logged: set[str] = set()
        self._held: dict[str, Point] = {}
        self._rollouts = -1
        self._kinds: set[str] = set()

    def of(self, spooled: Spooled) -> Iterator[Point]:
        """The points that a record adds; none where the same step was taken before."""
        record = spooled.record
        # A step and the evaluation after it share their rollouts.
        kind = "eval" if isinstance(record, EvaluationRecord) else "train"
        if record.rollouts < self._rollouts or (record.rollouts == self._rollouts and kind in self._kinds):
            return
        if record.rollouts > self._rollouts:
            self._rollouts, self._kinds = record.rollouts, set()
        self._kinds.add(kind)
        for name, value in record.metrics().items():
            if math.isfinite(value):
                yield from self._add(Point(name=name, value=value, time=spooled.time, rollouts=record.rollouts))

    def last(self) -> list[Point]:
        """The points with which the lines reach the end of the run."""
        return [point for name, point in self._held.items() if name in self._logged]

    def _add(self, point: Point) -> Iterator[Point]:
        name, before = point.name, self._kept.get(point.name)
        least = ROUNDING if name.startswith("health/") else ABSOLUTE
        if name.startswith(RESULTS):
            yield point
        elif before is None:
            self._kept[name] = self._held[name] = point
        elif math.isclose(point.value, before.value, rel_tol=RELATIVE, abs_tol=least):
            self._held[name] = point
        else:
            if name not in self._logged:
                self._logged.add(name)
                yield before
            held = self._held.pop(name, before)
            if held != before:
                yield held
            self._kept[name] = point
            yield point


class Delivery:
    """Sends one run, a little at a time; reads its spool once.

    A point carries the time at which it was measured, so that one that is sent twice is stored once.
    """

    def __init__(self) -> None:
        self._run: str | None = None
        self._position, self._changes = Position(), Changes()
        self._latest = 0

    def send(self, parcel: Parcel) -> None:
        """Send what is new.

        Raises:
            Exception: Whatever MLflow's client raises; since nobody knows what was sent by then, another begins anew.
        """
        if parcel.folder:
            self._send(parcel)
        if parcel.means is not None:
            owner = parcel.tags[tracking.OWNER_TAG]
            tracking.supersede_runs(parcel.experiment, owner=owner, keep=parcel.means)

    def _send(self, parcel: Parcel) -> None:
        from mlflow import MlflowClient

        spooled, position = Spool(Path(parcel.folder) / "metrics.jsonl").since(self._position)
        if not spooled and parcel.ended is None:
            return
        if spooled:
            self._latest = spooled[-1].time
        client, note = MlflowClient(), read_note(parcel)
        if self._run is None:
            begun = spooled[0].time if spooled else parcel.begun
            self._run = self._opened(client, parcel, note, begun)
            if note.get("run") != self._run:
                # What another one was sent counts no longer.
                note = {"run": self._run}
                _write_note(parcel, note)
        if parcel.ended is not None and is_sent(note, parcel.rollouts):
            return
        if parcel.ended is None and "finished" in note:
            # A longer run begins as the shorter one: its MLflow run goes on.
            client.update_run(self._run, status="RUNNING")
            del note["finished"]
            _write_note(parcel, note)
        params = {} if "reached" in note else parcel.params
        points = []
        for each in spooled:
            changed = list(self._changes.of(each))
            points += changed if _is_new(each, note) else []
        if parcel.ended is not None:
            at_start = {"time": parcel.begun, "rollouts": 0}
            points += [Point(name=name, value=value, **at_start) for name, value in parcel.metrics.items()]
            points += self._changes.last()
        self._log(client, points, params=params, tags=parcel.tags if parcel.ended is not None else {})
        self._position = position
        if parcel.ended is not None:
            artifacts = {name: Path(path) for name, path in parcel.artifacts.items()}
            tracking.attach(str(self._run), artifacts, figures=[Path(path) for path in parcel.figures])
            status, ended = "FAILED" if parcel.failed else "FINISHED", self._latest or parcel.ended
            client.set_terminated(self._run, status=status, end_time=ended)
            note |= {"finished": parcel.rollouts, "tags": dict(parcel.tags)}
        _write_note(parcel, note)

    @staticmethod
    def _opened(client: Any, parcel: Parcel, note: Mapping[str, Any], begun: int) -> str:
        """The owner's run, active: the one of the note, one that was made just before a kill, or a new one."""
        if "run" in note:
            try:
                if client.get_run(note["run"]).info.lifecycle_stage == "active":
                    return str(note["run"])
            except Exception as error:
                if not tracking.is_gone(error):
                    raise
        experiment = tracking.ensure_experiment(parcel.experiment)
        owned = {tracking.OWNER_TAG: parcel.tags[tracking.OWNER_TAG], tracking.KEY_TAG: parcel.key}
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in owned.items())
        if runs := client.search_runs([experiment], wanted):
            return str(runs[0].info.run_id)
        tags = {**parcel.tags, tracking.KEY_TAG: parcel.key}
        made = client.create_run(experiment, start_time=begun, run_name=parcel.name, tags=tags)
        return str(made.info.run_id)

    def _log(self, client: Any, points: Sequence[Point], *, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log in as few requests as MLflow allows."""
        from mlflow.entities import Metric, Param, RunTag

        parts = zip_longest(
            _parts([Metric(p.name, p.value, p.time, p.rollouts) for p in points], METRICS),
            _parts([Param(key, value) for key, value in params.items()], PARAMETERS),
            _parts([RunTag(name, value) for name, value in tags.items()], TAGS),
            fillvalue=(),
        )
        for metrics, some_params, some_tags in parts:
            client.log_batch(self._run, metrics=metrics, params=some_params, tags=some_tags)


def _is_new(spooled: Spooled, note: dict[str, Any]) -> bool:
    """Whether an earlier process has not sent a record; that this one does is noted.

    A step that was taken again after a kill has another time, by which MLflow would keep both.
    """
    at, kind = spooled.record.rollouts, type(spooled.record).__name__
    reached, kinds = note.get("reached", (-1, ()))
    if at < reached or (at == reached and kind in kinds):
        return False
    note["reached"] = (at, [*kinds, kind] if at == reached else [kind])
    return True


def read_note(parcel: Parcel) -> dict[str, Any]:
    """What was sent of a run to its experiment, kept beside its spool; empty where nothing was."""
    path = Path(parcel.folder) / "sent.json"
    return dict(json.loads(path.read_text()).get(parcel.experiment, {})) if path.exists() else {}


def _write_note(parcel: Parcel, note: Mapping[str, Any]) -> None:
    path = Path(parcel.folder) / "sent.json"
    every = json.loads(path.read_text()) if path.exists() else {}
    work.write_json(path, {**every, parcel.experiment: note})


def is_sent(note: Mapping[str, Any], rollouts: int | None) -> bool:
    """Whether a run was sent whole, at a budget or a larger one."""
    return "finished" in note and (rollouts is None or (note["finished"] or 0) >= rollouts)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
