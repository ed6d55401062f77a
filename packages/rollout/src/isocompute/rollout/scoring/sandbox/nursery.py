"""The process that loads a library once and forks workers from it, one after another."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
from typing import Any

from ...errors import RolloutError
from ..judges import Judge, load
from ..judges.programs import Apart
from . import bubblewrap, layers
from .child import FORK_SECONDS, NoProcessError, ended
from .worker import Worker, broken

AGAIN = os.EX_TEMPFAIL
"""Exit code of a worker that could start no process: the response that it was to score is to be scored again."""
NO_PROCESS = "no process can be started to score a response"


def nurse(settings: dict[str, Any], report: layers.Report) -> None:
    """Load the library of a lane, give up all rights, and keep one worker running.

    Args:
        report: The layers entered so far.
    """
    layers.die_with_parent()
    if os.getpid() != 1:
        # Whoever kills all processes that there are must be in a namespace.
        report = {**report, "processes": ""}
    given, replies = os.dup(0), os.dup(1)
    # What a library prints must not become a verdict.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    try:
        judge: Judge = load(settings["lane"], _apart(settings, report))
        settings = {**settings, "processes": layers.most_processes(report)}
        report = layers.restrict(report, settings["readable"], settings["without"], execute=settings["executes"])
        if settings["bubblewrap"]:
            report = bubblewrap.described(report)
    except RolloutError as error:
        _write(replies, {"fault": str(error)})
        return
    except Exception as error:
        _write(replies, {"fault": f"the sandbox that scores cannot be set up ({broken(error)})"})
        return
    # Until here it says why a sandbox does not start.
    os.dup2(nothing, 2)
    os.close(nothing)
    _write(replies, {"ready": report})
    # What is there by now stays shared with the workers.
    gc.collect()
    gc.freeze()
    contained = layers.contained(report)
    while True:
        worker = _forked()
        if worker == 0:
            layers.limit(settings["memory_bytes"], alone=layers.counted_alone(report))
            _work(Worker(judge, settings, report, given=given, replies=replies))
        if worker is None:
            _write(replies, {"died": NO_PROCESS, "again": True})
            return
        status = _waited(worker)
        if status == 0:
            return
        _clear(contained=contained)
        again = os.waitstatus_to_exitcode(status) == AGAIN
        _write(replies, {"died": NO_PROCESS if again else _why(status, settings["seconds"]), "again": again})


def _forked() -> int | None:
    """Fork, as soon as that is possible; return None where it is not for a while."""
    for _ in range(20):
        try:
            return os.fork()
        except OSError:
            time.sleep(FORK_SECONDS / 20)
    return None


def _apart(settings: dict[str, Any], report: layers.Report) -> Apart:
    """What keeps a program of ``runs`` apart from the process that starts it, besides this sandbox."""
    if not settings["bubblewrap"]:
        return Apart()
    if settings["root"] and not report["user"].startswith("uid "):
        raise RolloutError("bubblewrap would run programs as root, whose number of processes the kernel does not limit")
    return bubblewrap.apart(settings["bubblewrap"], settings["readable"])


def _work(worker: Worker) -> None:
    status = 1
    try:
        layers.die_with_parent()
        worker.work()
        status = 0
    except NoProcessError:
        status = AGAIN
    finally:
        os._exit(status)


def _waited(worker: int) -> int:
    """Reap whatever ends, orphans too, until the worker has; return its status."""
    while True:
        pid, status = os.wait()
        if pid == worker:
            return status


def _clear(*, contained: bool) -> None:
    """Kill and reap all that a worker left behind."""
    if contained:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0 if contained else os.WNOHANG) != (0, 0):
            pass


def _why(status: int, seconds: float) -> str:
    """What the end of a worker means."""
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
