"""Follow a command by its log, and end it in an orderly way before it goes over its budget."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BudgetError
from .charging import Charging
from .command import Command, passing_on, require_groups

AT_BUDGET = 3
"""Exit status where the command was ended at its budget."""
SHORTEST, LONGEST, SHARE = 0.2, 5.0, 5
"""Seconds between two looks at the log: at least and at most so many, and so many times what the last look took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended.

    Attributes:
        status: Its exit status, the negative number of the signal that ended it.
        reason: Why it was ended at its budget; empty where it ended by itself.
        sent: Names of the signals that it was sent to end it.
    """

    status: int
    reason: str = ""
    sent: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """As a shell would have it: 128 plus a signal's number, and ``AT_BUDGET`` at the budget."""
        if self.reason:
            return AT_BUDGET
        return self.status if self.status >= 0 else 128 - self.status


class Ending:
    """The orderly end of a command: a signal, and where that is not enough SIGTERM and then SIGKILL.

    Attributes:
        sent: Names of the signals sent so far.
    """

    def __init__(self, command: Command, first: signal.Signals, grace: float) -> None:
        rest = [number for number in (signal.SIGTERM, signal.SIGKILL) if number is not first]
        self.sent: list[str] = []
        self._command, self._left, self._grace = command, [first, *rest], grace
        self._next = 0.0

    def go_on(self) -> None:
        """Send the next signal when its time has come."""
        if self._left and time.monotonic() >= self._next:
            number = self._left.pop(0)
            self.sent.append(number.name)
            self._next = time.monotonic() + self._grace
            self._command.send(number)


def follow(
    command: Command,
    charging: Charging,
    *,
    first: signal.Signals = signal.SIGINT,
    grace: float = 60.0,
    silence: float = 600.0,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run a command until it ends or its next step does not fit.

    Args:
        first: Signal that asks the command to end.
        grace: Seconds that it has to do so before SIGTERM, and then again before SIGKILL.
        silence: Seconds without a new entry in the log after which a warning is said.

    Raises:
        BudgetError: Nothing was started, since nothing could be counted or no step fits; or the command was ended,
            since its log cannot be counted or its ledger not written.
    """
    require_groups()
    with passing_on(command):
        try:
            charging.begin()
            charging.start_clock()
            command.start()
            ending = Ending(command, first, grace)
            try:
                outcome = _watch(command, charging, ending, silence, say)
            except BaseException:
                # Nobody would hold it to its budget any more.
                while command.wait(SHORTEST) is None:
                    ending.go_on()
                raise
            finally:
                _end_rest(command, ending if ending.sent else Ending(command, signal.SIGTERM, grace))
            charging.look(ended=True)
            return outcome
        finally:
            charging.close()


def _watch(command: Command, charging: Charging, ending: Ending, silence: float, say: Callable[[str], None]) -> Outcome:
    reason, problem, lagged = "", None, False
    status, heard, interval = None, time.monotonic(), SHORTEST
    while (status := command.wait(interval)) is None:
        began = time.monotonic()
        if problem is None:
            try:
                if charging.look():
                    heard = time.monotonic()
            except BudgetError as error:
                problem = error
                say(f"the command is ended, since what it generates cannot be counted: {error}")
        if not lagged and charging.interval > 1:
            lagged = True
            say(
                f"the log has an entry every {charging.interval} steps, so that the command may generate for as many "
                "after the last one that fits: log every step"
            )
        if not reason and problem is None and (reason := charging.refusal()):
            say(f"the command is ended: {reason}")
        if reason or problem is not None:
            ending.go_on()
        elif time.monotonic() - heard > silence:
            heard = time.monotonic()
            say(f"nothing new was logged for {silence:g} seconds, and nothing is counted: {charging.standstill()}")
        interval = min(max(SHORTEST, SHARE * (time.monotonic() - began)), SHORTEST if ending.sent else LONGEST)
    if problem is not None:
        raise problem
    return Outcome(status=status, reason=reason, sent=tuple(ending.sent))


def _end_rest(command: Command, ending: Ending) -> None:
    """End what the command left running: nothing would count what it goes on to generate."""
    while command.runs():
        ending.go_on()
        if ending.sent[-1] == signal.SIGKILL.name:
            return
        time.sleep(SHORTEST)
