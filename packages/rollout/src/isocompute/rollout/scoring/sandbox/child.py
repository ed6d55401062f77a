"""The processes of a sandbox: launcher, nursery, worker, and a child for each response that a rule executes.

A child shares its memory with the response, and nothing in a memory is safe from the rest of it. So the child has no
way to the engine: it holds a pipe to the worker, on which exactly one reply counts. The worker reads the reply as a
verdict and writes it anew. The reply begins with a number drawn for this response, which waits in another pipe until
the verifier has returned. A response that a rule executes in the child can end it or write to the pipe, which earns
nothing. A response written for this sandbox can read the number first and forge a reply, as it could make the verifier
return what it likes: nothing here excludes that, and it changes no other response's verdict.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache, partial
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ...errors import ProblemError, RolloutError
from .. import running
from ..judges import CallableJudge, load
from ..judges.programs import Apart, spent
from ..judges.text import Judge, Scored, same
from ..rules import Extraction, extraction, may_execute
from . import kernel, layers
from .frames import COMPLETE, NO_VERDICT, READ, FrameError, Reply, numbered, reply_in, said
from .layers import tried
from .limits import (
    LOOK_SECONDS,
    PROCESSES,
    SLACK_SECONDS,
    ControlGroup,
    Limits,
    Watch,
    confine,
    counted_alone,
    limit,
    limits_in,
)

T = TypeVar("T")
POLL_SECONDS = 0.2
"""Interval between checks if the kernel has no file descriptors for processes."""
REAP_SECONDS = 0.05
"""Interval between checks for orphans of a response that is being scored."""
AGAIN = os.EX_TEMPFAIL
"""Exit code of a worker that could not start a process: its response must be scored again."""
NO_PROCESS = "no process can be started to score a response"
PREPARING_SECONDS = 20.0
"""Processor time that a rule may use to load its data."""
LARGEST_PROBLEM = 1 << 20
"""Bytes of the largest problem that is generated here."""
BUFFER_SECONDS = 0.1
"""Time for which replies are buffered and written together; a reply that took longer is written at once."""
PATIENCE = 2
"""Responses to a problem that may use all their wall time; the others then have only ``seconds``."""
HEAD = struct.Struct("=16sI")
"""Start of a reply: the number drawn, and the length of the rest."""
LARGEST_REPLY = 4096
NO_SCORE = "error: a verifier must return a number from 0 to 1, not "
_TYPE = re.compile(rf"(?:{NO_SCORE}|error: )(?P<name>\w+)", re.ASCII)
"""The part of a child's error that is passed on."""
FORK_SECONDS = 1.0
"""Timeout for forking a process while the machine or its user has too many."""


def launch(settings: dict[str, Any]) -> None:
    """Start the nursery and wait until it ends, or until the engine's process closes its end of the pipe."""
    with contextlib.suppress(OSError):
        # If memory is short, the kernel kills a sandbox before any engine, since it can be restarted.
        Path("/proc/self/oom_score_adj").write_text("1000")
    group = ControlGroup(settings["group"])
    with contextlib.suppress(OSError):
        # With a root engine, this priority lets the launcher kill any number of processes.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    # If the engine's parent ignores the signal, it would be ignored here, too.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # While a user's rule is imported, everything importable is visible.
    report = layers.enter([*settings["readable"], *settings["importable"]], settings["without"])
    os.chdir("/")
    with contextlib.suppress(OSError):
        # Orphans become children of this process.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    nursery = os.fork()
    if nursery == 0:
        group.enter()
        nurse(settings, report, group)
        os._exit(0)
    # On SIGTERM it still ends all others first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The reply pipe must close when its writers end.
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        _wait(nursery, Watch(settings["memory_bytes"], settings["seconds"]) if settings["executing"] else None)
    finally:
        _end_children()


