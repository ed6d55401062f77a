"""The Ray cluster that the stages run on, and its workers as actors.

The cluster already exists, or is one head for a whole ``repro``. A worker that has loaded other code, libraries or base
models than the driver is refused. On SIGTERM and SIGINT, running cells may save their state first; a second signal ends
them at once.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from isocompute.rollout.contract.deaths import line
from isocompute.rollout.scoring.code import digest

from ..errors import ExperimentError, is_for_the_user, listed
from . import cell_folder
from .cells import NAMESPACE, Cell, Surroundings, WorkerConfig, check_problems
from .identity import CARRIES_NO_RESULT, LOOP, module_of, modules_of, reached, versions

SESSION = "ISOCOMPUTE_SESSION"
"""Variable that names the actor holding one ``repro``'s workers, for the stages that it runs."""
LOCAL = "isocompute_local"
"""A resource of the head that ``cluster`` starts, which tells stages that the cluster does not grow."""
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Workers have their own environment, so they could not use a process that Ray prestarted.
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
}
"""Settings of Ray, vLLM and torch.distributed for a single machine."""


@contextmanager
def open_cluster(processors: int) -> Iterator[None]:
    """Join the cluster of ``RAY_ADDRESS`` or of this node, or start one for the duration of the block.

    A cluster started here can be reached only from this machine, and with the token in this process's environment.
    """
    import logging

    import ray

    os.environ.update({k: v for k, v in QUIET.items() if k not in os.environ})
    if ray.is_initialized():
        yield
        return
    signals = installed()
    sizes: dict[str, Any] = {"num_cpus": processors, "object_store_memory": 256 * 2**20, "include_dashboard": False}
    sizes["resources"] = {LOCAL: 1}
    quiet = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as stack:
        try:
            if os.environ.get("RAY_ADDRESS"):
                ray.init(**quiet)
            else:
                try:
                    with ExitStack() as own:
                        own.enter_context(_closed())
                        ray.init(**quiet, **sizes)
                        stack.enter_context(own.pop_all())
                except ValueError as error:
                    if "existing cluster" not in str(error):
                        raise
                    # On a node of a cluster, Ray joins that cluster by itself, and accepts no sizes.
                    ray.init(**quiet)
        except Exception as error:
            raise ExperimentError(not_started(str(error))) from None
        stack.callback(ray.shutdown)
        if signals:
            # Ray has replaced the handlers.
            install()
        yield


LOGS = "its logs are in /tmp/ray/session_latest/logs"
CURES = {
    "/dev/shm|object store|plasma": "delete what is left in /dev/shm, or start the container with --shm-size=1g",
    "No space left|Disk quota": "free the disk of /tmp, or name a folder of another one in RAY_TMPDIR",
    "AF_UNIX path|path too long|File name too long": "name a folder with a short path in RAY_TMPDIR",
    "new thread|temporarily unavailable|pthread": "raise the limit of processes (ulimit -u, or of the container)",
    "open files": "raise the limit of open files (ulimit -n)",
    "allocate memory|out of memory|bad_alloc": "free memory, or set resources.workers lower",
    r"in use|\bbind|\bport ": "another process has its port: end an older Ray (ray stop), and try again",
    "version": "install the versions of Ray and of Python here that the cluster has",
    "token|unauthenticated": "give the cluster's token in RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token",
    "running Ray instance|active Ray|connect to (Ray|GCS)|malformed|node info": "unset RAY_ADDRESS and end what is "
    "left of an older Ray (ray stop), or name a cluster that answers",
    "timed? ?out|GCS|raylet|deadline": f"try again when the machine has more memory and processors free; {LOGS}",
}
"""Advice if Ray does not start, by a pattern in its error, the likelier cause first."""


def not_started(error: str) -> str:
    """Why Ray did not start, and what to do, in one sentence."""
    cure = next((cure for pattern, cure in CURES.items() if re.search(pattern, " ".join(error.split()), re.I)), LOGS)
    address = os.environ.get("RAY_ADDRESS")
    what = f"the Ray cluster of RAY_ADDRESS ({address}) cannot be joined" if address else "Ray cannot be started"
    return f"{what} ({line(error).rstrip('.')}): {cure}"


