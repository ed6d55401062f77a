"""Parsing of numbers, tables and files for the commands."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

from ..contract.command_line import amount
from ..contract.errors import printable
from ..contract.files import write_text
from ..errors import LARGEST, BudgetError, shorten
from ..trainers.live import LiveLog
from ..trainers.logs.log import Log
from ..trainers.registry import READERS, trainer


def whole(text: str) -> int:
    """A whole number, also written as 2e6, 24_576 or 1M."""
    value = amount(text)
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a whole number of at most {LARGEST}")
    # Check bounds before arithmetic: 1e999999999 is a number that no memory holds, and 1e-999999999 becomes 0.
    possible = value >= -LARGEST and (value == 0 or abs(value) >= Decimal("1e-20"))
    if not possible or value != int(value):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a whole number")
    return int(value)


def number(text: str) -> float:
    """A finite amount: 0.5, 1e-6 or 2k."""
    value = float(amount(text))
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a finite number")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, such as 4,16,64; the numbers themselves contain no comma."""
    parts = text.split(",")
    if any(re.match(r"0\d", part.strip()) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is a list with a comma between its numbers: leave out other commas")
    try:
        return tuple(map(whole, parts))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; several are a list such as 4,8,16") from None


def aligned_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    """The lines of a table: first column left-aligned, the others right-aligned, numbers with commas."""
    cells = [list(header)]
    cells += [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if number else printable(str(value))


def write_json(document: Any, path: Path) -> None:
    """Write a document atomically."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n", error=BudgetError)


def add_log_arguments(parser: argparse._ActionsContainer, *, of_runs: bool = False) -> None:
    """Add ``--trainer``, ``--config`` and ``--set``: who wrote a log, and what it, or one of several runs, lacks."""
    parser.add_argument("--trainer", choices=READERS, help="whose log it is (default: as its metrics say)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the run's configuration, where the log lacks it")
    kind, form = (assignment_of_run, "[RUN:]NAME=VALUE") if of_runs else (assignment, "NAME=VALUE")
    said = "what neither log nor configuration say: questions=300, or a setting by the trainer's own name"
    parser.add_argument("--set", dest="constants", action="append", default=[], type=kind, metavar=form, help=said)


def live_log(source: str, arguments: argparse.Namespace) -> LiveLog:
    """A log that may still be being written, read according to ``add_log_arguments``."""
    known = None if arguments.trainer is None else trainer(arguments.trainer)
    return LiveLog(source, known, step_column=dict(arguments.constants).get("step_column"))


def only_log(live: LiveLog) -> Log | None:
    """The one run in a source; None if it holds no run logged by a known trainer.

    Raises:
        BudgetError: The source holds several runs, or one that cannot be read.
    """
    logs = live.look().logs
    if len(logs) > 1:
        names = ", ".join(log.name for log in logs)
        raise BudgetError(f"{live.source}: holds {len(logs)} runs, of which one is read at a time: {names}")
    if not logs and (live.problem or not Path(live.source).is_file()):
        raise BudgetError(live.problem or f"{live.source}: no run of a trainer that is known is logged there")
    return logs[0] if logs else None


def assignment_of_run(text: str) -> tuple[str, str, str]:
    """The parts of ``RUN:NAME=VALUE``; the run is empty for ``NAME=VALUE``."""
    # A run's name may contain a colon or, like Hydra's folders, an equals sign.
    parts = re.fullmatch(r"(?s)(?:(?P<run>.+?):)?(?P<name>[^:=]+)=(?P<value>.*)", text)
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=VALUE nor RUN:NAME=VALUE")
    return parts["run"] or "", parts["name"], parts["value"]


def assignment(text: str) -> tuple[str, str]:
    """The parts of ``NAME=VALUE``."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
