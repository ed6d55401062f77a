"""The console script ``isocompute-budget``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NoReturn

from .commands import (
    allocate,
    audit,
    convert,
    cost,
    doctor,
    export,
    ingest,
    plan,
    read,
    repair,
    rollouts,
    run,
    show,
    waste,
)
from .contract.errors import IsoComputeError
from .wording import printable, reason

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

PACKAGE = "isocompute-budget"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-budget``.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        0; 1 where a command was asked to judge and did not approve (``read --strict``); 2 after an error, which is
        printed to stderr; 128 plus its number after a signal that ended the command; after ``run``, that of the
        command that was run, or 3 where it was ended at its budget.
    """
    arguments = _parser().parse_args(argv)
    try:
        with _signals_raise_exit():
            lines = [printable(line) for line in arguments.run(arguments)]
    except (IsoComputeError, OSError) as error:
        return _report_error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    try:
        print(_escape_unencodable("\n".join(lines), sys.stdout), flush=True)
    except OSError as error:
        # Keep the interpreter from complaining on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that goes away (head, less) has seen enough.
        return (
            0
            if isinstance(error, BrokenPipeError)
            else _report_error(f"the output cannot be written ({reason(error)})")
        )
    return int(getattr(arguments, "exit_status", 0))


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, as the commands do."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_report_error(f"{message} (see {self.prog} --help)"))

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(_escape_unencodable(message, file or sys.stderr), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PACKAGE,
        description="Plan a rollout budget for RL training, write it as the settings of common trainers, and account "
        "for what was generated.",
    )
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    known = (plan, allocate, cost, convert, read, run, doctor, ingest, audit, show, export, repair, rollouts, waste)
    for command in known:
        command.add(commands)
    return parser


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of a source tree that is not installed"


def _report_error(message: str) -> int:
    print(_escape_unencodable(f"error: {printable(message)}", sys.stderr), file=sys.stderr)
    return 2


def _escape_unencodable(text: str, stream: object) -> str:
    """Text in which characters that a stream cannot encode (in a locale without Unicode) are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def _signals_raise_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that no unfinished file is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_exit(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    # A signal that is ignored (nohup) or handled by the caller stays so.
    left = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in left:
        signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number in left:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
