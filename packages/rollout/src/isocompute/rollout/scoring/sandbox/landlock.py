"""Landlock: this process and its children read only certain folders, write nothing and connect nowhere.

The rights are those of the kernel's documentation (Landlock, userspace API); an older kernel knows fewer of them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from . import kernel

VERSION_FLAG = 1
RULE_PATH_BENEATH = 1
FIRST_WITH_TCP, FIRST_WITH_SIGNALS = 4, 6
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_SYMBOLIC_LINK = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 12
RIGHTS_ON_FILES = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Rights of the file system that each version knows: bits from 0 up to this one."""
CONNECT_AND_BIND_TCP = 0b11
SIGNALS_AND_ABSTRACT_SOCKETS = 0b11


def version() -> int:
    """Return the version of Landlock's interface; 0 where the kernel has none."""
    try:
        return kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def described(version: int) -> str:
    """Return the words for a version in a report."""
    return f"Landlock {version}"


def version_in(words: str) -> int:
    """Return the version that ``described`` has put in words, 0 for other words."""
    name, _, number = words.partition(" ")
    return int(number) if name == "Landlock" else 0


def restrict(readable: Iterable[str], writable: Iterable[str], *, execute: bool) -> int:
    """Take from this process all rights on files but reading in some folders; from version 4 on also TCP.

    From version 6 on it can send no signal outside either.

    Args:
        readable: Folders and files that may be read; those that do not exist are passed over.
        writable: Files, such as devices, that may be written too.
        execute: Programs in the readable folders may be run.

    Returns:
        The version of Landlock's interface.

    Raises:
        OSError: The kernel has no Landlock, or refuses.
    """
    known = version()
    if not known:
        raise OSError("the kernel has no Landlock")
    on_files = (1 << RIGHTS_ON_FILES.get(known, 16)) - 1
    words = [on_files]
    if known >= FIRST_WITH_TCP:
        words.append(CONNECT_AND_BIND_TCP)
    if known >= FIRST_WITH_SIGNALS:
        words.append(SIGNALS_AND_ABSTRACT_SOCKETS)
    ruleset = _ruleset(words)
    reading = READ_FILE | READ_DIR | (EXECUTE if execute else 0)
    for path in readable:
        _allow(ruleset, path, reading)
    for path in writable:
        _allow(ruleset, path, READ_FILE | WRITE_FILE)
    _enter(ruleset)
    return known


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir():
            rights &= ~READ_DIR
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
        kernel.syscall(
            kernel.LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), rule, ctypes.c_uint32(0)
        )
    finally:
        os.close(place)


def nest() -> None:
    """Enter a domain of its own: this process can then neither trace nor, from version 6 on, signal its parent.

    Raises:
        OSError: The kernel has no Landlock, or refuses.
    """
    known = version()
    if not known:
        raise OSError("the kernel has no Landlock")
    # A domain must handle some right; nothing here makes symbolic links.
    words = (
        [MAKE_SYMBOLIC_LINK] if known < FIRST_WITH_SIGNALS else [MAKE_SYMBOLIC_LINK, 0, SIGNALS_AND_ABSTRACT_SOCKETS]
    )
    _enter(_ruleset(words))


def _ruleset(words: list[int]) -> int:
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(words)}Q", *words), 8 * len(words))
    return kernel.syscall(
        kernel.LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(8 * len(words)), ctypes.c_uint32(0)
    )


def _enter(ruleset: int) -> None:
    try:
        kernel.syscall(kernel.LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
