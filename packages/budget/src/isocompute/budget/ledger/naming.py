"""The run that a ledger is of, where nobody says."""

from __future__ import annotations

from pathlib import Path

from .history import History


def run_id_of(path: Path) -> str:
    """The run of a ledger, or folder/name of the path of one that is not there yet.

    Raises:
        LedgerError: The file is not a ledger.
    """
    if path.exists() and (run_id := History.read(path).run_id):
        return run_id
    place = path.resolve()
    return f"{place.parent.name}/{place.stem}"