@contextmanager
def _closed() -> Iterator[None]:
    """Make a head that starts now, and everything it starts, listen only on loopback and require a new token."""
    from ray._private import ray_constants

    settings = {**LOOPBACK, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in settings}
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    # Ray read this when it was imported; without multi-machine clusters, its address is loopback.
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(settings)
    _read_again()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    """Make Ray read the environment again, which it read when it was imported."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def shared_cluster(processors: int) -> Iterator[dict[str, str]]:
    """Hold workers for several processes; yield the environment that lets them join.

    The workers belong to an actor that belongs to this process, so they end whenever and however it ends.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with open_cluster(processors):
        session = f"roster-{uuid4().hex[:12]}"
        # Use this process's node: without it nothing continues anyway.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        holder: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(Roster)
        roster = holder.options(name=session, namespace=NAMESPACE, runtime_env=environment()).remote(session)
        try:
            yield {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, SESSION: session}
        finally:
            ray.kill(roster)


def environment() -> dict[str, Any]:
    """Runtime environment of actors that import this project."""
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"env_vars": {**QUIET, "PYTHONPATH": os.pathsep.join(places)}}


class WorkerActor:
    """An actor with a worker. A call opens it, since an error in an actor's constructor looks like its death."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._loaded: Loaded | None = None

    def open(self, config: WorkerConfig) -> Loaded:
        """Load the model, unless it is already loaded; return what was loaded with it."""
        guard = CodeGuard.install()
        # Imported while the guard is active.
        from .worker import Worker

        if self._loaded is None or self._worker.config != config:
            self._worker = Worker(config, guard.verify)
            self._loaded = Loaded.of(config, guard)
        return self._loaded

    def place(self, path: str, text: str) -> tuple[str, bool]:
        """The machine, and whether it sees a file that the driver wrote, with its text."""
        try:
            return socket.gethostname(), Path(path).read_text() == text
        except OSError:
            return socket.gethostname(), False

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a worker's method; if it takes a cell, check first that the problems match its run id."""
        if isinstance(arguments[0], Cell):
            check_problems(*arguments[:2])
        return getattr(self._worker, method)(*arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The code, libraries, device and base models that a worker has loaded.

    Attributes:
        modules: Hash of the code of each module that a cell depends on.
        device: Where it computes: ``cuda`` if requested and available, else ``cpu``.
    """

    host: str
    process: int
    bases: frozenset[str]
    modules: Mapping[str, str]
    versions: Mapping[str, str]
    device: str

    @classmethod
    def of(cls, config: WorkerConfig, guard: CodeGuard) -> Loaded:
        """Describe this process, after its worker was made."""
        import torch

        guard.verify()
        return cls(
            host=socket.gethostname(),
            process=os.getpid(),
            bases=frozenset(cell_folder.content(cell_folder.local_path(place)) for place in config.models.values()),
            modules=guard.hashes,
            versions=versions(),
            # A worker that holds no GPU may run on a machine without one.
            device="cpu" if config.resources.own_gpus and not torch.cuda.is_available() else config.resources.device,
        )


class CodeGuard(MetaPathFinder):
    """Records a cell's code before it is imported, and refuses to import a module that has changed since."""

    def __init__(self) -> None:
        self.hashes = modules_of(LOOP)
        self._names = reached(LOOP, without=CARRIES_NO_RESULT).names

    @classmethod
    def install(cls) -> CodeGuard:
        """This process's guard, created on the first call."""
        guard = next((finder for finder in sys.meta_path if isinstance(finder, cls)), None)
        if guard is None:
            guard = cls()
            sys.meta_path.insert(0, guard)
        return guard

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave a module to the other finders, unless it has changed."""
        if fullname in self.hashes and self._changed(fullname):
            raise ImportError(_edited([fullname]))
        return None

    def verify(self) -> None:
        """Check that another process would now import the same code as this one has loaded."""
        changed = [module for module in self.hashes if self._changed(module)]
        if changed:
            raise ExperimentError(_edited(changed))

    def _changed(self, module: str) -> bool:
        # Modules are cached once read, so this is the state when the guard began.
        before = module_of(module)
        try:
            # Only an edited file is parsed, to see whether the part that a cell needs was edited.
            now = before.now() if before else None
        except (OSError, SyntaxError):
            return True
        return now is None or (now is not before and now.hash_of(self._names[module]) != self.hashes[module])


def check(loaded: Loaded, *, bases: Collection[str], surroundings: Surroundings) -> None:
    """Refuse a worker that loaded something other than the driver requested."""
    found = []
    if digest(loaded.modules) != surroundings.code:
        found.append(f"other code than this stage ({listed(_unequal(modules_of(LOOP), loaded.modules))})")
    own, theirs = surroundings.versions, loaded.versions
    if libraries := _unequal(own, theirs):
        said = [f"{name} {theirs.get(name, 'none')} for {own.get(name, 'none')}" for name in libraries]
        found.append(f"other libraries ({listed(said)})")
    if loaded.bases != frozenset(bases):
        there, wanted = (", ".join(sorted(hashes)) for hashes in (loaded.bases, bases))
        found.append(f"another base model ({there} for {wanted})")
    if loaded.device != surroundings.device:
        found.append(f"device {loaded.device!r} for {surroundings.device!r}")
    if found:
        raise ExperimentError(
            f"the worker on {loaded.host} (process {loaded.process}) loaded {'; '.join(found)}: the run ids of "
            "this stage would not be true of it; start the same command again, on machines that have the same files "
            "and libraries"
        )


def _unequal(own: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))


def _edited(modules: Sequence[str]) -> str:
    return f"{listed(modules)} changed on disk while this worker was loading or running: start the same command again"


class Roster:
    """Starts workers and keeps them until others are needed; one ``repro`` holds it in its own actor.

    Workers belong to its process, and end with it. Their names contain the session and the hash of what they were
    started for, so they are not confused with other actors.
    """

    def __init__(self, session: str) -> None:
        self._session, self._key, self._started = session, "", 0
        self._class: Any = None
        self._options: Mapping[str, Any] = {}
        self._actors: list[Any] = []

    def take(self, key: str, workers: int, actor: type, options: Mapping[str, Any]) -> list[Any]:
        """Workers of a class: the existing ones, or new ones that replace others.

        Args:
            key: Hash of the code, the base model and the settings that they are opened with.
        """
        import ray

        if self._key != key or len(self._actors) != workers:
            self.dismiss()
            # Ray disassembles a class to identify it, which takes longer than starting an actor.
            self._key, self._class, self._options = key, ray.remote(actor), options
            self._actors = [self._start() for _ in range(workers)]
        return list(self._actors)

    def replace(self, index: int) -> Any:
        """Start a worker to replace one that died or shows no progress."""
        import ray

        ray.kill(self._actors[index])
        self._actors[index] = self._start()
        return self._actors[index]

    def dismiss(self) -> None:
        """End every worker."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._key, self._actors = "", []

    def _start(self) -> Any:
        self._started += 1
        name = f"worker-{self._session.removeprefix('roster-')}-{self._key}-{self._started}"
        return self._class.options(name=name, namespace=NAMESPACE, **self._options).remote()


def cause(error: BaseException) -> str:
    """The message of the error behind a Ray error: its last non-empty line."""
    inner = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()]
    return re.sub(r"^[\w.]*Error: ", "", lines[-1]) if lines else type(inner).__name__


