"""A seccomp filter: only the system calls on a list pass; all others fail with "operation not permitted"."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence

from . import kernel
from .syscalls import NUMBERS, OWN_PROCESS, Calls, Values

ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""What the kernel calls the kinds of machine whose numbers are known."""
FIRST_RECENT = 424
"""Calls from this number on are missing in older kernels: refused as unknown, programs use others instead of them."""

_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where these stand in what a filter sees; arguments have eight bytes each, the lower half first."""

Line = tuple[int, int, int, int]
"""An instruction: code, lines to be skipped if true, if false, constant."""
REFUSED: Line = (_RETURN, 0, 0, _ERROR | errno.EPERM)
UNKNOWN: Line = (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
ALLOWED: Line = (_RETURN, 0, 0, _ALLOW)


def restrict(program: bytes) -> None:
    """Enter a filter, with all children; ``no_new_privs`` must be set.

    Raises:
        OSError: The kernel refuses.
    """
    own = program.replace(struct.pack("=I", OWN_PROCESS), struct.pack("=I", os.getpid()))
    code = ctypes.create_string_buffer(own, len(own))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(own) // 8, ctypes.addressof(code)))
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.addressof(head))


def compiled(calls: Calls, machine: str | None = None) -> bytes:
    """Return the filter that allows calls and refuses all others.

    Args:
        calls: The calls, each with what its arguments must be.
        machine: As ``uname`` names it; by default this machine.

    Raises:
        OSError: The machine is of an unknown kind.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no filter is known for {machine}")
    which = 0 if machine == "x86_64" else 1
    blocks = {NUMBERS[name][which]: _checks(values) for name, values in calls.items() if NUMBERS[name][which] >= 0}
    # What holds from a number on, up to the next one.
    segments: dict[int, list[Line]] = {0: [REFUSED], FIRST_RECENT: [UNKNOWN]}
    for number in blocks:
        segments.setdefault(number + 1, [UNKNOWN if number + 1 >= FIRST_RECENT else REFUSED])
    segments |= blocks
    program: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, ARCHITECTURES[machine]), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), *_search(_merged(segments)),
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _merged(segments: Mapping[int, list[Line]]) -> list[tuple[int, list[Line]]]:
    """Segments in order, neighbours that do the same as one."""
    merged: list[tuple[int, list[Line]]] = []
    for start, block in sorted(segments.items()):
        if not merged or merged[-1][1] != block:
            merged.append((start, block))
    return merged


def _search(segments: Sequence[tuple[int, list[Line]]]) -> list[Line]:
    """Find a number's segment by halves."""
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, from_here = _search(segments[:middle]), _search(segments[middle:])
    # A conditional jump reaches 255 lines only.
    return [(_AT_LEAST, 0, 1, segments[middle][0]), (_JUMP, 0, 0, len(below)), *below, *from_here]


def _checks(values: Sequence[Values]) -> list[Line]:
    """Allow a call where all arguments that are named have a value that is allowed."""
    lines: list[Line] = []
    for value in values:
        place = _ARGUMENTS + 8 * value.argument
        lines += [(_LOAD, 0, 0, place), (_AND, 0, 0, value.mask)]
        count = len(value.allowed)
        lines += [(_EQUAL, count - i, 0, allowed) for i, allowed in enumerate(value.allowed)]
        lines.append(REFUSED)
        if value.wide:
            lines += [(_LOAD, 0, 0, place + 4), (_EQUAL, 1, 0, 0), REFUSED]
    return [*lines, ALLOWED]
