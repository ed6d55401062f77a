"""Schedules cells on workers: finished ones are skipped, interrupted ones continue, dead workers are replaced.

``Schedule`` turns cells into jobs. ``Dispatch`` starts jobs on free workers of the ``Pool``, and restarts them if a
worker dies. The pool's workers are ``Actors``, like the replicas of an engine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import polars as pl
from filelock import FileLock, Timeout
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.replicas.actors import Actors, Event, Member
from isocompute.rollout.scoring.code import digest

from ..errors import ExperimentError, amounts
from ..settings import Preset, ResourcesConfig
from . import cell_folder, cluster
from .cell_folder import CHECKPOINTS, LEDGER, SAID, WORK, Spool, finished, folder_of
from .cell_folder import done as read_done
from .cells import NAMESPACE, Cell, CommandCell, Surroundings, WorkerConfig
from .cluster import (
    LOCAL,
    SESSION,
    CodeGuard,
    Loaded,
    Roster,
    WorkerActor,
    cause,
    check,
    environment,
    open_cluster,
)
from .tracker import Tracker

PRUNE_SECONDS = 60.0
"""Seconds between checks of the disk limit, each of which sums the sizes of all stored files."""


class Schedule:
    """One pass over some cells, which runs those that are not finished.

    A cell's result depends only on its identity, not on the order or the worker. A cell that diverges counts as
    finished. A cell whose worker died continues on another worker. ``problems`` holds ``problems`` tables by hash
    (``problems_hash``); the experiment is the MLflow experiment that receives the cells.
    """

    def __init__(
        self, cells: Sequence[Cell], problems: Mapping[str, pl.DataFrame], pool: Pool, experiment: str, *, title: str
    ) -> None:
        self._cells, self._problems, self._pool, self._experiment = cells, problems, pool, experiment
        self._title, self._display = title, Display(title, cells)
        self._by_id = {cell.run_id: cell for cell in cells}
        self._left: set[str] = set()
        self._pruned = time.monotonic()

    @cached_property
    def tracker(self) -> Tracker:
        """The tracker, created when there is something to send."""
        return Tracker(self._experiment)

    def finish(self, *, supersede: bool = True) -> None:
        """Run everything that is left, and send what is finished, even if some cells failed; these are then listed.

        Args:
            supersede: Whether these are all cells of the experiment; otherwise others may follow.
        """
        finished = [bool(kept(cell, cell_folder.folder_of(cell))) for cell in self._cells]
        print(f"{self._title}: {plan_summary(self._cells, finished)}", flush=True)
        dispatch = Dispatch(self._pool, self._title)
        failed = self._evaluate_baselines(dispatch)
        left = [cell for cell in self._cells if cell.run_id not in failed and self._is_left(cell)]
        self._left = {cell.run_id for cell in left}
        order = reversed(left) if self._pool.resources.reverse else left
        failed |= dispatch.run([self._job(cell) for cell in order], poll=self._poll)
        ended = [cell for cell in self._cells if cell.run_id not in failed]
        for cell in ended:
            self.tracker.send(cell, finished=True)
        for cell in {cell.baseline_id: cell for cell in ended if cell.baseline_id}.values():
            self.tracker.send_baseline(cell)
        self._display.show(last=True)
        if supersede and not failed:
            self.tracker.mean(self._cells)
        self._prune()
        if failed:
            reasons = "".join(
                f"\n  {cell.name}: {failed[cell.run_id]}" for cell in self._cells if cell.run_id in failed
            )
            raise ExperimentError(
                f"{self._title}: {len(failed)} of {len(self._cells)} cells failed; the others are finished, and the "
                f"same command tries these again:{reasons}"
            )

    def _is_left(self, cell: Cell) -> bool:
        """Return whether a cell must still be trained, or only its policy must be saved from its checkpoint."""
        folder = cell_folder.folder_of(cell)
        return not cell_folder.finished(cell, folder) or cell_folder.lacks_policy(
            cell, folder, self._pool.resources.keep_policies
        )

    def _evaluate_baselines(self, dispatch: Dispatch) -> dict[str, str]:
        """Make each first evaluation once, before the cells that share it need it; return the cells that lack one."""
        sharing = [cell for cell in self._cells if cell.baseline_id]
        missing = {
            cell.baseline_id: cell for cell in sharing if not cell_folder.has_baseline(cell_folder.baseline_of(cell))
        }
        jobs = [
            Job(
                key=key,
                name=f"the first evaluation of {cell.origin.base_model}, seed {cell.run.seed}",
                method="evaluate_baseline",
                arguments=(cell, self._problems[cell.origin.problems], cell_folder.baseline_of(cell).resolve()),
                end=partial(self._end_baseline, cell),
            )
            for key, cell in missing.items()
        ]
        why = {key: f"the first evaluation of its seed failed: {reason}" for key, reason in dispatch.run(jobs).items()}
        return {cell.run_id: why[cell.baseline_id] for cell in self._cells if cell.baseline_id in why}

    def _end_baseline(self, cell: Cell, _: object) -> None:
        """Report how the base model's log-probabilities agree with vLLM's, if they were compared."""
        if found := cell_folder.beside_vllm(cell_folder.baseline_of(cell)):
            print(
                f"{self._title}: {cell.origin.base_model}: vLLM's log-probabilities are those of the sampler, up to "
                f"{found['maximum']:.1g} nats",
                flush=True,
            )

    def _job(self, cell: Cell) -> Job:
        folder, start = cell_folder.folder_of(cell), cell_folder.baseline_of(cell)
        cell_folder.clear_stop(folder)
        return Job(
            key=cell.run_id,
            name=cell.name,
            method="train",
            arguments=(cell, self._problems[cell.origin.problems], folder.resolve(), start.resolve()),
            end=partial(self._end, cell),
            position=partial(self._position, cell),
            kept=partial(kept, cell, folder),
            stop=partial(cell_folder.request_stop, folder),
        )

    def _position(self, cell: Cell) -> object:
        """A value that changes while a cell progresses: its records, or a command's ledger and output."""
        return self._display.position(cell), written(cell_folder.folder_of(cell))

    def _end(self, cell: Cell, _: object) -> None:
        """Send a cell that has ended; a cell that was stopped is not finished."""
        if cell_folder.finished(cell, cell_folder.folder_of(cell)):
            self._left.discard(cell.run_id)
            self._display.read(cell)
            self.tracker.send(cell, finished=True)

    def _poll(self, running: Sequence[Job]) -> None:
        for job in running:
            cell = self._by_id[job.key]
            try:
                self.tracker.send(cell)
                self._display.read(cell)
            except RolloutError as error:
                # Locked or unreadable at the moment; a later look may succeed.
                print(f"{self._title}: {job.name} cannot be looked at ({cause(error)})", flush=True)
        self._display.show()
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._prune()

    def _prune(self) -> None:
        """Bring stored cell data under the disk limit; other cells' checkpoints are deleted before these cells' own."""
        for place in cell_folder.prune(
            self._pool.resources.checkpoint_gigabytes, last=set(self._by_id), keep=self._left
        ):
            print(f"{self._title}: {cell_folder.WORK / 'cells' / place} was deleted to keep the disk limit", flush=True)
        self._pruned = time.monotonic()


