"""Command line of the study: ``python -m experiments.studies.fixed_rate run``.

``run`` trains every cell that is left (plan.md), one after the other, and keeps its evaluations in results/; killed, it
goes on from its last checkpoint. ``status`` counts the cells. ``findings`` writes docs/fixed-rate.md from the committed
tables, also from a part of them. ``resolution`` says the smallest shift that the study can see.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...running.cluster import exit_code
from ..panel.study import ROOT
from . import cells, page
from .reading import SETS, deviations, resolution


def status() -> Iterator[str]:
    """Say how many cells of each unit are missing."""
    for unit in cells.UNITS:
        total = len(cells.GRID[unit.problem_set])
        yield f"{unit.name}: {total - len(cells.missing(unit))} of {total} cells"


def resolvable() -> Iterator[str]:
    """Say what can be seen with three base models or more, and of what this is computed."""
    for name in SETS:
        yield f"{name}: {deviations(name)}"
    for sets in (SETS, *((name,) for name in SETS)):
        for bases in range(3, len(cells.SETTINGS["base_seeds"]) + 1):
            least, error = resolution(bases, sets)
            yield f"{' and '.join(sets)}, {bases} base models: {least:.1f} octaves (the mean's deviation: {error:.2f})"


COMMANDS: Mapping[str, Callable[[Path], Iterable[object]]] = {
    "run": cells.run,
    "status": lambda work: status(),
    "findings": lambda work: page.write(),
    "resolution": lambda work: resolvable(),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.fixed_rate", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "fixed_rate", help="where cells keep their files")
    given = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def run() -> None:
        for line in COMMANDS[given.command](given.work):
            print(line, flush=True)

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
