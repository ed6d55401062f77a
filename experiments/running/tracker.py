"""Cells as MLflow runs that can be watched while they train.

Workers append to the file of their run; only the driver writes to MLflow, in a thread of its own. What is to be sent
waits in the outbox until it has been: when the server goes away, training goes on, and this command or the next sends
the rest. MLflow's tags record what has arrived. After a failed request everything since is resent; MLflow drops exact
duplicates.

MLflow's asynchronous logging is of no use here: it drops a batch that fails, and a process waits for it at its end.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from isocompute.learner.records.health import Flag, flags, judged
from isocompute.rollout import tracking
from isocompute.rollout.contract.errors import FileError, TrackingError, redacted
from isocompute.rollout.contract.files import atomic_write, reason_of
from isocompute.rollout.contract.tracking import ARTIFACT_TAG, OWNER_TAG, SUPERSEDED_TAG, connect
from isocompute.rollout.store import Store
from isocompute.rollout.tracking import INPUT_TAG, content_hash

from ..errors import listed
from ..settings import Preset, leaves
from . import cell_folder
from .cell_folder import WORK, Spool, Spooled
from .cells import Cell

if TYPE_CHECKING:
    from mlflow.entities import Metric

BEGAN = time.time_ns() // 10**6
"""When this stage began, in ms since 1970."""
TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries; the log of another trainer does not give all of them."""
KEY_TAG = "isocompute.run_id"
"""Identity of what a run shows: an owner has one run of each."""
STATUS_TAG = "isocompute.status"
HEALTH_TAG = "isocompute.health"
BUDGET_TAG = "isocompute.budget_rollouts"
REACHED_TAG = "isocompute.reached"
"""Cursor of the last record sent (``Spooled.cursor``)."""
TOO_SHORT = "too short to judge"
RETRY_SECONDS, PATIENCE_SECONDS = 15.0, 300.0
"""Until the next try; for the turn of another process that sends, or the next of what waits at the end of a stage."""
SEND = "python -m experiments send"
COMMIT_TAG, NOTE_TAG = "mlflow.source.git.commit", "mlflow.note.content"
"""MLflow's own: the second is the description of a run or an experiment, in Markdown."""
VIEW_TAG = "mlflow.sharedViewState.n"
VIEW = {
    "groupBy": {
        "aggregateFunction": "average",
        "groupByKeys": [{"mode": "param", "groupByData": "rollouts_per_problem"}],
    },
    "runsHiddenMode": "SHOWALL",
}
"""MLflow's own: what the page of ``charts`` shows, a line for each n, the mean of its runs."""
PURPOSES = {"pilot": "pilots, which try learning rates", "prescribe": "the test of what was prescribed"}
METRICS, OTHERS = 1000, 100
"""Most metrics, and most parameters or tags, that MLflow takes in one request."""
RESULTS = ("eval/", "train/reward")
"""Prefixes of metrics that are logged even where they stay the same."""
RELATIVE, ABSOLUTE, ROUNDING = 1e-6, 1e-9, 1e-6
"""By how much two values may differ and still be the same; the last where programs' log-probabilities are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One MLflow run, as far as it is known, or what an experiment means.

    Attributes:
        key: What the run shows (``KEY_TAG``).
        folder: The folder of its records; empty where there is no run.
        begun: When it began, in ms since 1970, where no record says so.
        ended: When it ended; None while it goes on.
        tags: Its tags; those that are known at its end only are set then.
        means: Keys of the owner's runs that the experiment means from then on; None: as before.
        about: Description of the experiment; empty: as before.
        problems: Name, digest and file of the problems that it is about.
    """

    experiment: str
    key: str
    name: str
    folder: str = ""
    begun: int = 0
    ended: int | None = None
    failed: bool = False
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[str] = ()
    means: Sequence[str] | None = None
    about: str = ""
    problems: tuple[str, str, str] | None = None

    @property
    def id(self) -> str:
        """Its name in the outbox."""
        return hashlib.sha256(f"{self.experiment}\n{self.key}".encode()).hexdigest()[:16]