def written(folder: Path) -> tuple[int, ...]:
    """When a cell's command last charged and printed, which changes while the command runs."""
    return tuple(path.stat().st_mtime_ns for name in (LEDGER, SAID) if (path := folder / name).exists())


def kept(cell: Cell, folder: Path) -> object:
    """A value that changes once a cell would restart from a later point than before."""
    if not isinstance(cell, CommandCell):
        return cell_folder.newest_checkpoint(folder)
    return sorted(path.name for path in (folder / CHECKPOINTS).glob("*"))


def plan_summary(cells: Sequence[Cell], has_checkpoint: Sequence[bool]) -> str:
    """Say how many cells are finished, continue from a checkpoint, or begin."""
    left = [(cell, has) for cell, has in zip(cells, has_checkpoint, strict=True) if not finished(cell, folder_of(cell))]
    complete, continued = len(cells) - len(left), sum(has for _, has in left)
    again = [cell.name for cell, has in left if not has and read_done(folder_of(cell)) is not None]
    begun = len(left) - continued
    line = f"{len(cells)} cells: {complete} finished, {continued} continued, {begun} from the base model"
    if again:
        line += f"; trained again, since their checkpoints were pruned: {', '.join(again)}"
    return line


POLL_SECONDS = 2.0
"""Seconds between checks of running jobs."""
WAIT_SECONDS = 0.5
"""Longest wait for an answer, and so for a signal, in seconds."""
ATTEMPTS = 6
"""Consecutive attempts without progress before a job fails; a worker that dies each time may be the job's fault."""
BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0


