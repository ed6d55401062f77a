"""One run on its way to MLflow: what is new is sent, and sent again without harm where nobody knows if it arrived."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from isocompute.budget.contract import tracking

from ..outbox import Parcel
from . import work
from .changes import Changes, Point
from .spool import Position, Spool

METRICS, PARAMETERS, TAGS = 800, 100, 100
"""Most of each in one request; MLflow takes 1,000 of all together, and 100 parameters and tags."""


class Delivery:
    """Sends one run, a little at a time; reads its spool once.

    A point carries the time at which it was measured, so that one that is sent twice is stored once.
    """

    def __init__(self, heard: Callable[[], None], experiments: dict[str, str]) -> None:
        self._heard, self._experiments = heard, experiments
        self._run: str | None = None
        self._position, self._changes = Position(), Changes()
        self._latest = 0

    def send(self, parcel: Parcel) -> None:
        """Send what is new.

        Raises:
            Exception: Whatever MLflow's client raises; the next call begins anew.
        """
        try:
            if parcel.folder:
                self._send(parcel)
            if parcel.means is not None:
                owner = parcel.tags[tracking.OWNER_TAG]
                tracking.supersede_runs(parcel.experiment, owner=owner, keep=parcel.means)
        except BaseException:
            self._run, self._position, self._changes = None, Position(), Changes()
            # Somebody may have deleted it.
            self._experiments.pop(parcel.experiment, None)
            raise

    def _send(self, parcel: Parcel) -> None:
        from mlflow import MlflowClient

        spooled, position = Spool(Path(parcel.folder) / "metrics.jsonl").since(self._position)
        if not spooled and parcel.ended is None:
            return
        if spooled:
            self._latest = spooled[-1].time
        client, note = MlflowClient(), _Note(parcel)
        if self._run is None:
            begun = spooled[0].time if spooled else parcel.begun
            self._run = self._found(client, parcel, note) or self._created(client, parcel, begun)
            note.begin(self._run)
        if parcel.ended is not None and note.finished(parcel):
            return
        if parcel.ended is None and note.ended:
            # A longer run begins as the shorter one: its MLflow run goes on.
            client.update_run(self._run, status="RUNNING")
            note.reopen()
        params = parcel.params if note.is_empty else {}
        batch: list[Point] = []
        for each in spooled:
            batch += note.unsent(each, list(self._changes.of(each)))
            if len(batch) >= METRICS:
                self._log(client, batch, params=params)
                note.write()
                batch, params = [], {}
        if parcel.ended is not None:
            at_start = {"time": parcel.begun, "rollouts": 0}
            batch += [Point(name=name, value=value, **at_start) for name, value in parcel.metrics.items()]
            batch += self._changes.last()
        self._log(client, batch, params=params, tags=parcel.tags if parcel.ended is not None else {})
        note.write()
        self._position = position
        if parcel.ended is not None:
            self._end(client, parcel, self._latest or parcel.ended)
            note.end(parcel)

    def _found(self, client: Any, parcel: Parcel, note: _Note) -> str | None:
        """The owner's run that is there, active: the one of the note, or one that was made just before a kill."""
        if note.run:
            try:
                if client.get_run(note.run).info.lifecycle_stage == "active":
                    return note.run
            except Exception as error:
                if not tracking.is_gone(error):
                    raise
        if parcel.experiment not in self._experiments:
            self._experiments[parcel.experiment] = tracking.ensure_experiment(parcel.experiment)
        owned = {tracking.OWNER_TAG: parcel.tags[tracking.OWNER_TAG], tracking.KEY_TAG: parcel.key}
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in owned.items())
        runs = client.search_runs([self._experiments[parcel.experiment]], wanted)
        self._heard()
        return str(runs[0].info.run_id) if runs else None

    def _created(self, client: Any, parcel: Parcel, begun: int) -> str:
        run = client.create_run(
            self._experiments[parcel.experiment], start_time=begun, run_name=parcel.name,
            tags={**parcel.tags, tracking.KEY_TAG: parcel.key},
        )  # fmt: skip
        self._heard()
        return str(run.info.run_id)

    def _log(
        self, client: Any, points: Sequence[Point], *, params: Mapping[str, str], tags: Mapping[str, str] | None = None
    ) -> None:
        """Log in as few requests as MLflow allows."""
        from mlflow.entities import Metric, Param, RunTag

        parts = zip_longest(
            _parts([Metric(p.name, p.value, p.time, p.rollouts) for p in points], METRICS),
            _parts([Param(key, value) for key, value in params.items()], PARAMETERS),
            _parts([RunTag(name, value) for name, value in (tags or {}).items()], TAGS),
            fillvalue=(),
        )
        for metrics, some_params, some_tags in parts:
            client.log_batch(self._run, metrics=metrics, params=some_params, tags=some_tags)
            self._heard()

    def _end(self, client: Any, parcel: Parcel, ended: int) -> None:
        artifacts = {name: Path(path) for name, path in parcel.artifacts.items()}
        tracking.attach(str(self._run), artifacts, figures=[Path(path) for path in parcel.figures])
        self._heard()
        client.set_terminated(self._run, status="FAILED" if parcel.failed else "FINISHED", end_time=ended)
        self._heard()


class _Note:
    """What was sent of a run to one experiment, kept beside its spool."""

    def __init__(self, parcel: Parcel) -> None:
        self._path, self._experiment = Path(parcel.folder) / "sent.json", parcel.experiment
        self._sent: dict[str, Any] = read_note(Path(parcel.folder), parcel.experiment)

    @property
    def run(self) -> str | None:
        return self._sent.get("run")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was sent to the run but that it has begun."""
        return int(self._sent["rollouts"]) < 0

    @property
    def ended(self) -> bool:
        return "finished" in self._sent

    def finished(self, parcel: Parcel) -> bool:
        return is_sent(self._sent, parcel.rollouts)

    def begin(self, run: str) -> None:
        """Note the run, before anything else is sent to it; what another one was sent counts no longer."""
        if run != self.run:
            self._sent = {"run": run, "rollouts": -1, "kinds": []}
            self.write()

    def reopen(self) -> None:
        del self._sent["finished"]

    def end(self, parcel: Parcel) -> None:
        self._sent |= {"finished": parcel.rollouts, "tags": dict(parcel.tags)}
        self.write()

    def unsent(self, spooled: Any, points: list[Point]) -> list[Point]:
        """The points of a record, unless an earlier process has sent them; that they will be is noted."""
        record, kind = spooled.record, type(spooled.record).__name__
        if record.rollouts < self._sent["rollouts"] or (
            record.rollouts == self._sent["rollouts"] and kind in self._sent["kinds"]
        ):
            return []
        if record.rollouts > self._sent["rollouts"]:
            self._sent |= {"rollouts": record.rollouts, "kinds": []}
        self._sent["kinds"].append(kind)
        return points

    def write(self) -> None:
        every = json.loads(self._path.read_text()) if self._path.exists() else {}
        work.write_json(self._path, {**every, self._experiment: self._sent})


def read_note(folder: Path, experiment: str) -> dict[str, Any]:
    """What was sent of a folder to an experiment; empty where nothing was."""
    path = folder / "sent.json"
    return dict(json.loads(path.read_text()).get(experiment, {})) if path.exists() else {}


def is_sent(note: dict[str, Any], rollouts: int | None) -> bool:
    """Whether a run was sent whole, at a budget or a larger one."""
    return "finished" in note and (rollouts is None or (note["finished"] or 0) >= rollouts)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