SAME_SECONDS = 2.0
"""Signals within this many seconds count as one: a terminal signals a whole group, and a command passes it on."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end.

    Attributes:
        exit_code: Exit code of a process ended by the signal, as a shell reports it.
    """

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command line: an error that a user can act on is one line and exit code 2; a signal has its own code."""
    try:
        return command() or 0
    except (ValueError, OSError) as error:
        if not is_for_the_user(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"{stopped}: what was done is kept, and the same command continues", file=sys.stderr)
        return stopped.exit_code


def raise_stopped(number: int, _: Any = None) -> None:
    """Handle a signal when there is nothing to save."""
    raise Stopped(number)


def install() -> None:
    """Make signals end this process with ``Stopped``; call it again after Ray, which has its own handlers, has started.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, raise_stopped)


def installed() -> bool:
    """Return whether ``install`` was called and no handler has been replaced since."""
    return any(signal.getsignal(number) is raise_stopped for number in SIGNALS)


@contextmanager
def deferred() -> Iterator[Callable[[], int | None]]:
    """Note the first signal, and raise ``Stopped`` for it at the end of the block; a second one ends the block at once.

    Yields:
        A function that returns the number of the signal that came, or None.
    """
    came: list[int] = []
    first = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal first
        if not came:
            came.append(number)
            first = time.monotonic()
        elif time.monotonic() - first > SAME_SECONDS:
            raise Stopped(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise Stopped(came[0])
