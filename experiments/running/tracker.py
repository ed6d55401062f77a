"""Cells as MLflow runs that can be watched while they train.

Only the driver writes to MLflow, in a thread of its own: workers append to spool files, and what has been sent is
noted beside them. What is to be sent is on disk until it has been: when the server goes away, training goes on, and
this command or the next sends the rest. What is sent twice is stored once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from filelock import FileLock
from isocompute.budget.contract import tracking
from isocompute.budget.contract.errors import redacted
from isocompute.budget.contract.files import reason_of, write_text
from isocompute.learner import EvaluationRecord
from isocompute.learner.records.health import Flag, flags, judged

from ..errors import listed
from ..settings import leaves
from . import cell_folder
from .cell_folder import Cursor, Spool, Spooled
from .cells import Cell

WORK = Path("work")
TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries; the log of another trainer does not give all of them."""
STATUS_TAG = "isocompute.status"
HEALTH_TAG = "isocompute.health"
BUDGET_TAG = "isocompute.budget_rollouts"
TOO_SHORT = "too short to judge"
RETRY_SECONDS = 15.0
PATIENCE_SECONDS = 300.0
"""Longest wait for one run at the end of a stage: a large artifact, or new tables, take their time. A server that does
not answer is given up by MLflow's client before that."""
SEND = "python -m experiments send"