class Outbox:
    """What waits to be sent: a table of parcels, the oldest first, and copies of files that may be replaced."""

    SCHEMA = "CREATE TABLE IF NOT EXISTS parcels (id TEXT PRIMARY KEY, parcel TEXT)"

    def __init__(self) -> None:
        self.folder = (WORK / "outbox").resolve()

    def parcels(self) -> list[Parcel]:
        """The parcels."""
        return [Parcel(**json.loads(text)) for (text,) in self._run("SELECT parcel FROM parcels ORDER BY rowid")]

    def put(self, parcel: Parcel, *, copy: bool = False) -> None:
        """Keep a parcel, in place of an earlier one of the same run.

        Args:
            copy: Whether its files are copied, since the next stage may replace them.
        """
        if copy:
            folder = self.folder / parcel.id
            (folder / "figures").mkdir(parents=True)
            artifacts = {n: str(shutil.copy(p, folder / f"{n}{Path(p).suffix}")) for n, p in parcel.artifacts.items()}
            figures = [str(shutil.copy(path, folder / "figures")) for path in parcel.figures]
            parcel = replace(parcel, folder=str(folder), artifacts=artifacts, figures=figures)
        self._run("INSERT OR REPLACE INTO parcels VALUES (?, ?)", parcel.id, json.dumps(asdict(parcel)))

    def remove(self, parcel: Parcel) -> None:
        """Forget a parcel that was sent, and the copies of its files."""
        self._run("DELETE FROM parcels WHERE id = ?", parcel.id)
        shutil.rmtree(self.folder / parcel.id, ignore_errors=True)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        with Store(self.folder / "parcels.sqlite", self.SCHEMA) as store:
            return store.run(statement, *values)


class Sender:
    """Sends parcels, those of earlier processes first, in threads that end with their process, sent or not."""

    def __init__(self) -> None:
        self.outbox, self.reason = Outbox(), ""
        self._waiting: dict[str, Parcel] = {parcel.id: parcel for parcel in self.outbox.parcels()}
        self._deliveries: dict[str, Delivery] = {}
        # Of what waits, and of sending, which one thread does at a time.
        self._changing, self._sending = threading.Lock(), threading.Lock()
        self._new, self._closed, self._ready = threading.Event(), threading.Event(), False
        self._new.set()
        threading.Thread(target=self._run, name="mlflow", daemon=True).start()

    def put(self, parcel: Parcel, *, keep: bool = True) -> None:
        """Send a parcel as soon as may be; one of the same run that still waits is replaced.

        Args:
            keep: Whether it is put into the outbox, too, for later commands.
        """
        with self._changing:
            if keep:
                self.outbox.put(parcel)
            self._waiting[parcel.id] = parcel
        self._new.set()

    def drain(self) -> Sequence[Parcel]:
        """Have what waits sent now; returns what MLflow does not take, or takes too long for."""
        # A try of its own, since one that is under way may have begun without the newest.
        own = threading.Thread(target=self._try, name="mlflow", daemon=True)
        own.start()
        left = len(self._waiting) + 1
        while own.is_alive() and len(self._waiting) < left:
            left = len(self._waiting)
            own.join(PATIENCE_SECONDS)
        if own.is_alive():
            self.reason = "it does not answer"
        return list(self._waiting.values())

    def close(self) -> None:
        """Stop trying; what was not sent stays in the outbox, if it was put there."""
        self._closed.set()
        self._new.set()

    def report(self) -> bool:
        """Send what waits, and say in one line what was not sent; returns whether there is such a thing."""
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

    def _run(self) -> None:
        while self._new.wait() and not self._closed.is_set():
            self._new.clear()
            while not self._try() and not self._closed.wait(RETRY_SECONDS):
                pass

    def _try(self) -> bool:
        """Send what waits, until something cannot be sent that is no fault of one run; returns whether all was."""
        sent = True
        with self._sending:
            for parcel in sorted(self._waiting.copy().values(), key=lambda parcel: not parcel.folder):
                if self._closed.is_set():
                    return True
                try:
                    self._send(parcel)
                except Exception as error:
                    # Nobody knows what has arrived: the next try reads again what there is.
                    self._deliveries.pop(parcel.id, None)
                    self.reason, sent = reason_of(error), False
                    files_are_gone = isinstance(error, FileNotFoundError)
                    if not files_are_gone and getattr(error, "error_code", None) != "INVALID_PARAMETER_VALUE":
                        break
        return sent

    def _send(self, parcel: Parcel) -> None:
        # One process at a time sends.
        with FileLock(self.outbox.folder / "lock", timeout=PATIENCE_SECONDS):
            if not self._ready:
                tracking.ensure_store()
                self._ready = True
            # Not where another process has sent it meanwhile, or its cell was thrown away.
            if not parcel.folder or Path(parcel.folder).is_dir():
                if parcel.folder:
                    self._deliveries.setdefault(parcel.id, Delivery()).send(parcel)
                if parcel.means is not None:
                    _supersede(parcel.experiment, owner=parcel.tags[OWNER_TAG], keep=parcel.means)
            if parcel.ended is not None:
                self._deliveries.pop(parcel.id, None)
            with self._changing:
                # Delete the row, unless a newer parcel replaced it; the row of a running cell stays.
                if self._waiting.get(parcel.id) is parcel:
                    del self._waiting[parcel.id]
                    if parcel.ended is not None or not parcel.folder:
                        self.outbox.remove(parcel)


