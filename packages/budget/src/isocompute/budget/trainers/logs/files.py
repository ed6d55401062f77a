"""The content of a log's file: regular files only, unpacked where they are compressed, and decoded where they are text.

Whatever is wrong with a file ends in one sentence that names it: a pipe or a device is never opened, since reading it
might never end, and a compressed file is not unpacked beyond ``LARGEST``.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import stat
import zipfile
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path, PurePath
from typing import IO

from ...checks import reason
from ...errors import BudgetError, DamagedLogError

LARGEST = 2**31
"""Bytes to which a compressed file may unpack."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
OPENERS: dict[bytes, Callable[[IO[bytes]], BufferedIOBase]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""What unpacks a file that begins so."""
ZIP, ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by the mark at the beginning; that of UTF-32 begins as that of UTF-16 and goes before it."""


def name_of(path: Path) -> PurePath:
    """The name of what a file holds: without the suffix of its compression, ``run.csv`` for ``run.csv.gz``."""
    return PurePath(path.stem if path.suffix.lower() in PACKED else path.name)


def require_regular(path: Path) -> None:
    """Refuse what is no regular file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise BudgetError(f"{path}: is {kind} and no file")


def content(path: Path) -> bytes:
    """What a file holds, unpacked."""
    require_regular(path)
    try:
        with path.open("rb") as stream:
            first = stream.read(8)
            stream.seek(0)
            if first.startswith(ZSTD):
                raise BudgetError(f"{path}: is compressed by zstd: unpack it with zstd -d {path.name}")
            opener = next((o for mark, o in OPENERS.items() if first.startswith(mark)), None)
            if opener is not None:
                return _unpacked(path, opener(stream).read)
            return _member(path, stream) if first.startswith(ZIP) else stream.read()
    except OSError as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None


def _unpacked(path: Path, read: Callable[[int], bytes]) -> bytes:
    try:
        data = read(LARGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError) as error:
        raise DamagedLogError(f"{path}: is damaged: it cannot be unpacked ({reason(error)})") from None
    if len(data) > LARGEST:
        raise BudgetError(f"{path}: unpacks to more than {LARGEST:,} bytes")
    return data


def _member(path: Path, stream: IO[bytes]) -> bytes:
    """The only file of an archive."""
    try:
        with zipfile.ZipFile(stream) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if path.suffix == ".xlsx":
                raise BudgetError(f"{path}: is a workbook: save its sheet as CSV")
            if len(names) != 1:
                raise BudgetError(f"{path}: is an archive of {len(names)} files: unpack it")
            with archive.open(names[0]) as member:
                return _unpacked(path, member.read)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, KeyError, UnicodeDecodeError) as error:
        raise DamagedLogError(f"{path}: is damaged, or no archive that can be read ({reason(error)})") from None


def text_of(path: Path, data: bytes) -> str:
    """Text in UTF-8, or in UTF-16 or UTF-32 as Windows writes them."""
    encoding = next((name for mark, name in BOMS.items() if data.startswith(mark)), "utf-8")
    if encoding == "utf-8" and b"\0" in data[:2]:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DamagedLogError(
            f"{path}: is damaged, or no text in UTF-8 or UTF-16 (byte {error.start + 1:,}): save it as UTF-8"
        ) from None
