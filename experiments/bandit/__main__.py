"""Print the tables of docs/bandit.md, compare the page with what is computed, and draw its figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import ExperimentError
from .figure import draw
from .page import differences, statements
from .tables import tables

SHOWN = 5
"""Differences that are named; of the others only the number is."""


def main() -> None:
    """Print the tables; compare and draw what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bandit", description=__doc__)
    parser.add_argument("--page", type=Path, help="page to compare; exit 2 where it is not what is computed")
    parser.add_argument("--out", type=Path, help="folder for bandit.svg and bandit.png; none is drawn without it")
    arguments = parser.parse_args()
    try:
        run(arguments.page, arguments.out)
    except (OSError, UnicodeDecodeError, ExperimentError) as error:
        parser.exit(2, f"error: {error}\n")


def run(page: Path | None, out: Path | None) -> None:
    """Print the tables, and do what is asked.

    Args:
        page: The page to compare, if any.
        out: Folder of the figure, if any.

    Raises:
        ExperimentError: The page is not what is computed.
    """
    text = page.read_text("utf-8") if page else None
    if out:
        out.mkdir(parents=True, exist_ok=True)
    made = tables()
    for table in made:
        print("\n".join([*table, ""]))
    if text is not None and (found := list(differences(text, made, list(statements())))):
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ExperimentError(f"{page} must say what is computed, but {'; '.join(found[:SHOWN])}{more}")
    if out:
        draw(out / "bandit")


if __name__ == "__main__":
    main()