class Tracker(Sender):
    """Sends the metrics of cells to one MLflow experiment; no method but ``drain`` waits for MLflow."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        self._experiment = experiment
        self._running: dict[str, Parcel] = {}

    def send(self, cell: Cell, *, finished: bool = False) -> None:
        """Send what is new of a cell, as soon as MLflow takes it; of one that is finished its tables, too."""
        known = self._running.get(cell.run_id)
        parcel = self._running[cell.run_id] = known or self._parcel(cell)
        if finished:
            self.put(self._ended(parcel, cell))
        else:
            self.put(parcel, keep=known is None)

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
        self.put(parcel)

    def mean(self, cells: Sequence[Cell]) -> None:
        """Make ``mlflow:EXPERIMENT`` mean these cells and no others of this owner's."""
        keys = sorted({key for cell in cells for key in (cell.run_id, cell.baseline_id) if key})
        name = f"which runs {self._experiment} means"
        self.put(Parcel(experiment=self._experiment, key="means", name=name, means=keys, tags=tags(self._experiment)))

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
            tags={
                **tags(self._experiment),
                "isocompute.problem_set": cell.origin.problem_set,
                "n": str(cell.run.rollouts_per_problem),
            },
            about=_about(cell),
            problems=(
                cell.origin.problem_set,
                cell.origin.problems,
                str(cell_folder.PREPARED / cell.origin.base_model / f"{cell.origin.problem_set}.parquet"),
            ),
        )

    @staticmethod
    def _ended(parcel: Parcel, cell: Cell) -> Parcel:
        """The parcel of a cell that has ended."""
        folder = cell_folder.folder_of(cell)
        found = cell_folder.done(folder)
        diverged = found is not None and found.diverged_at is not None
        budget = str(found.rollouts if found else cell.rollouts)
        paths = {name: folder / f"{name}.parquet" for name in TABLES}
        return replace(
            parcel,
            ended=_written(folder / "done.json"),
            tags={**parcel.tags, BUDGET_TAG: budget, STATUS_TAG: "diverged" if diverged else "finished"},
            failed=diverged,
            artifacts={name: str(path.resolve()) for name, path in paths.items() if path.exists()},
        )


def charts(preset: Preset, problem_set: str) -> str:
    """Where the charts of a sweep are, below the address of the UI; empty where MLflow does not answer or has none."""
    try:
        found = connect().get_experiment_by_name(f"{preset.name}-{problem_set}-sweep")
    except TrackingError:
        return ""
    page = "#/experiments/{}/runs?compareRunsMode=CHART&workflowType=machine_learning&viewStateShareKey=n"
    return page.format(found.experiment_id) if found else ""


def _about(cell: Cell) -> str:
    """What the experiment of a cell is, for who opens it."""
    what = PURPOSES.get(cell.purpose, "a sweep, from which the best n is read")
    return (
        f"Cells of {what}, on the problem set `{cell.origin.problem_set}`: a run for each n (rollouts per problem), "
        "B_p (problems per batch), learning rate, base model and seed.\n\nThe step of every metric is the rollouts "
        f"generated for training. To compare n, chart `eval/avg_at_{cell.evaluation_samples}` and group the runs by "
        "their tag `n`. What the metrics mean: docs/metrics.md."
    )


def _written(path: Path) -> int:
    """When a file was written, in ms since 1970."""
    return path.stat().st_mtime_ns // 10**6


def health_of(cell: Cell) -> tuple[Sequence[Flag], bool]:
    """Return a cell's flags within its budget, and whether it has enough steps for every flag.

    A longer run's later steps are left out. Of a cell that is too short to judge only ``mismatch`` is looked for.
    """
    records = [r for r in Spool(cell_folder.folder_of(cell)).records() if r.rollouts <= cell.rollouts]
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
    return {**found, OWNER_TAG: owner, "isocompute.sweep": experiment.rpartition("-")[0] or experiment}


