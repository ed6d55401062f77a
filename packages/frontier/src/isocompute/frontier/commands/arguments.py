"""Argument types, and writing of ``--json`` documents."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract.command_line import amount
from ..contract.files import write_text
from ..errors import FrontierError


def add_assignments(parser: argparse.ArgumentParser, option: str, dest: str, *, like: str, words: str) -> None:
    """Add a repeatable option whose values have the form ``NAME=VALUE``."""
    parser.add_argument(option, dest=dest, action="append", default=[], type=_assignment, metavar=like, help=words)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must look like NAME=VALUE")
    return name, value


def positive(text: str) -> float:
    """A finite amount above 0, such as 50000, 2k, 16M or 1.5B."""
    value = float(amount(text))
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount above 0, such as 50000, 2k, 16M or 1.5B")
    return value


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write a document with sorted keys."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)
