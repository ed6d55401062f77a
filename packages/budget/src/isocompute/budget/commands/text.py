"""How the commands read numbers and print tables."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import BudgetError


def whole(text: str) -> int:
    """A whole number, also as 2e6 or 24_576."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        return int(number)


whole.__name__ = "whole number"


def several(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, such as 4,16,64."""
    return tuple(whole(part) for part in text.split(","))


several.__name__ = "list of whole numbers"


def aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    """A table: the first column to the left, the others to the right, numbers with commas."""
    cells = [list(header)]
    cells += [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def labelled(rows: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Lines of a label and what it stands for."""
    rows = list(rows)
    width = max((len(label) for label, _ in rows), default=0)
    for label, value in rows:
        yield f"{label.ljust(width)}  {value}"


def plural(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_json(document: Any, path: Path) -> None:
    """Write a document beside ``path`` and move it there, so that it is whole or not there.

    Raises:
        BudgetError: The file cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(stream.name).chmod(0o644)
        Path(stream.name).replace(path)
    except OSError as error:
        raise BudgetError(f"{path}: cannot be written ({error.strerror})") from None