def log(
    preset: Preset,
    what: str,
    artifacts: Mapping[str, Path],
    *,
    figures: Sequence[Path] = (),
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    inputs: Mapping[str, Path] | None = None,
    about: str = "",
) -> None:
    """Log what a stage wrote as a run of its own; the newest is what ``mlflow:EXPERIMENT`` means.

    It is put into the outbox, which is sent when the stage has ended.

    Args:
        what: Name of the run, and the rest of the name of the experiment.
        inputs: Name to file of what the run was made from, linked by content.
        about: Description of run and experiment, in Markdown; the commit is added.
    """
    experiment, key = f"{preset.name}-{what}", f"{what}-{secrets.token_hex(4)}"
    linked = {INPUT_TAG + name: content_hash(path) for name, path in (inputs or {}).items()}
    if about:
        about += f"\n- commit: {context().get(COMMIT_TAG, 'unknown')}"
        linked[NOTE_TAG] = about
    parcel = Parcel(
        experiment=experiment,
        key=key,
        name=what,
        begun=BEGAN,
        ended=time.time_ns() // 10**6,
        params={name: str(value) for name, value in (params or {}).items()},
        metrics={name: float(value) for name, value in (metrics or {}).items()},
        artifacts={name: str(path) for name, path in artifacts.items()},
        figures=[str(path) for path in figures],
        tags={**tags(experiment), **linked},
        means=[key],
        about=about,
    )
    Outbox().put(parcel, copy=True)


def folder_id() -> str:
    """The random id of this work folder, made when it is first needed."""
    path = WORK / "owner"
    if not path.exists():
        # Of two processes that make it at once, one's is read by both.
        with suppress(FileError), atomic_write(path, replace=False) as stream:
            stream.write(f"{secrets.token_hex(4)}\n".encode())
    return path.read_text().strip()


class Delivery:
    """Sends one run, a little at a time; reads its records once."""

    def __init__(self) -> None:
        self._run = ""
        self._reached: tuple[Any, ...] = ()
        self._changes = Changes()
        self._read = 0

    def send(self, parcel: Parcel) -> None:
        """Send what is new; as nobody knows what was sent when MLflow's client raised an error, another begins anew."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag

        spool, client, has_ended = Spool(Path(parcel.folder)), MlflowClient(), parcel.ended is not None
        spooled = spool.since(self._read)
        if not spooled and not has_ended:
            return
        if not self._run:
            run = _opened(client, parcel, spooled[0].time if spooled else parcel.begun)
            if has_ended and run.info.status in ("FINISHED", "FAILED"):
                # Perhaps with these very files.
                hashes = {ARTIFACT_TAG + name: content_hash(Path(path)) for name, path in parcel.artifacts.items()}
                if hashes.items() <= run.data.tags.items():
                    return
            reached = tuple(json.loads(run.data.tags.get(REACHED_TAG, "[]")))
            if not has_ended and run.info.status != "RUNNING":
                if all(each.cursor <= reached for each in spooled):
                    return
                # A longer run begins as the shorter one: its MLflow run goes on.
                client.update_run(run.info.run_id, status="RUNNING")
            self._run, self._reached = run.info.run_id, reached
            if REACHED_TAG not in run.data.tags:
                _log(client, self._run, params=[Param(*each) for each in parcel.params.items()])
                _log_problems(client, self._run, parcel)
        points: list[Metric] = []
        for each in spooled:
            changed = self._changes.of(each)
            # A step that was taken again after a kill has another time, by which MLflow would keep both.
            if each.cursor > self._reached:
                points += changed
                self._reached = each.cursor
        # The tags last: what they say has arrived.
        tags, written = {REACHED_TAG: json.dumps(self._reached)}, spool.since() if has_ended else spooled
        if has_ended:
            points += [Metric(name, value, parcel.begun, 0) for name, value in parcel.metrics.items()]
            tags |= parcel.tags
            if BUDGET_TAG in tags:
                records = [each.record for each in written]
                tags[HEALTH_TAG] = health_text(flags(records), judged(records))
        _log(client, self._run, metrics=points, tags=[RunTag(*each) for each in tags.items()])
        if spooled:
            self._read = spooled[-1].id
        if has_ended:
            artifacts = {name: Path(path) for name, path in parcel.artifacts.items()}
            tracking.attach(self._run, artifacts, figures=[Path(path) for path in parcel.figures])
            status = "FAILED" if parcel.failed else "FINISHED"
            client.set_terminated(self._run, status=status, end_time=written[-1].time if written else parcel.ended)


def _opened(client: Any, parcel: Parcel, begun: int) -> Any:
    """The owner's run, which may have been made just before a kill, or a new one."""
    experiment = tracking.ensure_experiment(parcel.experiment)
    owned = {OWNER_TAG: parcel.tags[OWNER_TAG], KEY_TAG: parcel.key}
    if runs := client.search_runs([experiment], " and ".join(f"tags.`{name}` = '{owned[name]}'" for name in owned)):
        return runs[0]
    # That of a sweep says the same every time, and is left to who writes another; that of a fit follows its answer.
    if parcel.about and (parcel.means is not None or NOTE_TAG not in client.get_experiment(experiment).tags):
        client.set_experiment_tag(experiment, NOTE_TAG, parcel.about)
        if parcel.means is None:
            client.set_experiment_tag(experiment, VIEW_TAG, json.dumps(VIEW))
    return client.create_run(experiment, start_time=begun, run_name=parcel.name, tags={**parcel.tags, **owned})