def _wait(nursery: int, watch: Watch | None) -> None:
    poll = select.poll()
    # With no events requested, poll still reports that the other end was closed.
    poll.register(0, 0)
    timeout: float | None = None
    try:
        poll.register(os.pidfd_open(nursery), select.POLLIN)
    except (AttributeError, OSError):
        timeout = POLL_SECONDS * 1000
    if watch is not None:
        timeout = LOOK_SECONDS * 1000
    while not poll.poll(timeout):
        _reap(nursery)
        if os.waitid(os.P_PID, nursery, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        if watch is not None:
            timeout = watch.look() * 1000
    end = os.waitid(os.P_PID, nursery, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is not None and end.si_status:
        how = ended(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
        print(f"the process that loads the library ended ({how})", file=sys.stderr, flush=True)


def _reap(child: int) -> None:
    """Reap ended orphans, but not the child that is waited for."""
    while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and end.si_pid != child:
        os.waitpid(end.si_pid, 0)


def _end_children() -> None:
    """Kill all descendants: the children, and their children once they are orphans."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in listed.read_text().split():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(child), signal.SIGKILL)
            os.wait()


def nurse(settings: dict[str, Any], report: layers.Report, group: ControlGroup) -> None:
    """Load the library of a pool, give up all rights, and keep one worker running."""
    layers.die_with_parent()
    if os.getpid() != 1:
        # Killing all processes is only safe within a namespace.
        report = {**report, "processes": ""}
    given, replies = os.dup(0), os.dup(1)
    # A library's output must not become a verdict.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    try:
        judge: Judge = load(settings["pool"], _apart(settings, report))
        # A large library reserves more than it uses, and more than a response may have.
        space = running.address_space() + settings["memory_bytes"]
        readable = [*settings["readable"], *(judge.sources if isinstance(judge, CallableJudge) else ())]
        report = layers.restrict(report, readable, settings["without"], execute=settings["executes"])
        if settings["bubblewrap"]:
            network = " + ".join(word for word in (report["network"], "seccomp") if word)
            report = {**report, "files": layers.NAME, "network": network}
    except RolloutError as error:
        _write(replies, {"fault": str(error)})
        return
    except Exception as error:
        _write(replies, {"fault": f"the sandbox that scores cannot be set up ({broken(error)})"})
        return
    # Until here, stderr reports why a sandbox does not start.
    os.dup2(nothing, 2)
    os.close(nothing)
    _write(replies, {"ready": report})
    # Existing objects stay shared with the workers.
    gc.collect()
    gc.freeze()
    # Neither the worker nor this process belongs to a response.
    group.limit(settings["memory_bytes"], processes=PROCESSES + 2)
    contained = layers.contained(report)
    while True:
        try:
            worker = _patiently(os.fork)
        except NoProcessError:
            _write(replies, {"died": NO_PROCESS, "again": True})
            return
        if worker == 0:
            limit(space, alone=counted_alone(report))
            _work(Worker(judge, settings, report, given=given, replies=replies))
        pid, status = os.wait()
        while pid != worker:
            # This reaps orphans, too.
            pid, status = os.wait()
        if status == 0:
            return
        _clear(contained=contained)
        again = os.waitstatus_to_exitcode(status) == AGAIN
        _write(replies, {"died": NO_PROCESS if again else _why(status, settings["seconds"]), "again": again})


def _patiently(make: Callable[[], T]) -> T:
    """Create a process, or a pipe for one, as soon as that is possible.

    Raises:
        NoProcessError: It stays impossible for a while.
    """
    end = time.monotonic() + FORK_SECONDS
    while True:
        try:
            return make()
        except OSError as error:
            if time.monotonic() > end:
                raise NoProcessError(f"{NO_PROCESS} ({error.strerror})") from None
            time.sleep(FORK_SECONDS / 20)


def _apart(settings: dict[str, Any], report: layers.Report) -> Apart:
    """Return how a ``runs`` program is isolated from the process that starts it, in addition to this sandbox."""
    if not settings["bubblewrap"]:
        return Apart()
    if settings["root"] and not report["user"].startswith("uid "):
        raise RolloutError("bubblewrap would run programs as root, whose number of processes the kernel does not limit")
    return layers.apart(settings["bubblewrap"], settings["readable"])


def _work(worker: Worker) -> None:
    status = 1
    try:
        layers.die_with_parent()
        # Orphans are reaped here, where the response's time is counted.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        worker.work()
        status = 0
    except NoProcessError:
        status = AGAIN
    finally:
        os._exit(status)


def _clear(*, contained: bool) -> None:
    """Kill and reap everything that a worker left behind."""
    if contained:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0 if contained else os.WNOHANG) != (0, 0):
            pass


def _why(status: int, seconds: float) -> str:
    number = os.waitstatus_to_exitcode(status)
    if number == -signal.SIGPROF:
        return f"deadline: more than {seconds:g} s of processor time"
    return f"the verifier's process ended ({ended(number)})"


def _write(replies: int, line: dict[str, Any]) -> None:
    try:
        os.write(replies, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        # The engine's process is gone.
        os._exit(0)


class Worker:
    """Scores requests until its input ends.

    Args:
        judge: Scores the rules of this pool.
        given: File descriptor of the requests, one JSON line each.
        replies: File descriptor of the replies (``frames.numbered``). They are written together, or one by one if the
            request asks for it, which shows which response ended the process.
    """

    def __init__(
        self, judge: Judge, settings: dict[str, Any], report: layers.Report, *, given: int, replies: int
    ) -> None:
        self._judge = judge
        self._given, self._replies = given, replies
        self._buffered: list[bytes] = []
        self._request, self._number = 0, 0
        self._one_by_one, self._written = False, 0.0
        self._may_execute = layers.isolated(report) or settings["allow_unisolated"]
        self._seconds: float = settings["seconds"]
        self._limits = limits_in(
            report, seconds=self._seconds, wall_seconds=settings["wall_seconds"], processes=PROCESSES
        )

    def work(self) -> None:
        """Answer requests until there are no more."""
        with os.fdopen(self._given, "rb") as lines:
            for line in lines:
                request = json.loads(line)
                self._request, self._number = request["id"], 0
                self._limits = replace(self._limits, processes=request["processes"])
                self._one_by_one, self._written = request["one_by_one"], time.monotonic()
                self._buffer(numbered(self._request, READ))
                self._write()
                try:
                    self._answer(request)
                finally:
                    self._write()

    def _answer(self, request: dict[str, Any]) -> None:
        for base in request.get("check", ()):
            self._checked(base)
        groups = request.get("groups", ())
        # Known responses are scored like the others.
        executing = any(may_execute(group[0]) for group in groups)
        before, after = request.get("known", ((), ()))
        if before:
            self._scored(*before, executing=executing)
        for group in groups:
            self._scored(*group, executing=may_execute(group[0]))
        if after:
            self._scored(*after, executing=executing)
        for draw in request.get("draws", ()):
            self._drawn(draw)
        for targets in request.get("probes", ()):
            probe = partial(lambda targets: said({"probes": json.dumps(tried(targets))}), targets)
            self._say(said(in_a_child(probe, self._limits, kinds=("probes",))))
        self._buffer(numbered(self._request, COMPLETE))

    def _scored(
        self, base: str, words: list[str], answer: str, metadata: str, responses: list[str], *, executing: bool
    ) -> None:
        try:
            score = self._prepared(base, answer, metadata)
            extract = extraction(tuple(words)) if words else None
        except RolloutError as error:
            key = "unusable" if isinstance(error, ProblemError) else "fault"
            for _ in responses:
                self._say(said({key: str(error)}))
            return
        own = base.startswith("python:")
        reply = partial(_reply, score, extract, faults=not own)
        # A process that executes a response may be made to say anything.
        kinds = ("error",) if own else ("error", "unusable")
        limits, late = self._limits, 0
        for response in responses:
            if executing:
                verdict = in_a_child(partial(reply, response=response), limits, kinds=kinds)
                self._say(said(verdict))
                late += verdict == limits.late
                if late == PATIENCE:
                    limits = replace(self._limits, wall_seconds=self._seconds)
                continue
            # Without a handler the signal ends the process, even inside a C function.
            signal.setitimer(signal.ITIMER_PROF, self._seconds)
            self._say(reply(response=response))
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _checked(self, base: str) -> None:
        try:
            self._prepared(base, "", "")
        except RolloutError as error:
            self._say(said({"fault": str(error)}))
            return
        # If each response is scored in its own process, one must be able to start and to answer.
        self._say(said(in_a_child(lambda: said(1), self._limits) if may_execute(base) else 1))

    def _prepared(self, base: str, answer: str, metadata: str) -> Scored:
        """Return the function that scores a response; preparing it has its own time limit."""
        if base == "exact":
            return partial(same, answer=answer)
        if may_execute(base) and not self._may_execute:
            raise RolloutError(
                f"the verifier {base} may execute what a response says, and this machine's kernel does not let it be "
                "cut off from the network and from writing files: score elsewhere, or set allow_unisolated if that is "
                "acceptable"
            )
        signal.setitimer(signal.ITIMER_PROF, max(PREPARING_SECONDS, self._seconds))
        try:
            return self._judge.prepare(base, answer, metadata)
        except RolloutError as error:
            raise ProblemError(str(error)) from None
        except Exception as error:
            raise ProblemError(f"the rule {base} cannot be prepared for it ({broken(error)})") from None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _drawn(self, draw: dict[str, Any]) -> None:
        def problem() -> bytes:
            try:
                return said({"problem": self._judge.draw(**draw)})
            except RolloutError as error:
                return said({"fault": str(error)})
            except Exception as error:
                return said({"error": broken(error)})

        kinds = ("error", "fault", "problem")
        self._say(said(in_a_child(problem, self._limits, kinds=kinds, largest=LARGEST_PROBLEM)))

    def _say(self, line: bytes) -> None:
        self._buffer(numbered(self._request, self._number, line))
        self._number += 1

    def _buffer(self, line: bytes) -> None:
        self._buffered.append(line)
        # Each write wakes a thread of the engine's process.
        if self._one_by_one or time.monotonic() - self._written > BUFFER_SECONDS:
            self._write()

    def _write(self) -> None:
        left = memoryview(b"".join(self._buffered))
        self._buffered.clear()
        while left:
            left = left[os.write(self._replies, left) :]
        self._written = time.monotonic()


def _reply(score: Scored, extract: Extraction | None, *, faults: bool, response: str) -> bytes:
    """Score a response; return the line with its score, or with how it broke its rule.

    Args:
        extract: Extracts the answer, or None.
        faults: Whether to believe an error that blames the problem; an executed response could raise it.
    """
    # Bound before anything is executed and not looked up again, since a response may replace what modules hold.
    encode, kind, numbers = encode_basestring_ascii, type, (bool, int, float)
    try:
        found = response if extract is None else extract(response)
        value: Any = 0.0 if found is None else score(found)
    except RolloutError as error:
        if not faults:
            return b'{"error": %b}\n' % encode(broken(error)).encode()
        return b'{"unusable": %b}\n' % encode(str(error)).encode()
    except Exception as error:
        return b'{"error": %b}\n' % encode(broken(error)).encode()
    # Not isinstance, since a response's own class could claim anything.
    if kind(value) not in numbers or not 0 <= value <= 1:
        return b'{"error": %b}\n' % encode(NO_SCORE + kind(value).__name__).encode()
    return b"%a\n" % (0.0 + value)


def broken(error: BaseException) -> str:
    """Return a short line about an exception."""
    words = " ".join(str(error).split())
    return f"error: {type(error).__name__}: {words[:100]}" if words else f"error: {type(error).__name__}"


class NoProcessError(Exception):
    """No process can be started: the machine or its user has too many, or too little memory."""


def in_a_child(
    work: Callable[[], bytes],
    limits: Limits,
    *,
    kinds: Collection[str] = ("error", "fault"),
    largest: int = LARGEST_REPLY,
) -> Reply:
    """Run a function in a forked process that is killed with all its descendants; return its reply, or how it broke.

    Args:
        kinds: Keys that its reply may have if it is not a score.
        largest: Bytes of the longest line.

    Raises:
        NoProcessError: It cannot be forked.
    """
    secret, before = os.urandom(16), spent()
    child, reading, writing, key = _forked(secret)
    if child == 0:
        _run(work, writing, key, limits)
    os.close(writing)
    os.close(key)
    data, late = _read(reading, child, HEAD.size + largest, limits.wall_seconds)
    status = _end(child, contained=limits.contained)
    used = spent() - before
    # Detect bytes written after the reply.
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        data += os.read(reading, 1)
    os.close(reading)
    if late:
        return limits.late
    if not data or used > limits.seconds + SLACK_SECONDS:
        return {"error": _broken(status, used, limits)}
    if len(data) >= HEAD.size:
        number, length = HEAD.unpack_from(data)
        if number == secret and length == len(data) - HEAD.size:
            with contextlib.suppress(FrameError):
                return _told(reply_in(data[HEAD.size :], kinds))
    return {"error": NO_VERDICT}


def _told(reply: Reply) -> Reply:
    """Return a child's reply, but only the type of an error: its text could contain what the child has read."""
    if not isinstance(reply, dict) or "error" not in reply:
        return reply
    said = _TYPE.match(reply["error"])
    return {"error": said[0] if said and said["name"] in _types() else "error: Exception"}


@cache
def _types() -> frozenset[str]:
    """Return the names of the types in this process, which executes no response: a child cannot make one up."""
    found: set[type] = set()
    waiting: list[type] = [object]
    while waiting:
        more: set[type] = set(type.__subclasses__(waiting.pop())) - found
        found |= more
        waiting += more
    return frozenset(each.__name__ for each in found)


def _forked(secret: bytes) -> tuple[int, int, int, int]:
    """Fork; return the child (0 in the child), both ends of a pipe from it, and the end of a pipe with the secret."""
    # If one of these fails, the worker ends, and the open ends with it.
    reading, writing = _patiently(os.pipe)
    key, telling = _patiently(os.pipe)
    os.write(telling, secret)
    os.close(telling)
    return _patiently(os.fork), reading, writing, key


def _run(work: Callable[[], bytes], writing: int, key: int, limits: Limits) -> NoReturn:
    # Bound before anything is executed, since a response may replace what modules and builtins hold.
    read, write, leave, head, length = os.read, os.write, os._exit, HEAD.pack, len
    try:
        confine(limits, keep=(writing, key))
        line = work()
        write(writing, head(read(key, 16), length(line)) + line)
    finally:
        leave(0)


def _read(reading: int, child: int, most: int, seconds: float) -> tuple[bytes, bool]:
    """Read a reply until it is complete, the child ends, or the time is up; return it and whether the time was up."""
    data, end, watched = b"", time.monotonic() + seconds, [reading]
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(AttributeError, OSError):
            # Processes that the child has started may keep its pipe open.
            watched.append(os.pidfd_open(child))
            opened.callback(os.close, watched[-1])
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return data, True
            ready = select.select(watched, [], [], min(left, REAP_SECONDS))[0]
            if not ready:
                _reap(child)
                continue
            if reading not in ready:
                return data, False
            part = os.read(reading, most + 1 - len(data))
            data += part
            if not part or len(data) > most:
                return data, False
            if len(data) >= HEAD.size and len(data) >= HEAD.size + HEAD.unpack_from(data)[1]:
                return data, False


def _end(child: int, *, contained: bool) -> int:
    """Kill and reap a child and all its descendants, whose time and memory count for this response.

    Returns the child's status.
    """
    if contained:
        # All processes in the namespace except for its first one and this one.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    # Without a namespace only processes of its group have been killed.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1 if contained else -child, 0)
    return status


def _broken(status: int, used: float, limits: Limits) -> str:
    """Return how a child ended that gave no reply, or that took too long with its descendants."""
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGPROF, -signal.SIGXCPU) or used >= limits.seconds:
        return f"deadline: more than {limits.seconds:g} s of processor time"
    why = ": too many processes, or too much memory together" if code == -signal.SIGKILL else ""
    return f"the verifier's process ended ({ended(code)}{why})"


def ended(code: int) -> str:
    """Return how a process ended, from its exit code (negative for a signal)."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
