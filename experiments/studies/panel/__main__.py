"""Command line of the panel: ``python -m experiments.studies.panel findings``.

``findings`` writes docs/findings.md and its figures from the committed tables; ``probe UNIT`` says how many groups of
its base model have a signal, and keeps it in results/; ``others`` runs the default from base models of other
seeds; ``prepare UNIT`` trains a base model anew and measures its problem sets. The code that trains the panel's cells
is at the commit in frozen.json alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...running.cluster import exit_code
from . import findings, others, prepare, study

WORK = study.ROOT / "work" / "panel"
"""Folder in which base models are trained."""
COMMANDS: Mapping[str, Callable[[], Iterable[object]]] = {
    "findings": findings.write,
    "others": lambda: others.run(WORK),
}
"""Messages while each command runs."""
OF_A_UNIT: Mapping[str, Callable[[study.Unit], Iterable[object]]] = {
    "probe": lambda unit: prepare.probed(unit).lines(),
    "prepare": lambda unit: [prepare.made(unit, WORK)],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.panel", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in (*COMMANDS, *OF_A_UNIT):
        command = commands.add_parser(name)
        if name in OF_A_UNIT:
            command.add_argument("unit", help="a setting and the seed of its base model, such as hard-0")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(given: argparse.Namespace) -> int:
    name = given.command
    lines = COMMANDS[name]() if name in COMMANDS else OF_A_UNIT[name](study.unit_of(given.unit))
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
