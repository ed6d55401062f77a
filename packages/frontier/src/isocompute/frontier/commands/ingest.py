"""``ingest``: says where it went."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..errors import FrontierError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("ingest", help="moved to isocompute-budget")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> Iterable[str]:
    """Say where the command went.

    Raises:
        FrontierError: Always.
    """
    raise FrontierError("other trainers' logs are read by isocompute-budget: isocompute-budget ingest (or doctor)")
