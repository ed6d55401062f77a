"""Print the tables of docs/bandit.md, compare the page with what is computed, and draw its figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from .figure import draw
from .page import missing, tables


def main() -> None:
    """Print the tables; compare and draw what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.bandit", description=__doc__)
    parser.add_argument("--page", type=Path, help="page to compare; exit 2 where it is not what is computed")
    parser.add_argument("--out", type=Path, help="folder for bandit.svg and bandit.png; none is drawn without it")
    arguments = parser.parse_args()
    for table in tables():
        print(f"{table}\n")
    if arguments.page and (lacking := missing(arguments.page.read_text("utf-8"))):
        parser.exit(2, f"error: {arguments.page} must say what is computed, and does not have\n" + "\n".join(lacking))
    if arguments.out:
        draw(arguments.out / "bandit")


if __name__ == "__main__":
    main()
