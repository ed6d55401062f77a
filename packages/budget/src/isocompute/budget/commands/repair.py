"""``repair``: save what is whole of a damaged ledger."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from ..contract import locks
from ..contract.files import atomic_write
from ..errors import LedgerError
from ..ledger.counts import Counts
from ..ledger.handles import sync_folder
from ..ledger.repair import Dropped, salvage
from ..wording import reason
from .text import plural


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    repair = commands.add_parser(
        "repair",
        help="save what is whole of a damaged ledger",
        description="Write a new ledger with every whole record of a damaged one, and list what is not in it. The "
        "damaged one stays as it is.",
    )
    repair.add_argument("ledger", type=Path, metavar="LEDGER", help="the damaged ledger")
    repair.add_argument("--output", type=Path, required=True, metavar="NEW", help="the new file, which must not exist")
    repair.add_argument("--run-id", metavar="RUN", help="the run, if no whole record names it")
    repair.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Save the whole records, and print what is not in the new ledger."""
    path, output = arguments.ledger, arguments.output
    saved = salvage(_read(path), str(path), run_id=arguments.run_id)
    _write(output, saved.content)
    history = saved.history
    totals = history.totals()
    yield f"{path}: {saved.problem}"
    yield (
        f"{output}: {plural(history.records, 'record')} of run {history.run_id}, "
        f"{plural(len(history.resumed_from), 'attempt')}: used {totals.used.rollouts:,} rollouts, paid "
        f"{totals.paid.rollouts:,}"
    )
    for part in saved.dropped:
        yield _dropped_line(part)
    for first, last in saved.missing:
        yield f"not saved: record {first}" if first == last else f"not saved: records {first} to {last}"
    for note in saved.notes:
        yield f"note: {note}"


def _dropped_line(part: Dropped) -> str:
    record = "" if part.number is None else f" (record {part.number})"
    charges = "; ".join(f"step {step}, {cohort}: {_counts_in_words(counts)}" for step, cohort, counts in part.charges)
    return f"dropped: bytes {part.begin} to {part.end}{record}: {part.reason}" + (
        f"; it seems to charge {charges}" if charges else ""
    )


def _counts_in_words(counts: Counts) -> str:
    return (
        f"{counts.rollouts:,} rollouts, {counts.prompt_tokens:,} prompt tokens, "
        f"{counts.response_tokens:,} response tokens"
    )


def _read(path: Path) -> bytes:
    """Read a ledger that no process is writing to.

    Raises:
        LedgerError: It cannot be read, or a run is charging it.
    """
    try:
        with path.open("rb") as stream:
            try:
                locks.lock(stream.fileno(), shared=True)
            except BlockingIOError:
                raise LedgerError(f"{path}: a run has this ledger open; stop it first") from None
            except OSError:
                # A file system without locks has no writer either: it refuses to open a ledger there.
                pass
            stream.seek(0)
            return stream.read()
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None


def _write(path: Path, content: bytes) -> None:
    """Write a new file, whole or not at all, and return once its name is on the disk.

    Raises:
        LedgerError: It cannot be written, or it exists already.
    """
    if os.path.lexists(path):
        raise LedgerError(f"{path}: already exists; a repaired ledger is written to a new file")
    with atomic_write(path, error=LedgerError, replace=False) as stream:
        stream.write(content)
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({reason(error)})") from None
