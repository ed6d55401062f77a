"""Command line of the panel: ``python -m experiments.playbook status``.

``start`` runs what is left of it in the background, at the commit in frozen.json; ``pause``, ``go-on`` and ``stop``
act on it; ``collect`` copies the tables of finished cells into results/; ``again UNIT`` trains cells of a unit again
and compares; ``plan`` counts cells; ``others`` runs the default from base models of other seeds.
``probe UNIT`` says what its base model tells about n before any training, and keeps it in results/; ``findings`` writes
docs/findings.md from the committed tables.
``prepare UNIT`` makes base model and problem sets. The code that trains cells is that of the frozen commit alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..running.stopping import exit_code
from . import background, findings, others, prepare, progress, study

Outcome = int | Iterable[object] | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments.playbook", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = commands.add_parser(name)
        if name in WITH_UNIT:
            command.add_argument("unit", help="one that `status` lists")
        if name == "again":
            command.add_argument("--cells", type=_count, default=2, help="how many trunks (default: %(default)s)")
    given = parser.parse_args(argv)
    try:
        return exit_code(lambda: _run(given))
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing is to be flushed on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; it must be 1 or more")
    return int(text)


def _run(given: argparse.Namespace) -> int:
    found = COMMANDS[given.command](given)
    if isinstance(found, int):
        return found
    for line in found or ():
        print(line, flush=True)
    return 0


def _unit(given: argparse.Namespace) -> study.Unit:
    return study.load().unit(given.unit)


def _status() -> Iterator[str]:
    running = background.process()
    yield f"{background.home()}: {f'running (process {running})' if running else 'not running'}"
    yield from progress.lines(study.load(), background.home())


def _again(given: argparse.Namespace) -> Outcome:
    return background.in_frozen_code("again", _unit(given).name, "--cells", str(given.cells))


WITH_UNIT = ("again", "prepare", "probe")
COMMANDS: Mapping[str, Callable[[argparse.Namespace], Outcome]] = {
    "start": lambda _: background.start(),
    "pause": lambda _: background.send(signal.SIGSTOP),
    "go-on": lambda _: background.send(signal.SIGCONT),
    "stop": lambda _: background.send(signal.SIGTERM),
    "status": lambda _: _status(),
    "collect": lambda _: [f"changed: {', '.join(found)}" if (found := background.collect()) else "nothing has changed"],
    "plan": lambda _: progress.plan(study.load()),
    "others": lambda _: others.run(background.home()),
    "findings": lambda _: findings.write(),
    "again": _again,
    "prepare": lambda given: [prepare.inputs_of(_unit(given), background.home())],
    "probe": lambda given: prepare.probed(_unit(given), background.home(), background.RESULTS).lines(),
}
"""What each command does; it returns an exit code, or what is to be printed."""


if __name__ == "__main__":
    sys.exit(main())
