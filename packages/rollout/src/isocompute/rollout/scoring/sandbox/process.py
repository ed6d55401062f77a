"""Pools of scoring processes, controlled by the engine's process: requests out, replies in, dead ones replaced."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, get_args

from pydantic import Field

from ...contract.settings import made_of, settings
from ...errors import RolloutError
from ..running import descendants
from . import boot, layers
from .child import PREPARING_SECONDS, ended
from .frames import COMPLETE, NO_VERDICT, READ, FrameError, Group, Reply, death_in, known_responses, number_in, reply_in
from .layers import ATTEMPTS, READING, Report, isolated
from .limits import make_group, most_processes, remove_group

Layer = Literal["user", "network", "processes", "files", "landlock", "seccomp", "bubblewrap"]
LAYERS: tuple[Layer, ...] = get_args(Layer)
"""Layers of the sandbox that depend on the kernel; without Landlock, ``files`` means mounts of the readable paths."""

MOST_WORKERS_BY_DEFAULT = 8
"""Most processes per library if their number is not given."""
PACKAGES = ("site-packages", "dist-packages")
"""Folder names of installed libraries."""
INSTALLED = ("bin", "lib", "lib32", "lib64", "include", "share", "etc", "pyvenv.cfg")
"""Contents of an interpreter's own folder, which may also be a working folder."""
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TZ")
"""Environment variables passed to the process; none that could hold a token or a key."""
START_SECONDS = 120.0
"""Timeout for starting a process and loading its library."""
END_SECONDS = 2.0
"""Timeout for a process to end before it is killed."""
FAILURES = 3
"""Processes in a row that may end without an answer before scoring is given up."""
LONGEST_LINE = 1 << 22
"""Bytes of the longest line from a process."""
CLOSED = "the scorer was closed before it had scored all that was submitted"
MEANING = {
    "no_new_privs": "no program gains rights",
    "user": "the user's rights are given up",
    "network": "nothing can be reached",
    "processes": "all end together, none outside is signalled",
    "files": "nothing is written",
    "seccomp": "only system calls that verifiers need pass",
}
"""Purpose of each layer."""
ENDING_SECONDS = 1.0
"""Time within which a process left behind by a response must have ended."""
STANDING = 2
"""Processes that exist while nothing is scored: one that loads the library, and a worker."""


@settings(RolloutError)
class ScoringConfig:
    """Limits of the scoring processes, and whether fractions count."""

    seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Processor time per response; a response that takes more earns 0."""
    wall_factor: Annotated[float, Field(ge=1, le=1000)] = 10.0
    """Wall time limit, in multiples of ``seconds``: a response must not become wrong because the machine is busy."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Processes that score at the same time, per library used by rules; by default half of this process's processors,
    at least 1 and at most 8."""
    memory_bytes: int = 2 * 2**30
    """Memory of all processes of a response together, and address space of each in addition to the library's."""
    partial: bool = False
    """Use a rule's fraction as the reward; otherwise the reward is 1 for a full score and 0 for anything less."""
    allow_unisolated: bool = False
    """Allow rules that may execute what a response says even if the kernel cannot cut them off from the network and
    from writing files."""
    readable: tuple[str, ...] = ()
    """Files and folders that user rules need to read while they score, besides installed packages and their module's
    package."""
    without: tuple[Layer, ...] = ()
    """Layers of the sandbox not to use even if the kernel has them (``LAYERS``), for machines where one of them
    misbehaves."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 2**29:
            raise RolloutError(f"memory_bytes is {self.memory_bytes}; the libraries alone need {2**29} (512 MiB)")
        missing = [path for path in self.readable if not (path and Path(path).exists())]
        if missing:
            raise RolloutError(f"readable names {missing[0]!r}; it must be a file or a folder that exists")

    @property
    def processes(self) -> int:
        """Processes per library on this machine."""
        if self.workers is not None:
            return self.workers
        return max(1, min(MOST_WORKERS_BY_DEFAULT, len(os.sched_getaffinity(0)) // 2))

    @property
    def wall_seconds(self) -> float:
        """Wall time per response (s)."""
        return self.seconds * self.wall_factor


def scoring_from(plain: Mapping[str, Any]) -> ScoringConfig:
    """Make the configuration from plain settings; ``readable`` and ``without`` may be comma-separated texts."""
    values = dict(plain)
    for name in ("readable", "without"):
        value = values.get(name)
        if isinstance(value, str):
            values[name] = [part for part in value.split(",") if part]
    return made_of(ScoringConfig, values, RolloutError, "scoring")


class WorkerPool:
    """The processes of one library, each with a thread that feeds it."""

    def __init__(self, name: str, config: ScoringConfig) -> None:
        self._name = name
        self._lock, self._closed = threading.Lock(), False
        self._jobs: queue.SimpleQueue[tuple[Callable[[ScoringProcess], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._processes = [ScoringProcess(name, config) for _ in range(config.processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name=f"scoring {name}", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def score(self, groups: Sequence[Group]) -> Future[list[Reply]]:
        """Score responses in the background."""
        return self._put(lambda process: process.score(groups))

    def each(self, kind: str, values: Sequence[Any]) -> Future[list[Reply]]:
        """Request something else in the background; see ``ScoringProcess.each``."""
        return self._put(lambda process: process.each(kind, values))

    def close(self) -> None:
        """End the processes; unanswered requests get an error."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.stop()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _put(self, request: Callable[[ScoringProcess], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(RolloutError(CLOSED))
            else:
                self._jobs.put((request, future))
        return future

    def _serve(self, process: ScoringProcess) -> None:
        while (job := self._jobs.get()) is not None:
            request, future = job
            try:
                if self._closed:
                    raise RolloutError(CLOSED)
                future.set_result(request(process))
            except Exception as error:
                future.set_exception(error)
        process.close()


