"""A package's console script: its commands, what they print, and how they end."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .errors import IsoComputeError, printable
from .files import reason_of


def run(
    argv: Sequence[str] | None,
    *,
    package: str,
    description: str,
    commands: Sequence[ModuleType],
    around: AbstractContextManager[object] | None = None,
    at_once: bool = False,
) -> int:
    """Run a console script: results go to stdout; an error that a user can act on goes to stderr as one line.

    Args:
        package: Name of the script and of its distribution.
        commands: Modules whose ``add`` adds a parser; the parser's default ``run`` takes the arguments and yields lines
            to print.
        around: Context in which the command runs.
        at_once: Whether to print only after the command has succeeded, instead of line by line.

    Returns:
        0, or the ``exit_status`` that a command sets in its arguments; 2 after an error; 128 plus its number after a
        signal that ended the command.
    """
    arguments = parser_of(package, description, commands).parse_args(argv)
    try:
        with around or nullcontext(), _signals_raise_exit():
            lines = arguments.run(arguments)
            for line in list(lines) if at_once else lines:
                _write(line)
    except _UnwritableError as error:
        # Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that closes the pipe (head, less) has seen enough.
        return 0 if error.reader_left else _report_error(str(error))
    except (IsoComputeError, OSError) as error:
        return _report_error(str(error))
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            # A command's own message, such as where it continues.
            print(str(interrupt), file=sys.stderr)
        return 128 + signal.SIGINT
    return int(getattr(arguments, "exit_status", 0))


class _UnwritableError(Exception):
    """Standard output cannot be written to."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"the output cannot be written ({printable(reason_of(cause))})")
        self.reader_left = isinstance(cause, BrokenPipeError)


AMOUNTS = {"K": 3, "M": 6, "B": 9, "T": 12}
"""Suffixes of amounts, with their powers of ten."""


THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
"""A comma between thousands."""


def new_file(text: str) -> Path:
    """A file to write, in an existing folder; checked before anything that takes minutes.

    Raises:
        argparse.ArgumentTypeError: Its folder does not exist, or the path is a folder.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"{wrong}: name a file in a folder that is there")
    return path


def amount(text: str) -> Decimal:
    """An amount as people write it: 50000, 24_576, 2,000,000, 2e6, 250k, 1M or 1.5B.

    Raises:
        argparse.ArgumentTypeError: It is not an amount.
    """
    digits, power = THOUSANDS.sub("", text.strip()), AMOUNTS.get(text.strip()[-1:].upper(), 0)
    try:
        value = Decimal(digits[:-1] if power else digits)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite():
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an amount such as 50000, 2e6, 250k, 1M or 1.5B")
    # Exact, even if a library has changed the process's decimal context.
    sign, figures, exponent = value.as_tuple()
    return Decimal((sign, figures, int(exponent) + power))


EXAMPLE = "example: "
"""Marks an epilog line as a command, which is neither wrapped nor joined to the next line."""


class _Formatter(argparse.HelpFormatter):
    """Fills text, but keeps examples unchanged, so that they can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = [part for part in re.split(rf"^({EXAMPLE}.*)$", text, flags=re.MULTILINE) if part.strip()]
        return "\n".join(part if part.startswith(EXAMPLE) else fill(part, width, indent) for part in parts)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, like the commands, and suggests what may have been meant."""

    def __init__(self, **given: Any) -> None:
        # Another command's option must not be taken for one that begins like it.
        super().__init__(**{"formatter_class": _Formatter, "allow_abbrev": False, **given})
        # Treat -2M and -1e6 as negative amounts, not options, like -2.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unknown arguments here, where the command's options are known."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # In a locale without Unicode, characters that cannot be encoded are escaped.
                stream.reconfigure(errors="backslashreplace")
        self._words = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        # Missing arguments are noticed before unknown ones, which may be misspellings of them.
        if "required" in message and (unknown := self._unknown_options()):
            message += f"; unrecognized arguments: {' '.join(unknown)}"
        raise SystemExit(_report_error(f"{message}{self._meant(message)} (see {self.prog} --help)"))

    @property
    def _options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def _unknown_options(self) -> list[str]:
        """The given long options that are not a prefix of any known one."""
        own = self._words[: self._words.index("--")] if "--" in self._words else self._words
        given = [word.partition("=")[0] for word in own if word.startswith("--")]
        return [name for name in given if not any(option.startswith(name) for option in self._options)]

    def _meant(self, message: str) -> str:
        """The command, choice or options closest to the unknown ones."""
        if listed := message.partition("unrecognized arguments: ")[2]:
            unknown, known = re.findall(r"--[\w-]+", listed), self._options
        elif choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            unknown, known = [choice[1]], re.findall(r"[\w.@-]+", choice[2])
        else:
            return ""
        near = dict.fromkeys(found for name in unknown for found in get_close_matches(name, known, n=1))
        return f": did you mean {' and '.join(near)}?" if near else ""


class _PrintCompletion(argparse.Action):
    """Print a shell completion script."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, option: str | None = None) -> NoReturn:
        try:
            shtab = import_module("shtab")
        except ImportError:
            parser.error(f"{option} needs shtab: python3 -m pip install shtab")
        for each in _with_commands(parser):
            for action in each._actions:
                if action.nargs != 0 and action.choices is None:
                    # Most values are files.
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, shell=shell))
        parser.exit()


def _with_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser, and the parsers of its commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(command for group in groups for command in group.choices.values())]


def parser_of(package: str, description: str, commands: Sequence[ModuleType]) -> argparse.ArgumentParser:
    """The parser of a console script; arguments as in ``run``."""
    parser = Parser(prog=package, description=description)
    parser.add_argument("--version", action="version", version=f"{package} {_version(package)}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help=f'print completion for a shell; in bash: eval "$({package} --print-completion bash)"',
    )
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for command in commands:
        command.add(subparsers)
    return parser


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of a source tree that is not installed"


def _write(line: str) -> None:
    try:
        print(printable(line.rstrip()), flush=True)
    except OSError as error:
        raise _UnwritableError(error) from error


def _report_error(message: str) -> int:
    print(f"error: {printable(message)}", file=sys.stderr)
    return 2


@contextmanager
def _signals_raise_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that no unfinished file is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_exit(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    # A signal that is ignored (nohup) or handled by the caller stays that way.
    left = [
        getattr(signal, name)
        for name in ("SIGTERM", "SIGHUP")
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL
    ]
    for number in left:
        signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number in left:
            signal.signal(number, signal.SIG_DFL)
