"""``run``: run a command, follow its trainer's log, and end the command in an orderly way before it exceeds its budget.

``follow`` runs a ``Command`` in its own session. ``Charging`` reads from the log (``LiveLog``) what was generated, and
charges it to a ledger.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..contract.errors import printable
from ..errors import BudgetError, finite, reason
from ..ledger.counts import Counts
from ..ledger.ledger import MOST_SHARES, History, Ledger
from ..ledger.limits import LIMITS, Limits
from ..ledger.meter import Hook
from ..ledger.store import Lock
from ..trainers.counting import StepCounts
from ..trainers.doctor import foreseen, joined, lacking, progress_of, reader_of, settings_of
from ..trainers.live import LiveLog
from ..trainers.logs.log import Log
from ..trainers.settings import configuration
from ..trainers.trainer import LogReader
from .show import budget_lines
from .text import add_log_arguments, live_log, number, whole

AT_BUDGET = 3
"""Exit status if the command was ended at its budget."""
SHORTEST, LONGEST, SHARE = 0.2, 5.0, 5
"""Seconds between looks at the log, least and most, and the wait as a multiple of the last look's duration."""


def follow(command: Command, charging: Charging, *, silence: float) -> tuple[int, str]:
    """Run a command until it ends or its next step does not fit the budget.

    Args:
        silence: Warn after this many seconds without a new log entry.

    Returns:
        The command's exit status, or minus the number of the signal that ended it; and why it was ended at its budget,
        or an empty text.

    Raises:
        BudgetError: Nothing was started, because nothing could be counted or no step fits. Or the command was ended,
            because its log cannot be counted or its ledger cannot be written.
    """
    if sys.platform == "win32":
        raise BudgetError("a command is followed on Linux and macOS only, since Windows has no process groups")
    with passing_on(command):
        try:
            charging.begin()
            charging.start_clock()
            command.start()
            try:
                outcome = _watch(command, charging, silence)
            except BaseException:
                # Otherwise nobody would hold the command to its budget.
                while command.wait(SHORTEST) is None:
                    command.end()
                raise
            finally:
                command.end_rest()
            charging.look(ended=True)
            return outcome
        finally:
            charging.close()


def _watch(command: Command, charging: Charging, silence: float) -> tuple[int, str]:
    reason, problem, lagged = "", None, False
    heard, interval = time.monotonic(), SHORTEST
    while (status := command.wait(interval)) is None:
        began = time.monotonic()
        if problem is None:
            try:
                if charging.look():
                    heard = time.monotonic()
            except BudgetError as error:
                problem = error
                _say(f"the command is ended, since what it generates cannot be counted: {error}")
        if not lagged and charging.interval > 1:
            lagged = True
            _say(
                f"the log has an entry every {charging.interval} steps, so that the command may generate for as many "
                "after the last one that fits: log every step"
            )
        if not reason and problem is None and (reason := charging.refusal()):
            _say(f"the command is ended: {reason}")
        if reason or problem is not None:
            command.end()
        elif time.monotonic() - heard > silence:
            heard = time.monotonic()
            _say(f"nothing new was logged for {silence:g} seconds, and nothing is counted: {charging.standstill()}")
        interval = min(max(SHORTEST, SHARE * (time.monotonic() - began)), SHORTEST if command.sent else LONGEST)
    if problem is not None:
        raise problem
    return status, reason


PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals passed on to the command instead of ending the process that watches it."""


class Command:
    """A command, the processes of its group, and their orderly end by signals; ``sent`` holds the names of those sent.

    The signals are ``first``, SIGTERM after ``grace`` seconds, and SIGKILL after another ``grace`` seconds.
    """

    def __init__(self, words: Sequence[str], *, first: signal.Signals, grace: float) -> None:
        self.words, self.sent = list(words), list[str]()
        self._left = list(dict.fromkeys((first, signal.SIGTERM, signal.SIGKILL)))
        self._grace, self._next = grace, 0.0
        self._process: subprocess.Popen[bytes]
        self._group = 0

    def start(self) -> None:
        """Start the command with this process's input, output and environment."""
        try:
            self._process = subprocess.Popen(self.words, start_new_session=True)
        except (OSError, ValueError) as error:
            raise BudgetError(f"{self.words[0]}: cannot be started ({reason(error)})") from None
        self._group = self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Wait for the first process; return its exit status, minus a signal's number, or None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Send the next signal once its time has come."""
        if self._left and time.monotonic() >= self._next:
            number = self._left.pop(0)
            self.sent.append(number.name)
            self._next = time.monotonic() + self._grace
            self.send(number)

    def end_rest(self) -> None:
        """End what the command left running, since nothing would count what it goes on to generate."""
        if not self.sent:
            self._left = [signal.SIGTERM, signal.SIGKILL]
        while self.runs():
            self.end()
            if self.sent[-1] == signal.SIGKILL.name:
                return
            time.sleep(SHORTEST)

    def send(self, number: int) -> bool:
        """Send a signal to every remaining process of the group; return whether the command was started."""
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)
        return bool(self._group)

    def runs(self) -> bool:
        """Return whether a process of the group remains, once the first one has been waited for."""
        try:
            os.killpg(self._group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        # Without a process that reaps orphans, as in many containers, they stay as zombies.
        return not Path("/proc/self/stat").exists() or _living(self._group)


@contextmanager
def passing_on(command: Command) -> Iterator[None]:
    """Pass signals to this process on to the command; those that this process ignores stay ignored (nohup).

    A signal that arrives before the command is started ends this process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: object) -> None:
        if not command.send(number):
            raise SystemExit(128 + number)

    before = {}
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _living(group: int) -> bool:
    """Return whether a process group has a member that is not a zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            # The process's name, in brackets, may hold anything.
            state, _, of_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


LONGEST_CHARGED = 60.0
"""Longest that device time stays uncharged, in seconds."""


class Charging(Hook):
    """Charges a ledger with what a command generated, as its log reports it.

    Only the first log entry shows after which step a command resumed, so the attempt begins in the ledger then.

    Attributes:
        last: Last step charged, or None before the log shows after which step the command resumed.
        interval: Steps between log entries, by the trainer's own count; 1 before two are charged.
    """

    def __init__(
        self,
        live: LiveLog,
        path: Path,
        *,
        run_id: str | None,
        limits: Limits,
        shared: Mapping[str, Any],
        given: Mapping[str, str],
        devices: int,
    ) -> None:
        super().__init__(path, limits, run_id=run_id, devices=devices)
        self.last: int | None = None
        self.interval = 1
        self._live, self._shared, self._given = live, shared, given
        self._lock: Lock | None = None
        self._history = History.read(path) if path.exists() else History(where=str(path))
        self._new = not (self._history.last_step or self._history.device_seconds or self._history.totals().paid)
        self._before: dict[str, Log] = {}
        self._following = 1
        self._done = False
        self._starts: object = None

    def begin(self) -> None:
        """Before the command starts, check that it can be counted and that its next step may fit."""
        seen = self._live.look()
        # In the folder of a run that has not begun, a file need not be a log.
        if seen.problem and not seen.logs and (not self._new or Path(self._live.source).is_file()):
            raise BudgetError(seen.problem)
        self._before = {log.name: log for log in seen.logs}
        if self._live.trainer is not None:
            # The batch, as far as it is known before anything is logged.
            settings = settings_of(Log(name="the settings", rows=[]), self._shared, self._given)
            self._following = self._live.trainer.parse(settings).batch_rollouts or 1
            missing = foreseen(self._live.trainer, self._live.source, self._shared, self._given)
            if missing and not seen.logs:
                _say(f"{lacking(self._live.source, missing)}, or the command is ended if its log lacks them, too")
        progressed = self._progress(seen.logs[0]) if not self._new and len(seen.logs) == 1 else None
        if progressed is not None:
            self._following = progressed.following or self._following
        # The step to resume from is not known yet, so neither is how much of the work so far is used.
        refused = self.refusal() if self.limits.counted == "paid" or self._new else ""
        if refused:
            raise BudgetError(f"{self.path}: not even the next step fits, so nothing is started: {refused}")
        if self._new:
            self.open(0)
            return
        if progressed is not None and progressed.points and progressed.points[-1].step > self._history.last_step:
            self._catch_up(progressed)
        self._lock = Lock(self.path)

    def look(self, *, ended: bool = False) -> bool:
        """Charge what the log shows by now, or all of it if the command has ended; return whether anything was new."""
        if self._ledger is not None and self._seconds() > LONGEST_CHARGED * self.devices:
            self._charge_time()
        seen = self._live.look()
        settled = seen.settled or ended
        if seen.settled and self._done:
            return False
        self._done = settled
        ours = [log for log in seen.logs if _mark(log) != _mark(self._before.get(log.name))]
        if len(ours) > 1 and settled:
            names = f"{ours[0].name} and {ours[1].name}"
            raise BudgetError(f"{self._live.source}: two runs were logged since the command began, {names}")
        if len(ours) != 1:
            return False
        log = self._with_beginning(ours[0])
        first, starts = self._first_new(log), (log.restarts, log.notes)
        if self.last is not None and log.restarts and self._starts != starts:
            # The command restarted its trainer.
            first = log.restarts[-1]
        if not seen.settled and ended:
            # It may have been killed while logging.
            with suppress(BudgetError):
                return self._charge_new(log, first, starts)
        return self._charge_new(log if seen.settled else self._without_last(log), first, starts)

    def refusal(self) -> str:
        """Why the next step may not be taken; empty if it may."""
        after = self.last if self.last is not None else self._history.last_step
        return self.standing.admission(after + 1, self._following).reason

    def close(self) -> None:
        """Charge the remaining time, and close the ledger."""
        if self._lock is not None and self._clock is not None:
            self.open("last")
        self._unlock()
        try:
            if self._ledger is not None:
                self._charge_time()
        finally:
            super().close()

    def standstill(self) -> str:
        """Why nothing is being charged, in words."""
        none = self._live.problem or f"{self._live.source} holds no entry of a trainer that is known"
        return none if self.last is None else f"the last entry is of step {self.last:,}"

    def _charge_new(self, log: Log, first: int, starts: object) -> bool:
        """Charge what was logged from a step on; ``starts`` is what changes when the trainer is restarted."""
        if not log.rows:
            return False
        progressed = self._progress(log)
        if not any(point.logged >= first for point in progressed.points):
            return False
        resumed = max((point.step for point in progressed.points if point.logged < first), default=0)
        if self.last is None:
            if self._new and resumed and log.name in self._before:
                raise BudgetError(f"{self.path}: {log.name} goes on after step {resumed}: give the ledger of that run")
            self.last = resumed
            if self._ledger is None:
                self.open(self.last)
        elif starts != self._starts and resumed < self.last:
            self.close()
            self.last = resumed
            self.open(resumed)
        self._starts = starts
        self._following = progressed.following or 0
        return self._charge(progressed)

    def _charge(self, progressed: StepCounts) -> bool:
        """Charge the steps after those already charged; return whether there were any."""
        before, logged = self.last or 0, 0
        for point in progressed.points:
            if point.step <= before:
                logged = point.logged
                continue
            used = self.ledger.used
            # A log may later make it more certain how little was generated before.
            new = Counts(
                rollouts=max(point.rollouts - used.rollouts, 0),
                response_tokens=max(point.tokens - used.response_tokens, 0),
            )
            steps = point.step - before
            shares = (1,) * steps if steps <= MOST_SHARES else (1,)
            first = before + 1 if steps <= MOST_SHARES else point.step
            self.charge(first, {"trained": new}, shares=shares)
            self.interval, logged, before = point.logged - logged, point.logged, point.step
        charged, self.last = before != (self.last or 0), before
        return charged

    def _catch_up(self, progressed: StepCounts) -> None:
        """Charge what the log holds and no charge covers."""
        self.last = self._history.last_step
        self.open("last")
        self._charge(progressed)
        _say(
            f"{self.path}: steps {self._history.last_step + 1} to {self.last} are in the log and in no charge, as when "
            "the command went on after the one that followed it was killed; they are charged now"
        )
        self.close()
        self.last, self._history = None, History.read(self.path)

    def open(self, resumed_from: int | Literal["last"]) -> Ledger:
        """Begin an attempt after a step, replacing the lock that kept other writers out until the step was known."""
        self._unlock()
        return super().open(resumed_from)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _with_beginning(self, log: Log) -> Log:
        """The log with the beginning of its run added, if an earlier attempt logged it to another or older file."""
        old = self._before.get(log.name) or (next(iter(self._before.values())) if len(self._before) == 1 else None)
        if self._new or old is None or not old.rows or not log.rows or log.rows[0][0] <= old.rows[0][0]:
            return log
        return joined(old, log, self._reader())

    def _without_last(self, log: Log) -> Log:
        """The log without its last entry, which may be incomplete."""
        needed = self._reader().layout.needed
        last = max((step for step, metrics in log.rows if any(map(needed.match, metrics))), default=0)
        rows = [(step, metrics) for step, metrics in log.rows if step < last]
        return replace(log, rows=rows, restarts=tuple(step for step in log.restarts if step < last))

    def _first_new(self, log: Log) -> int:
        """First step that this command logged."""
        old = self._before.get(log.name)
        if old is None:
            return 0
        if log.restarts and (log.restarts, log.notes) != (old.restarts, old.notes):
            return log.restarts[-1]
        return max((step for step, _ in old.rows), default=-1) + 1

    def _reader(self) -> LogReader:
        if self._live.trainer is None:
            raise BudgetError(f"{self._live.source}: no trainer is known that wrote it; say which with --trainer")
        return reader_of(self._live.trainer)

    def _progress(self, log: Log) -> StepCounts:
        self._reader()
        return progress_of(self._live.trainer, log, self._shared, self._given)[0]  # type: ignore[arg-type]

    def _charge_time(self) -> None:
        self.charge(self.last or self.ledger.last_step, {})


def _mark(log: Log | None) -> tuple[object, ...]:
    """Return a value that changes when more of a run is logged."""
    return () if log is None else (len(log.rows), log.rows[-1:] and log.rows[-1][0], log.restarts, log.notes)


DESCRIPTION = f"""
Start a command that trains, follow the log that its trainer's logger writes, charge what each logged step generated to
a ledger, and end the command before the step that would exceed a limit: --signal to its process group, after --grace
seconds SIGTERM, and after as many again SIGKILL. The exit status is the command's, {AT_BUDGET} where it was ended at
its budget, and 2 after an error. Started again with the same ledger, the run goes on: after which step, its log says.
What it cannot do: a log lags behind what is generated. The step after the last entry is under way when the entry is
read, and what it had generated when it was ended is in no log; with an entry every k steps, up to k steps may be taken
beyond the budget. Evaluations and prompt tokens are not counted, and device time is the command's wall time times
--devices. A process that leaves the command's process group is not ended.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    said = "end a command that trains at its budget, by its log"
    example = "example: isocompute-budget run --ledger ledger.sqlite --log out --rollouts 64k -- python train.py"
    parser = commands.add_parser("run", help=said, description=DESCRIPTION, epilog=example)
    parser.add_argument(
        "--ledger", required=True, type=Path, metavar="FILE", help="the ledger, made if it is not there"
    )
    said = "where the trainer's logger writes (also a file, mlflow:EXPERIMENT or a tracking URI); it need not exist yet"
    parser.add_argument("--log", required=True, metavar="FOLDER", help=said)
    limits = parser.add_argument_group("limits, at least one")
    limits.add_argument("--rollouts", type=whole, metavar="C", help="most rollouts generated for training")
    limits.add_argument(
        "--response-tokens", type=whole, metavar="T", help="most tokens; the step that reaches it is the last"
    )
    limits.add_argument("--device-hours", type=number, metavar="H", help="most hours: wall time times --devices")
    limits.add_argument("--money", type=number, metavar="SUM", help="most money; needs --price-per-device-hour")
    limits.add_argument(
        "--price-per-device-hour", type=number, metavar="PRICE", help="of a device-hour, in the same currency"
    )
    said = "whether rollouts and tokens of lost work count too (default: %(default)s)"
    limits.add_argument("--counted", choices=["paid", "used"], default="paid", help=said)
    log = parser.add_argument_group("the log")
    add_log_arguments(log)
    said = "warn when nothing was logged for so long (default: %(default)s)"
    log.add_argument("--silence", type=number, default=600, metavar="SECONDS", help=said)
    end = parser.add_argument_group("the command")
    end.add_argument("--devices", type=whole, default=1, metavar="N", help="devices that it holds (default: 1)")
    end.add_argument("--run-id", metavar="ID", help="the run (default: the ledger's, or folder/name of a new one)")
    end.add_argument("--signal", default="SIGINT", metavar="NAME", help="what asks it to end (default: %(default)s)")
    said = "how long it has to end (default: %(default)s)"
    end.add_argument("--grace", type=number, default=60, metavar="SECONDS", help=said)
    end.add_argument("command", nargs="+", metavar="COMMAND", help="after --: what to start, with its arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Follow the command, and print a summary."""
    charging = Charging(
        live_log(arguments.log, arguments),
        arguments.ledger,
        run_id=arguments.run_id,
        limits=Limits.given(**{name: getattr(arguments, name) for name in LIMITS}),
        shared=configuration(arguments.config),
        given=dict(arguments.constants),
        devices=arguments.devices,
    )
    if shutil.which(arguments.command[0]) is None:
        raise BudgetError(f"{arguments.command[0]}: there is no such command")
    grace, name = finite(arguments.grace, "--grace", zero=True), f"SIG{arguments.signal.removeprefix('SIG')}"
    if name not in signal.Signals.__members__:
        raise BudgetError(f"--signal is {arguments.signal}; it must be the name of a signal, such as SIGINT")
    command = Command(arguments.command, first=signal.Signals[name], grace=grace)
    status, why = follow(command, charging, silence=finite(arguments.silence, "--silence"))
    # Like a shell: 128 plus a signal's number.
    arguments.exit_status = AT_BUDGET if why else status if status >= 0 else 128 - status
    after = "before anything was logged" if charging.last is None else f"after step {charging.last:,}"
    how = f"status {status}" if status >= 0 else signal.Signals(-status).name
    sent = ", then ".join(command.sent)
    said = f"ended at its budget {after} ({sent}; the command ended with {how}): {why}"
    yield f"{arguments.ledger}: {said if why else f'the command ended by itself {after}, with {how}'}"
    yield from budget_lines(History.read(arguments.ledger))


def _say(text: str) -> None:
    """Print a message while the command runs, apart from the command's own output."""
    print(f"isocompute-budget: {printable(text)}", file=sys.stderr, flush=True)