class Sender:
    """Sends parcels in the order in which they came, those first that an earlier process has left."""

    def __init__(self) -> None:
        # MLflow's client would ask again for minutes; what was not sent is sent later.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        self.outbox = Outbox()
        self._changed = threading.Condition()
        self._waiting: dict[str, Parcel] = {parcel.id: parcel for parcel in self.outbox.parcels()}
        self._deliveries: dict[str, Delivery] = {}
        self._thread: threading.Thread | None = None
        self._ready = self._closed = False
        self._failures, self._resumes_at = 0, 0.0
        self.reason = ""
        self._start()

    def put(self, parcel: Parcel, *, keep: bool = True) -> None:
        """Send a parcel as soon as may be; one of the same run that still waits is replaced.

        Args:
            keep: Whether it is put into the outbox, too, for later commands.
        """
        if keep:
            self.outbox.put(parcel)
        with self._changed:
            self._waiting[parcel.id] = parcel
            self._start()
            self._changed.notify_all()

    def drain(self) -> Sequence[Parcel]:
        """Wait until everything is sent, or MLflow does not answer."""
        with self._changed:
            failures = self._failures
            self._resumes_at = 0.0
            self._start()
            self._changed.notify_all()
            while left := len(self._waiting):
                moved = self._changed.wait_for(
                    lambda: len(self._waiting) < left or self._failures > failures, PATIENCE_SECONDS
                )
                if not moved:
                    self.reason = "it does not answer"
                if not moved or self._failures > failures:
                    break
            return list(self._waiting.values())

    def close(self) -> None:
        """Stop trying; what was not sent stays in the outbox, if it was put there."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def report(self) -> bool:
        """Wait as ``drain`` does, and say in one line what was not sent; returns whether there is such a thing."""
        left = self.drain()
        self.close()
        if left:
            names = listed(sorted({parcel.name for parcel in left}), most=5, between="; ")
            print(
                f"MLflow: not sent are the runs {names} ({redacted(self.reason)}). They are in "
                f"{os.path.relpath(self.outbox.folder)}; the next stage, or `{SEND}`, sends them.",
                flush=True,
            )
        return bool(left)

    def _start(self) -> None:
        """Start the thread where there is something to send and none does; it ends with its process, sent or not."""
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._waiting:
                    self._thread = None
                    return
                pause = self._resumes_at - time.monotonic()
                if pause > 0:
                    self._changed.wait(pause)
                    continue
                parcels = sorted(self._waiting.values(), key=lambda parcel: not parcel.folder)
            failed = False
            for parcel in parcels:
                error = self._sent(parcel)
                failed |= error is not None
                if error is not None and not _is_of_one_run(error):
                    break
            with self._changed:
                if failed:
                    self._failures += 1
                    self._resumes_at = time.monotonic() + RETRY_SECONDS
                self._changed.notify_all()

    def _sent(self, parcel: Parcel) -> Exception | None:
        """Send one parcel; returns what came of it if it was not sent."""
        delivery = self._deliveries.setdefault(parcel.id, Delivery())
        try:
            with self.outbox.sending():
                if not self._ready:
                    tracking.ensure_store()
                    self._ready = True
                # Not where another process has sent it meanwhile, or its cell was thrown away.
                if parcel.ended is None or Path(parcel.folder).is_dir():
                    delivery.send(parcel)
                self._done(parcel)
        except Exception as error:
            # Nobody knows what has arrived: the next try reads again what there is.
            del self._deliveries[parcel.id]
            self.reason = reason_of(error)
            return error
        return None

    def _done(self, parcel: Parcel) -> None:
        """Forget a parcel, unless there is a newer one; one that goes on stays on disk."""
        with self._changed:
            if self._waiting.get(parcel.id) is parcel:
                del self._waiting[parcel.id]
                self._changed.notify_all()
                if parcel.ended is not None or not parcel.folder:
                    self.outbox.remove(parcel)


def _is_of_one_run(error: Exception) -> bool:
    """Return whether only this run cannot be sent, as when its files are gone: the others are tried, too."""
    return isinstance(error, FileNotFoundError) or getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"


class Tracker(Sender):
    """Sends the metrics of cells to one MLflow experiment; no method but ``drain`` waits for MLflow."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        self._experiment = experiment
        self._running: dict[str, Parcel] = {}

    def send(self, cell: Cell, *, finished: bool = False) -> None:
        """Send what is new of a cell, as soon as MLflow takes it; of one that is finished its tables, too."""
        if not finished:
            known = self._running.get(cell.run_id)
            self._running[cell.run_id] = known or self._parcel(cell)
            self.put(self._running[cell.run_id], keep=known is None)
            return
        parcel = self._parcel(cell)
        note = read_note(parcel)
        sent = is_sent(note, cell.rollouts)
        # What was sent whole is looked at again, since its run may have been deleted, but not kept for later.
        self.put(self._ended(parcel, cell, note["tags"] if sent else None), keep=not sent)

    def send_baseline(self, cell: Cell) -> None:
        """Send the first evaluation that cells of one seed, of which this is any, share, with what it cost."""
        folder = cell_folder.baseline_of(cell)
        made = _written(folder / "evaluation.json")
        parcel = Parcel(
            experiment=self._experiment,
            key=cell.baseline_id,
            name=f"{cell.origin.base_model}, seed {cell.run.seed}",
            folder=str(folder.resolve()),
            begun=made,
            ended=made,
            tags=tags(self._experiment),
            metrics={
                **{f"eval/{name}": value for name, value in cell_folder.read_baseline(folder).metrics.items()},
                **{f"health/vllm_{name}": value for name, value in cell_folder.beside_vllm(folder).items()},
            },
            artifacts={"ledger": str((folder / "ledger.parquet").resolve())},
        )
        self.put(parcel, keep=not is_sent(read_note(parcel), None))

    def mean(self, cells: Sequence[Cell]) -> None:
        """Make ``mlflow:EXPERIMENT`` mean these cells and no others of this owner's."""
        keys = sorted({key for cell in cells for key in (cell.run_id, cell.baseline_id) if key})
        self.put(
            Parcel(
                experiment=self._experiment,
                key="means",
                name=f"which runs {self._experiment} means",
                means=keys,
                tags=tags(self._experiment),
            )
        )

    def _parcel(self, cell: Cell) -> Parcel:
        plain = {**asdict(cell), **asdict(cell.named_run)}
        del plain["rollouts"], plain["run"]
        return Parcel(
            experiment=self._experiment,
            key=cell.run_id,
            name=cell.name,
            folder=str(cell_folder.folder_of(cell).resolve()),
            begun=int(time.time() * 1000),
            params={key: str(value) for key, value in leaves(plain)},
            tags={**tags(self._experiment), "isocompute.problem_set": cell.origin.problem_set},
        )

    @staticmethod
    def _ended(parcel: Parcel, cell: Cell, final: Mapping[str, str] | None) -> Parcel:
        """The parcel of a cell that has ended, with its tags as they were sent, or are now."""
        folder = cell_folder.folder_of(cell)
        found = cell_folder.done(folder)
        diverged = found is not None and found.diverged_at is not None
        final = final or {
            **parcel.tags,
            BUDGET_TAG: str(cell.rollouts),
            HEALTH_TAG: health_text(*health_of(cell)),
            STATUS_TAG: "diverged" if diverged else "finished",
        }
        paths = {name: folder / f"{name}.parquet" for name in TABLES}
        return replace(
            parcel,
            ended=_written(folder / "done.json"),
            tags=final,
            failed=final[STATUS_TAG] == "diverged",
            rollouts=found.rollouts if found else cell.rollouts,
            artifacts={name: str(path.resolve()) for name, path in paths.items() if path.exists()},
        )


