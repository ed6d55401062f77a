"""``run``: follow a command by the log of its trainer, and end it before it goes over its budget."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from ..checks import finite
from ..contract.errors import printable
from ..errors import BudgetError
from ..follow import AT_BUDGET, Charging, Command, Outcome, follow
from ..ledger.ledger import History
from ..ledger.limits import LIMITS, Limits
from ..trainers.live import LiveLog
from ..trainers.registry import trainer
from .show import budget_lines
from .text import add_log_arguments, configuration_of, number, whole

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
    parser = commands.add_parser(
        "run", help="end a command that trains at its budget, by its log", description=DESCRIPTION
    )
    parser.add_argument("--ledger", required=True, type=Path, metavar="FILE", help="made if it is not there")
    said = "where the trainer's logger writes (also a file, mlflow:EXPERIMENT or a tracking URI); it need not exist yet"
    parser.add_argument("--log", required=True, metavar="FOLDER", help=said)
    limits = parser.add_argument_group("limits, at least one")
    limits.add_argument("--rollouts", type=whole, metavar="C", help="at most so many are generated for training")
    limits.add_argument("--response-tokens", type=whole, metavar="T", help="the step that reaches it is the last")
    limits.add_argument("--device-hours", type=number, metavar="H", help="wall time times --devices")
    limits.add_argument("--money", type=number, metavar="SUM", help="needs --price-per-device-hour")
    limits.add_argument("--price-per-device-hour", type=number, metavar="PRICE", help="in the same currency")
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
    """Follow the command, and sum up."""
    limits = Limits.given(**{name: getattr(arguments, name) for name in LIMITS})
    given = dict(arguments.constants)
    known = None if arguments.trainer is None else trainer(arguments.trainer)
    charging = Charging(
        LiveLog(arguments.log, known, step_column=given.get("step_column")),
        arguments.ledger,
        run_id=arguments.run_id,
        limits=limits,
        shared=configuration_of(arguments),
        given=given,
        devices=arguments.devices,
        say=_say,
    )
    if shutil.which(arguments.command[0]) is None:
        raise BudgetError(f"{arguments.command[0]}: there is no such command")
    grace, name = finite(arguments.grace, "--grace", zero=True), f"SIG{arguments.signal.removeprefix('SIG')}"
    if name not in signal.Signals.__members__:
        raise BudgetError(f"--signal is {arguments.signal}; it must be a signal's name, such as SIGINT or SIGUSR1")
    command = Command(arguments.command, first=signal.Signals[name], grace=grace)
    outcome = follow(command, charging, silence=finite(arguments.silence, "--silence"), say=_say)
    arguments.exit_status = outcome.exit_status
    yield f"{arguments.ledger}: {_ended(outcome, charging.last)}"
    yield from budget_lines(History.read(arguments.ledger))


def _ended(outcome: Outcome, last: int | None) -> str:
    after = "before anything was logged" if last is None else f"after step {last:,}"
    how = f"status {outcome.status}" if outcome.status >= 0 else signal.Signals(-outcome.status).name
    if not outcome.reason:
        return f"the command ended by itself {after}, with {how}"
    sent = ", then ".join(outcome.sent)
    return f"ended at its budget {after} ({sent}; the command ended with {how}): {outcome.reason}"


def _say(text: str) -> None:
    """Say something while the command runs, apart from what the command prints."""
    print(f"isocompute-budget: {printable(text)}", file=sys.stderr, flush=True)