def backoff(times: int) -> float:
    """Seconds until a retry after ``times`` consecutive deaths; each wait is twice the previous one."""
    return min(LONGEST_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0 ** (times - 1))


@dataclass(kw_only=True, eq=False)
class Job:
    """A call to a worker, and how often it was started in vain.

    Attributes:
        method: Method of ``Worker``, called with ``arguments``.
        end: Takes the result. A ``ValueError`` or ``OSError`` fails the job.
        position: A value that changes while the job progresses.
        kept: A value that changes once the job would restart from a later point.
        stop: Asks the job to save its state and end.
    """

    key: str
    name: str
    method: str
    arguments: Sequence[Any]
    end: Callable[[Any], object] = lambda result: None
    position: Callable[[], object] = lambda: None
    kept: Callable[[], object] = lambda: None
    stop: Callable[[], None] = lambda: None
    deaths: int = 0
    not_before: float = 0.0
    kept_before: object = None
    last_position: object = None
    moved: float = 0.0


class Dispatch:
    """Runs jobs on the workers of a pool."""

    def __init__(self, pool: Pool, title: str) -> None:
        self._pool, self._title = pool, title
        self._waiting: list[Job] = []
        self._failed: dict[str, str] = {}
        self._stopping = False

    def run(
        self, jobs: Iterable[Job], *, poll: Callable[[Sequence[Job]], None] = lambda running: None
    ) -> dict[str, str]:
        """Run jobs, started in order; return, by key, why each failed job failed.

        Raises:
            ExperimentError: No worker is left and none came in time, or the cluster is lost.
            Stopped: A signal came; running jobs were asked to save their state, and have ended.
        """
        import ray

        self._waiting, self._failed = list(jobs), {}
        polled = time.monotonic()
        try:
            with cluster.deferred() as signalled:
                while self._waiting or self._pool.running:
                    if signalled():
                        self._stop()
                    self._begin()
                    for event in self._pool.wait(self._patience()):
                        self._ended(event)
                    if time.monotonic() - polled >= POLL_SECONDS:
                        poll([*self._pool.running.values()])
                        self._end_stalled()
                        polled = time.monotonic()
        except ray.exceptions.RayError as error:
            raise ExperimentError(f"{self._title}: the Ray cluster does not answer ({cause(error)})") from None
        return self._failed

    def _patience(self) -> float:
        """Seconds until something else is due."""
        now = time.monotonic()
        # A job whose pause is over only waits for a worker.
        due = [job.not_before - now for job in self._waiting if job.not_before > now]
        return max(0.05, min([WAIT_SECONDS, *due]))

    def _begin(self) -> None:
        now = time.monotonic()
        for job in [each for each in self._waiting if each.not_before <= now]:
            slot = self._pool.idle()
            if slot is None:
                return
            self._waiting.remove(job)
            job.kept_before, job.last_position, job.moved = job.kept(), job.position(), now
            self._pool.begin(slot, job)

    def _ended(self, event: Event[Slot]) -> None:
        import ray

        slot = event.member
        job, slot.job = slot.job, None
        assert job is not None
        if event.lost:
            self._begin_again(job, event.lost)
            return
        slot.deaths = 0
        try:
            if event.error is not None:
                raise event.error
            job.end(event.value)
        except (ray.exceptions.RayError, ValueError, OSError) as error:
            self._fail(job, cause(error))

    def _begin_again(self, job: Job, why: str) -> None:
        if self._stopping:
            return
        job.deaths = job.deaths + 1 if job.kept() == job.kept_before else 1
        if job.deaths >= ATTEMPTS:
            self._fail(job, f"its worker died {job.deaths} times, the last time because: {why}")
            return
        seconds = backoff(job.deaths)
        again = f"it continues on another one in {seconds:g} s"
        print(f"{self._title}: the worker of {job.name} died ({why}); {again}", flush=True)
        job.not_before = time.monotonic() + seconds
        self._waiting.insert(0, job)

    def _fail(self, job: Job, why: str) -> None:
        self._failed[job.key] = why
        print(f"{self._title}: {job.name} failed, and the others go on ({why})", flush=True)

    def _end_stalled(self) -> None:
        """End workers whose job has made no progress for too long."""
        now, patience = time.monotonic(), self._pool.resources.stall_seconds
        for slot, job in self._pool.running.items():
            position = job.position()
            if position != job.last_position:
                job.last_position, job.moved = position, now
            elif now - job.moved > patience:
                self._ended(self._pool.lose(slot, f"it showed no progress in {patience:g} s and was ended"))

    def _stop(self) -> None:
        """Start nothing more, and ask running jobs once to save their state."""
        if not self._stopping:
            self._stopping = True
            print(
                f"{self._title}: stopping; what runs saves its state, and a second signal ends it at once", flush=True
            )
            for job in self._pool.running.values():
                # On a full disk the request fails; a second signal ends the job.
                with suppress(OSError):
                    job.stop()
        self._waiting.clear()


