"""Atomic writes: a file is replaced completely or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import FileError, IsoComputeError


@contextlib.contextmanager
def atomic_write(
    path: str | Path, *, error: type[IsoComputeError] = FileError, replace: bool = True
) -> Iterator[BinaryIO]:
    """Write a file atomically: it replaces the old one if the block succeeds, and is discarded otherwise.

    The content is synced before the rename, so a power cut leaves either the complete old file or the complete new one.

    Args:
        path: Target path; its folder is created if it does not exist.
        error: Error class to raise if the file cannot be written.
        replace: Whether to replace an existing file instead of refusing.

    Raises:
        IsoComputeError: ``error``, if the file cannot be written, or exists and must not be replaced. The existing file
            stays.
    """
    path = Path(path)
    aside: Path | None = None
    try:
        if path.exists() and not path.is_file():
            # A device is refused as well, since root would replace it by a file.
            raise error(f"{path}: cannot be written (it is a {'folder' if path.is_dir() else 'special file'})")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened like any file, so that its mode follows the umask: tempfile's files are readable only by the user.
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.writing")
        with new.open("xb") as stream:
            aside = new
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            aside.replace(path)
            return
        try:
            # Unlike a rename, a link never replaces an existing file.
            path.hardlink_to(aside)
        except FileExistsError:
            raise error(f"{path}: is there already") from None
    except (OSError, UnicodeError) as problem:
        raise error(f"{path}: cannot be written ({reason_of(problem)})") from None
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str, *, error: type[IsoComputeError] = FileError) -> Path:
    """Write a text as UTF-8, like ``atomic_write``; return the path."""
    with atomic_write(path, error=error) as stream:
        stream.write(text.encode())
    return Path(path)


def reason_of(problem: BaseException) -> str:
    """The system's error message, without errno and path."""
    words = getattr(problem, "strerror", None)
    if words:
        return str(words)
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