class ScoringProcess:
    """One process of a pool and its replacements; used by one thread at a time."""

    def __init__(self, pool: str, config: ScoringConfig) -> None:
        self._pool, self._config = pool, config
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._group = ""
        self._unread = b""
        self._lines: deque[bytes] = deque()
        self._request = 0
        self._stopped = False
        self.report: Report = {}

    @property
    def pid(self) -> int:
        """Id of the first process of the sandbox; 0 for none."""
        return self._process.pid if self._process is not None else 0

    def score(self, groups: Sequence[Group]) -> list[Reply]:
        """Score responses, even if the scoring processes die, together with two responses of known score."""
        replies: list[Reply] = []
        failures, one_by_one, complete = 0, False, False
        total = sum(len(group[4]) for group in groups)
        while not complete:
            request = {"groups": _after(groups, len(replies)), "known": known_responses(self._pool)}
            answer = self._ask(request, total - len(replies) + 2, one_by_one=one_by_one)
            left = total - len(replies)
            unknown = self._known(answer.replies[:1], right=True) or self._known(
                answer.replies[left + 1 :], right=False
            )
            failed = answer.died or unknown
            # A process with wrong known responses is not trusted. One that ended has given valid replies up to that
            # point.
            progress = [] if unknown else answer.replies[1 : left + 1]
            replies += progress
            if answer.blamed and one_by_one and answer.replies and len(replies) < total:
                replies.append({"error": answer.died})
                progress = [*progress, replies[-1]]
            complete = not failed
            failures = failures + 1 if failed and not progress else 0
            if failures == FAILURES:
                raise RolloutError(f"the processes that score {self._pool} keep ending before they answer: {failed}")
            # Replies that are written together do not show which response ended the process.
            one_by_one = True
        return replies

    def each(self, kind: str, values: Sequence[Any]) -> list[Reply]:
        """Request a reply for each value that is not a response: ``check`` for rules, ``draws`` for problems."""
        replies: list[Reply] = []
        failures = 0
        while len(replies) < len(values):
            before = len(replies)
            answer = self._ask({kind: list(values[before:])}, len(values) - before, one_by_one=True)
            replies += answer.replies
            if answer.blamed and len(replies) < len(values):
                replies.append({"error": answer.died})
            failures = failures + 1 if len(replies) == before else 0
            if failures == FAILURES:
                raise RolloutError(f"the process that scores {self._pool} does not answer: {answer.died}")
        return replies

    def _known(self, replies: Sequence[Reply], *, right: bool) -> str:
        """Return why a response with a known score could not be scored, if so, and end the process.

        Raises:
            RolloutError: It got another score.
        """
        for reply in replies:
            if isinstance(reply, dict):
                self.close()
                return str(next(iter(reply.values())))
            if (reply == 1.0) != right:
                self.close()
                known = "right" if right else "wrong"
                raise RolloutError(
                    f"the processes that score {self._pool} gave {reply:g} to a response known to be {known}: no "
                    "verdict of theirs can be believed; a library or a rule there has replaced what scores"
                )
        return ""

    def started(self) -> Report:
        """Start a process if none is running; return the layers of its sandbox."""
        if self._process is not None and self._process.poll() is None:
            return self.report
        if self._pool == "runs" and "bubblewrap" not in self._config.without and (program := layers.bubblewrap_path()):
            # If bubblewrap cannot be set up, the sandbox's own layers surround each program.
            with contextlib.suppress(RolloutError):
                return self._started(program)
        return self._started("")

    def _started(self, program: str) -> Report:
        self.close()
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._group = make_group()
        self._process = subprocess.Popen(
            command(self._pool, self._config, program, self._group),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**kept, **one_thread, "PYTHONHASHSEED": "0", "HOME": "/"},
            start_new_session=True,
        )
        line = self._line(START_SECONDS)
        first: dict[str, Any] = json.loads(line) if line else {"fault": self._why()}
        if "ready" not in first:
            self.close()
            raise RolloutError(f"the process that scores {self._pool} did not start: {first.get('fault')}")
        self.report = first["ready"]
        return self.report

    def stop(self) -> None:
        """End the process for good, from any thread; callers that wait for a reply get an error."""
        self._stopped = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.terminate()

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process, self._unread = self._process, None, b""
        self._lines.clear()
        if self._errors is not None:
            self._errors.close()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            # The launcher notices that its input is closed, and kills everything.
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        remove_group(self._group)

    def _ask(self, request: dict[str, Any], count: int, *, one_by_one: bool) -> _Outcome:
        """Send a request and read its replies, until all have arrived or the process that writes them ends."""
        if self._process is not None and self._stray():
            self.close()
        self.started()
        if self._stopped:
            raise RolloutError(CLOSED)
        self._request += 1
        replies: list[Reply] = []
        try:
            # Computed as late as possible: the engine's own processes may count towards it, and they come and go.
            processes = most_processes(self.report)
            self._send({**request, "id": self._request, "one_by_one": one_by_one, "processes": processes})
            died, blamed = self._read(replies, count)
        except OSError:
            self.close()
            return _Outcome(replies=[], died="it ended before it read a request")
        except FrameError as error:
            self.close()
            # Replies that were written together with an invalid line are not trusted. Of replies written one by one,
            # only the last expected one is not.
            return _Outcome(replies=replies[: count - 1] if one_by_one else [], died=str(error), blamed=True)
        if died and self._stopped:
            raise RolloutError(CLOSED)
        return _Outcome(replies=replies, died=died, blamed=blamed)

    def _read(self, replies: list[Reply], count: int) -> tuple[str, bool]:
        """Append replies; return how the process ended, if it did, and whether a response may have ended it."""
        read = False
        while True:
            line = self._line(self._config.wall_seconds + PREPARING_SECONDS)
            if not line:
                return self._ended(), read
            if line.startswith(b"{"):
                end = death_in(line)
                if not read:
                    # Its leftovers of the request must not be taken for another.
                    self.close()
                return end["died"], read and not end.get("again")
            number, reply = number_in(line, self._request)
            if number == READ and not read:
                read = True
            elif read and number == len(replies) < count:
                replies.append(reply_in(reply))
            elif number == COMPLETE and len(replies) == count and not self._stray():
                return "", False
            else:
                raise FrameError(NO_VERDICT)

    def _stray(self) -> bool:
        """Return whether there is output that nobody waits for."""
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(self._lines or self._unread or select.select([self._process.stdout], [], [], 0)[0])

    def _ended(self) -> str:
        """Close a process that does not answer or has ended; return which."""
        assert self._process is not None
        late = self._process.poll() is None
        self.close()
        if late:
            return f"deadline: more than {self._config.wall_seconds:g} s by the clock"
        return "the verifier's process ended"

    def _why(self) -> str:
        """Return why a process has not started: the last line that it wrote."""
        assert self._process is not None
        assert self._errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        end = f"more than {START_SECONDS:g} s" if code is None else ended(code)
        self._errors.seek(0)
        written = self._errors.read(1 << 20).decode(errors="replace").strip().splitlines()
        return f"{written[-1].strip()[:300]} ({end})" if written else end

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # An unbuffered pipe may accept only a part.
        left = memoryview(json.dumps(request).encode() + b"\n")
        while left:
            left = left[self._process.stdin.write(left) or 0 :]

    def _line(self, seconds: float) -> bytes:
        """Read one line; empty if the process ends first or takes longer."""
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while not self._lines:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return b""
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            *lines, self._unread = (self._unread + part).split(b"\n")
            if len(self._unread) > LONGEST_LINE:
                raise FrameError(NO_VERDICT)
            self._lines.extend(lines)
        return self._lines.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Outcome of a request.

    Attributes:
        replies: The replies, in order, up to its end.
        died: How the process ended before the request was complete; otherwise empty.
        blamed: Whether the response that was being scored may have ended it.
    """

    replies: list[Reply]
    died: str = ""
    blamed: bool = False


def _after(groups: Sequence[Group], done: int) -> list[Group]:
    rest: list[Group] = []
    for base, words, answer, metadata, responses in groups:
        skipped = min(done, len(responses))
        done -= skipped
        if skipped < len(responses):
            rest.append((base, words, answer, metadata, responses[skipped:]))
    return rest


def command(pool: str, config: ScoringConfig, program: str, group: str = "") -> list[str]:
    """Return the command of a pool's first process, with bubblewrap's path and a control group's folder, if any."""
    user_code = pool.startswith("python:")
    executes = user_code or pool == "runs"
    here = ""
    with contextlib.suppress(OSError):
        here = str(Path.cwd())
    # Add this folder for a user's verifier, since console scripts lack it.
    path = list(dict.fromkeys([*(p or here for p in sys.path), *([here] if user_code and here else ())]))
    settings = {
        "pool": pool,
        "path": path,
        "readable": readable(path, config.readable if user_code else ()),
        # Paths that do not exist, such as Python's archive, must not look as if only root could read them.
        "importable": [place for place in path if Path(place).exists()] if user_code else [],
        "executes": executes,
        "executing": executes or pool == "reasoning_gym",
        "bubblewrap": program,
        "group": group,
        "root": os.geteuid() == 0,
        "seconds": config.seconds,
        "wall_seconds": config.wall_seconds,
        "memory_bytes": config.memory_bytes,
        "allow_unisolated": config.allow_unisolated,
        "without": [*config.without, *(layers.INSTEAD_OF if program else ())],
    }
    return [sys.executable, "-P", "-B", "-W", "ignore", str(Path(boot.__file__).resolve()), json.dumps(settings)]