HOPELESS = 3
"""Consecutive failures to load the model that end the stage if there is no other worker."""
ANSWER_SECONDS = 60.0
"""Timeout for an answer from the holder of the workers, in seconds."""


@contextmanager
def workers(preset: Preset, models: Mapping[str, str], *, training: bool = False) -> Iterator[Pool]:
    """A preset's workers with their engines up, held by this stage alone for the duration of the block.

    Within a ``repro`` they are the previous stage's workers if these are suitable. A stage that is run alone starts its
    own workers, which end with it.

    Args:
        training: Whether they train cells; if the preset has a command, such workers run the command.
    """
    resources = preset.resources
    commands = training and preset.trainer is not None
    if not commands:
        preset.check_sampler()
    held = preset.devices_of_a_worker() if commands else resources.processors_of_a_worker()
    wanted = resources.workers * held
    with ExitStack() as stack:
        print("Ray: a cluster is joined, or started here", flush=True)
        stack.enter_context(open_cluster(wanted))
        _check_capacity(resources, wanted)
        stack.enter_context(_exclusive(WORK / "workers.lock", resources.start_seconds))
        config = WorkerConfig.of(preset, models)
        surroundings = Surroundings.of(config.resources)
        if not commands:
            print(f"sampler: {preset.sampler}", flush=True)
        actor = CommandActor if commands else WorkerActor
        # A command uses its worker's processors; our ranks and engines have their own.
        each = held if commands else 1
        on_gpus, gpus = resources.device == "cuda", held if commands else resources.own_gpus
        opened = [config.models, asdict(config.generation), resources.model_dump(mode="json"), config.responses]
        key = digest([*opened, asdict(surroundings), actor.__qualname__, each])
        options = {"num_cpus": 1 if on_gpus else each, "num_gpus": gpus if on_gpus else 0, "runtime_env": environment()}
        roster = stack.enter_context(_roster())
        actors = roster("take", key, resources.workers, actor, options)
        pool = Pool(roster, actors, config, partial(check, bases=tuple(models), surroundings=surroundings))
        began = time.monotonic()
        print(f"workers: {resources.workers} asked for; the first loads the base model", flush=True)
        pool.open()
        print(f"workers: the first is ready after {time.monotonic() - began:.0f} s", flush=True)
        yield pool


def _check_capacity(resources: ResourcesConfig, wanted: int) -> None:
    """Refuse at once what our own one-node cluster could never hold; any other cluster may grow, so only say so."""
    import ray

    kind = "GPU" if resources.device == "cuda" else "CPU"
    cluster_has = ray.cluster_resources()
    there = cluster_has.get(kind, 0.0)
    if there < wanted:
        lack = f"{resources.workers} workers need {wanted} {kind}s, and the cluster has {there:g} in all"
        if LOCAL in cluster_has:
            raise ExperimentError(f"{lack}: set resources.workers lower, or join a larger cluster")
        print(f"{lack}: those that it has room for begin, the others join when it grows", flush=True)