def _written(path: Path) -> int:
    """When a file was written, in ms since 1970."""
    return path.stat().st_mtime_ns // 10**6


def health_of(cell: Cell) -> tuple[Sequence[Flag], bool]:
    """Return a cell's flags within its budget, and whether it has enough steps for every flag.

    A longer run's later steps are left out. Of a cell that is too short to judge only ``mismatch`` is looked for.
    """
    records = [r for r in Spool(cell_folder.folder_of(cell) / "metrics.jsonl").records() if r.rollouts <= cell.rollouts]
    return flags(records), judged(records)


def health_text(found: Sequence[Flag], is_judged: bool) -> str:
    """The names of the flags, or that there is none, or that too few steps were there to say so."""
    names = ", ".join(flag.name for flag in found)
    if is_judged:
        return names or "no flags"
    return f"{names}, otherwise {TOO_SHORT}" if names else TOO_SHORT


context = cache(tracking.context_tags)
"""MLflow's tags of who runs this and from which commit, asked for once."""


def tags(experiment: str) -> dict[str, str]:
    """The tags of every run: whose it is, from which commit, and of which sweep.

    Args:
        experiment: ``PRESET-WHAT`` or ``PRESET-SET-WHAT``.
    """
    found = context()
    owner = f"{found.get('mlflow.user', 'nobody')}-{folder_id()}"
    return {**found, tracking.OWNER_TAG: owner, "isocompute.sweep": experiment.rpartition("-")[0] or experiment}