def readable(path: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return the paths that scoring reads: the interpreter, installed libraries and this package."""
    package = str(Path(__file__).resolve().parents[4])
    own = [str(Path(prefix) / name) for prefix in (sys.prefix, sys.base_prefix) for name in INSTALLED]
    places = [place for name, place in sysconfig.get_paths().items() if name != "data"]
    installed = [place for place in path if Path(place).name in PACKAGES]
    found = [*own, *places, *installed, package, *map(os.path.abspath, more)]
    return list(dict.fromkeys(place for place in found if Path(place).exists()))


def report(config: ScoringConfig | None = None) -> list[str]:
    """Try in a sandbox everything that a response must not do; return lines on layers, limits and allowed rules."""
    config = config or ScoringConfig()
    process = ScoringProcess("exact", config)
    try:
        layers = process.started()
        outcomes = _outcomes(process)
        user = Path(f"/proc/{process.pid}").stat().st_uid
    finally:
        process.close()
    said = {name: words(name, layers, outcomes) for name in MEANING}
    if layers["files"] and outcomes.get(READING) != "refused":
        said["files"] += ", but what its user may read can be read"
    said["user"] = f"{layers['user'] or 'missing'}: the engine's own user" if user == os.geteuid() else layers["user"]
    lines = [f"{name} ({meaning}): {said[name]}" for name, meaning in MEANING.items()]
    lines.append(
        f"limits: {config.seconds:g} s of processor time and {config.wall_seconds:g} s by the clock for a response, "
        f"{config.memory_bytes / 2**30:g} GiB of memory; processes for each library: {config.processes}"
    )
    allowed = isolated(layers) or config.allow_unisolated
    lines.append("rules that may execute a response: " + ("allowed" if allowed else "refused, for lack of isolation"))
    return lines


def words(layer: str, layers: Mapping[str, str], outcomes: Mapping[str, str]) -> str:
    """Return the state of a layer if all attempts against it were refused."""
    if not layers.get(layer):
        return "missing"
    done = [attempt for attempt, (of, _) in ATTEMPTS.items() if of == layer and outcomes.get(attempt) != "refused"]
    return f"not shown: a test process could {done[0]}" if done else layers[layer]


def _outcomes(process: ScoringProcess) -> dict[str, str]:
    """Let a sandbox process try everything, on a file and sockets made for this."""
    with (
        tempfile.TemporaryDirectory(prefix="isocompute-report-") as folder,
        socket.socket() as listener,
        socket.socket(socket.AF_UNIX) as here,
    ):
        Path(folder).chmod(0o777)
        file = Path(folder) / "file"
        file.write_text("a file of the user")
        file.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        here.bind(str(Path(folder) / "socket"))
        for bound in (listener, here):
            bound.listen()
        targets: dict[str, Any] = {
            "folder": folder,
            "file": str(file),
            "socket": str(Path(folder) / "socket"),
            "port": listener.getsockname()[1],
            "engine": os.getpid(),
        }
        reply = process.each("probes", [targets])[0]
    outcomes: dict[str, str] = json.loads(reply["probes"]) if "probes" in reply else {}
    end = time.monotonic() + ENDING_SECONDS
    while outcomes.get("leave a process behind") == "done" and time.monotonic() < end:
        if sum(1 for _ in descendants(process.pid)) <= STANDING:
            # A process was left behind, and was ended.
            outcomes["leave a process behind"] = "refused"
        time.sleep(ENDING_SECONDS / 100)
    return outcomes