@contextmanager
def _roster() -> Iterator[Callable[..., Any]]:
    """The roster of the ``repro`` that this stage belongs to, or one in this process."""
    import ray

    session = os.environ.get(SESSION)
    if not session:
        own = Roster(f"roster-{uuid4().hex[:12]}")
        try:
            yield lambda method, *arguments: getattr(own, method)(*arguments)
        finally:
            own.dismiss()
        return
    try:
        holder = ray.get_actor(session, namespace=NAMESPACE)
    except ValueError:
        raise ExperimentError(f"the `repro` that this stage is part of is not there any more ({session})") from None

    def ask(method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(holder, method).remote(*arguments), timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            raise ExperimentError(f"the holder of the workers did not {method} them ({cause(error)})") from None

    yield ask


@contextmanager
def _exclusive(path: Path, patience: float) -> Iterator[None]:
    """Hold this folder's workers exclusively; another stage's hold ends with its process."""
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print("waiting for another stage of this folder to give back the workers", flush=True)
        try:
            held = lock.acquire(timeout=patience, poll_interval=0.5)
        except Timeout:
            raise ExperimentError(
                f"another stage has held the workers of this folder for {patience:g} s ({path}): "
                "wait for it to end, or end it"
            ) from None
    with held:
        yield


class CommandActor(WorkerActor):
    """Trains cells by a command, in place of a worker."""

    def open(self, config: WorkerConfig) -> Loaded:
        """Describe what this process has loaded; no model is loaded."""
        guard = CodeGuard.install()
        # Imported while the guard is active.
        from .command import train

        self._worker = SimpleNamespace(train=partial(train, config.models))
        return Loaded.of(config, guard)


@dataclass(slots=True, kw_only=True, eq=False)
class Slot(Member):
    """A slot for one worker.

    Attributes:
        placed: Whether the cluster has found room for it.
        ready: Whether it has loaded the model, and the loaded content was checked.
    """

    placed: bool = False
    ready: bool = False
    job: Job | None = None


class Pool:
    """Workers of one stage: some ready, others still starting; ``actors`` are all of them."""

    def __init__(
        self, roster: Callable[..., Any], actors: Sequence[Any], config: WorkerConfig, check: Callable[[Loaded], None]
    ) -> None:
        import ray

        self._roster, self.config, self._check, self.resources = roster, config, check, config.resources
        self._seen = ((WORK / ".seen-by-all").resolve(), uuid4().hex)
        slots = [Slot(index=i, actor=actor) for i, actor in enumerate(actors)]
        self.actors = Actors(ray, slots, self._start, backoff=backoff)
        self._was_ready, self._last_ready, self._problem = False, time.monotonic(), ""

    @property
    def running(self) -> dict[Slot, Job]:
        """The job of each busy worker."""
        return {slot: slot.job for slot in self.actors.members if slot.job is not None}

    def idle(self) -> Slot | None:
        """A ready worker without a job, or None."""
        return next((slot for slot in self.actors.members if slot.ready and slot.call is None), None)

    def begin(self, slot: Slot, job: Job) -> None:
        """Start a job on an idle worker; ``wait`` returns its end."""
        slot.job = job
        self.actors.ask(slot, "call", job.method, *job.arguments, task=f"end {job.name}")

    def lose(self, slot: Slot, why: str) -> Event[Slot]:
        """End a worker; another is started in its place, with a delay that grows with repeated losses."""
        slot.ready = False
        return self.actors.lose(slot, why)

    def open(self) -> None:
        """Wait until one worker is ready; the others are used as they become ready."""
        path, text = self._seen
        path.write_text(text)
        for slot in self.actors.members:
            self._ask_place(slot)
        self._last_ready = time.monotonic()
        while self.idle() is None:
            self.wait(WAIT_SECONDS)

    def wait(self, seconds: float) -> list[Event[Slot]]:
        """Wait for workers for at most this many seconds; return the ends of jobs.

        Workers that become ready are used, and those that died are replaced.
        """
        import ray

        self.actors.fill()
        if not self.actors.busy:
            time.sleep(seconds)
        ended = []
        for event in self.actors.wait(seconds):
            if event.member.ready:
                event.member.ready = not event.lost
                ended.append(event)
            else:
                self._advance(event)
        now = time.monotonic()
        if ended or any(slot.ready for slot in self.actors.members):
            self._last_ready = now
        elif now - self._last_ready > self.resources.start_seconds:
            free, there = ray.available_resources(), ray.cluster_resources()
            last = f"; the last problem: {self._problem}" if self._problem else ""
            raise ExperimentError(
                f"none of {len(self.actors.members)} workers started and loaded the model in "
                f"{self.resources.start_seconds:g} s; {amounts([free])} free of {amounts([there])}{last}"
            )
        return ended

    def _start(self, slot: Slot) -> None:
        slot.actor = self._roster("replace", slot.index)
        self._ask_place(slot)

    def _ask_place(self, slot: Slot) -> None:
        path, text = self._seen
        slot.placed = False
        # A worker may wait for room as long as there is another worker.
        self.actors.ask(slot, "place", str(path), text, task="start")

    def _advance(self, event: Event[Slot]) -> None:
        """Process an answer from a starting worker."""
        slot, error = event.member, event.error
        if not event.lost and error is None:
            try:
                if not slot.placed:
                    self._check_folder(*event.value)
                    slot.placed, seconds = True, self.resources.start_seconds
                    self.actors.ask(slot, "open", self.config, task="load the model", seconds=seconds)
                    return
                self._check(event.value)
            except ExperimentError as refused:
                error = refused
            else:
                slot.ready = self._was_ready = True
                return
        if error is not None:
            # A GPU may become free a moment later: loading the model may fail while another worker is left.
            hopeless = isinstance(error, ExperimentError) or slot.deaths >= HOPELESS
            alone = not any(each.ready for each in self.actors.members)
            if not self._was_ready or (alone and hopeless):
                raise ExperimentError(cause(error)) from None
            event = self.lose(slot, cause(error))
        self._problem = event.lost
        print(f"a worker did not start ({event.lost}); another is started in {backoff(slot.deaths):g} s", flush=True)

    @staticmethod
    def _check_folder(host: str, sees: bool) -> None:
        if not sees:
            raise ExperimentError(
                f"the worker on {host} does not see {WORK.resolve()}: cells on several machines need a file system "
                "that all of them see; start from a folder on one"
            )


class Line:
    """A progress line: units done, total, and estimated time left, or time elapsed until there is an estimate."""

    def __init__(self, title: str, *, total: int, unit: str, done: int = 0) -> None:
        self._title, self._total, self._unit, self._at_start = title, total, unit, done
        self._began, self._shown = time.monotonic(), 0.0
        self._first: tuple[float, int] | None = None
        """Time and count when the line first showed progress: before that, engines start, and nothing is done."""

    def show(self, done: int, *, before: str = "", last: bool = False) -> None:
        """Print the line, with a text before the count, unless it was printed a moment ago."""
        terminal = sys.stdout.isatty()
        now = time.monotonic()
        if not last and now - self._shown < (1 if terminal else 20):
            return
        self._shown = now
        if self._first is None and done > self._at_start:
            self._first = now, done
        since, first = self._first or (now, done)
        left = f", {(now - self._began) / 60:.1f} min so far" if done < self._total else ""
        if first < done < self._total:
            left = f", about {(self._total - done) * (now - since) / (done - first) / 60:.1f} min left"
        line = f"{self._title}: {before}{done:,} of {self._total:,} {self._unit}{left}"
        print(f"\r{line:<90}" if terminal else line, end="\n" if last or not terminal else "", flush=True)


class Display:
    """Cells done, rollouts spent of the budget, and time left; reads only new data of a cell."""

    def __init__(self, title: str, cells: Sequence[Cell]) -> None:
        self._cells = len(cells)
        self._at: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._complete: set[str] = set()
        for cell in cells:
            self.read(cell)
        done = sum(self._spent.values())
        self._line = Line(title, total=sum(cell.rollouts for cell in cells), unit="rollouts", done=done)

    def read(self, cell: Cell) -> None:
        """Read new data of a cell."""
        folder = folder_of(cell)
        if finished(cell, folder):
            self._complete.add(cell.run_id)
            self._spent[cell.run_id] = cell.rollouts
            return
        if records := Spool(folder).since(self.position(cell)):
            self._at[cell.run_id] = records[-1].id
            self._spent[cell.run_id] = min(records[-1].record.rollouts, cell.rollouts)

    def position(self, cell: Cell) -> int:
        """The id of the cell's last record that was read, which changes while the cell progresses."""
        return self._at.get(cell.run_id, 0)

    def show(self, *, last: bool = False) -> None:
        """Print the line."""
        before = f"{len(self._complete)}/{self._cells} cells, "
        self._line.show(sum(self._spent.values()), before=before, last=last)