def _log(client: Any, run: str, **entries: Sequence[Any]) -> None:
    """Log metrics, parameters and tags, in their order, in requests of a size that MLflow takes."""
    for kind, given in entries.items():
        most = METRICS if kind == "metrics" else OTHERS
        for begin in range(0, len(given), most):
            client.log_batch(run, **{kind: given[begin : begin + most]})


def _log_problems(client: Any, run: str, parcel: Parcel) -> None:
    """Name the problems as MLflow's dataset of a run, by which the UI groups and filters."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    if parcel.problems is not None:
        name, digest, file = parcel.problems
        # MLflow takes 36 characters.
        found = Dataset(name, digest[:36], source_type="local", source=json.dumps({"uri": file}))
        client.log_inputs(run, datasets=[DatasetInput(found, [InputTag("mlflow.data.context", "training")])])


def _supersede(experiment: str, *, owner: str, keep: Collection[str]) -> None:
    """Mark an owner's runs of an experiment as superseded, except those of some keys; other owners' stay as they are.

    Superseded runs are not deleted and can still be read as ``runs:/ID``; ``mlflow:EXPERIMENT`` ignores them.

    Args:
        keep: What the experiment means, by ``KEY_TAG``; where it was superseded before, it is no longer.
    """
    import mlflow

    client = mlflow.MlflowClient()
    wanted = f"tags.`{OWNER_TAG}` = '{owner}'"
    for run in mlflow.search_runs([tracking.ensure_experiment(experiment)], wanted, output_format="list"):
        if (run.data.tags.get(KEY_TAG) in keep) != (SUPERSEDED_TAG in run.data.tags):
            continue
        if SUPERSEDED_TAG in run.data.tags:
            client.delete_tag(run.info.run_id, SUPERSEDED_TAG)
        else:
            client.set_tag(run.info.run_id, SUPERSEDED_TAG, "true")


class Changes:
    """The points of one run that are worth keeping, from its records in their order.

    A metric that never changes is not logged. For one that changes later, its first point and the last before the
    change are, so that straight lines between the points show what was measured.
    """

    def __init__(self) -> None:
        self._same: dict[str, tuple[Metric, Metric]] = {}
        self._logged: set[str] = set()
        self._cursor: tuple[int, bool] = (-1, False)

    def of(self, spooled: Spooled) -> list[Metric]:
        """The points that a record adds; none where the same step was taken before."""
        from mlflow.entities import Metric

        if spooled.cursor <= self._cursor:
            return []
        self._cursor, record = spooled.cursor, spooled.record
        values = {name: value for name, value in record.metrics().items() if math.isfinite(value)}
        points = [Metric(name, value, spooled.time, record.rollouts) for name, value in values.items()]
        return [each for point in points for each in self._add(point)]

    def _add(self, point: Metric) -> Iterator[Metric]:
        if point.key not in self._logged and not point.key.startswith(RESULTS):
            first, last = self._same.get(point.key, (point, point))
            least = ROUNDING if point.key.startswith("health/") else ABSOLUTE
            if math.isclose(point.value, first.value, rel_tol=RELATIVE, abs_tol=least):
                self._same[point.key] = first, point
                return
            self._logged.add(point.key)
            yield first
            if last is not first:
                yield last
        yield point
