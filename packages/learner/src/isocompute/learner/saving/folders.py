"""A folder that is written whole or not at all: aside, flushed to disk, renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..contract.files import reason_of
from ..errors import LearnerError


@contextmanager
def whole_folder(final: Path, *, what: str, error: type[LearnerError]) -> Iterator[Path]:
    """Fill a folder aside, and put it in its place when the block succeeds.

    Killed at any instant, what was there stays, under its name or, for the moment between two renames, under that
    name with ``.before`` behind it.

    Args:
        what: What it is, for the message of an error.
        error: What to raise when it cannot be written.

    Yields:
        An empty folder beside it.

    Raises:
        LearnerError: ``error``, when the folder cannot be written; what was there stays.
    """
    aside = final.with_name(f".{final.name}.writing")
    try:
        if final.exists() and not final.is_dir():
            raise error(f"{final}: {what} cannot be written (a file is there)")
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        for path in (*aside.rglob("*"), aside):
            _flush(path)
        before = final.with_name(f"{final.name}.before")
        if final.exists():
            # One that a kill has left beside it is older.
            remove_folder(before)
            final.rename(before)
        aside.rename(final)
        _flush(final.parent)
        remove_folder(before)
    except (OSError, SafetensorError) as problem:
        # safetensors reports a full disk as an error of its own.
        raise error(f"{final}: {what} cannot be written ({reason_of(problem)})") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there; killed meanwhile, no half of it is left under its name."""
    if not folder.exists():
        return
    hidden = folder.with_name(f".{folder.name}.deleting")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