def folder_id() -> str:
    """The random id of this work folder, made when it is first needed."""
    path = WORK / "owner"
    if not path.exists():
        # Of two processes that make it at once, one's is read by both.
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                write_text(path, f"{secrets.token_hex(4)}\n")
    return path.read_text().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One MLflow run, as far as it is known, or what an experiment means.

    Attributes:
        key: What the run shows (``tracking.KEY_TAG``); an owner has one run of each in an experiment.
        folder: The folder of its spool, and of the note of what was sent.
        begun: When it began, in ms since 1970, where no record says so.
        ended: When it ended; None while it goes on.
        failed: Whether it ended badly.
        rollouts: The budget that it ended at; None where it has none.
        tags: Its tags; those that are known at its end only are set then.
        metrics: Metrics at step 0.
        artifacts: Artifact name to file.
        figures: Files to be looked at.
        means: Keys of the owner's runs that the experiment means from then on; None: as before. Without ``folder``
            that is all there is to be said.
    """

    experiment: str
    key: str
    name: str
    folder: str = ""
    begun: int = 0
    ended: int | None = None
    failed: bool = False
    rollouts: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[str] = ()
    means: Sequence[str] | None = None

    @property
    def id(self) -> str:
        """Name of its file."""
        return hashlib.sha256(f"{self.experiment}\n{self.key}".encode()).hexdigest()[:16]


class Outbox:
    """A folder of parcels, in the order in which they were put there."""

    def __init__(self) -> None:
        self.folder = (WORK / "outbox").resolve()

    def parcels(self) -> list[Parcel]:
        """The parcels, the oldest first."""
        paths = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [Parcel(**json.loads(path.read_text())) for path in paths]

    def put(self, parcel: Parcel) -> None:
        """Keep a parcel, in place of an earlier one of the same run."""
        write_text(self.folder / f"{parcel.id}.json", json.dumps(asdict(parcel)) + "\n")

    def put_copies(self, parcel: Parcel) -> None:
        """Keep a parcel and copies of its files, which the next stage may replace."""
        place = self.folder / parcel.id
        place.mkdir(parents=True)
        artifacts = {}
        for name, path in parcel.artifacts.items():
            artifacts[name] = str(shutil.copyfile(path, place / f"{name}{Path(path).suffix}"))
        (place / "figures").mkdir()
        figures = [str(shutil.copyfile(path, place / "figures" / Path(path).name)) for path in parcel.figures]
        self.put(replace(parcel, folder=str(place), artifacts=artifacts, figures=figures))

    def remove(self, parcel: Parcel) -> None:
        """Forget a parcel that was sent, and the copies of its files."""
        (self.folder / f"{parcel.id}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / parcel.id, ignore_errors=True)

    def sending(self) -> FileLock:
        """The lock of sending: one process at a time sends."""
        return FileLock(self.folder / "lock")


METRICS, PARAMETERS, TAGS = 800, 100, 100
"""Most of each in one request; MLflow takes 1,000 of all together, and 100 parameters and tags."""


class Delivery:
    """Sends one run, a little at a time; reads its spool once.

    A point carries the time at which it was measured, so that one that is sent twice is stored once.
    """

    def __init__(self) -> None:
        self._run: str | None = None
        self._position, self._changes = Cursor(), Changes()
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
    """Return whether no earlier process has sent a record, and note that this one does.

    A step that was taken again after a kill has another time, by which MLflow would keep both.
    """
    at, kind = spooled.record.rollouts, type(spooled.record).__name__
    reached, kinds = note.get("reached", (-1, ()))
    if at < reached or (at == reached and kind in kinds):
        return False
    note["reached"] = (at, [*kinds, kind] if at == reached else [kind])
    return True


def read_note(parcel: Parcel) -> dict[str, Any]:
    """Read what was sent of a run to its experiment, kept beside its spool; empty where nothing was."""
    path = Path(parcel.folder) / "sent.json"
    return dict(json.loads(path.read_text()).get(parcel.experiment, {})) if path.exists() else {}


def _write_note(parcel: Parcel, note: Mapping[str, Any]) -> None:
    path = Path(parcel.folder) / "sent.json"
    every = json.loads(path.read_text()) if path.exists() else {}
    cell_folder.write_json(path, {**every, parcel.experiment: note})


def is_sent(note: Mapping[str, Any], rollouts: int | None) -> bool:
    """Return whether a run was sent whole, at a budget or a larger one."""
    return "finished" in note and (rollouts is None or (note["finished"] or 0) >= rollouts)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


RESULTS = ("eval/", "train/reward")
"""Prefixes of metrics that are logged even where they stay the same."""
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
        self._buffered: dict[str, Point] = {}
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
        return [point for name, point in self._buffered.items() if name in self._logged]

    def _add(self, point: Point) -> Iterator[Point]:
        name, before = point.name, self._kept.get(point.name)
        least = ROUNDING if name.startswith("health/") else ABSOLUTE
        if name.startswith(RESULTS):
            yield point
        elif before is None:
            self._kept[name] = self._buffered[name] = point
        elif math.isclose(point.value, before.value, rel_tol=RELATIVE, abs_tol=least):
            self._buffered[name] = point
        else:
            if name not in self._logged:
                self._logged.add(name)
                yield before
            held = self._buffered.pop(name, before)
            if held != before:
                yield held
            self._kept[name] = point
            yield point
