"""The Linux system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import struct

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2

READ_ALL = 1 << 2
"""The capability to read whatever its owner may (CAP_DAC_READ_SEARCH)."""

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

CAPSET = {"x86_64": 126, "aarch64": 91}
MOUNT_SETATTR = 442
MS_REC, MS_PRIVATE, MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 1 << 14, 1 << 18, 1, -100, 0x8000
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, *values: int) -> None:
    """Change a property of this process.

    Raises:
        OSError: The kernel refuses.
    """
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(option, *padded))


def unshare(flags: int) -> None:
    """Give this process namespaces of its own.

    Raises:
        OSError: The kernel refuses.
    """
    _checked(_libc.unshare(flags))


def syscall(number: int, *values: object) -> int:
    """Make a system call by its number.

    Raises:
        OSError: The kernel refuses or does not know it.
    """
    return _checked(_libc.syscall(ctypes.c_long(number), *values))


def make_mounts_read_only() -> None:
    """Make all that is mounted read-only, in this process's own mount namespace.

    Raises:
        OSError: The kernel refuses, or is older than 5.12.
    """
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", MOUNT_ATTR_RDONLY, 0, 0, 0))
    syscall(
        MOUNT_SETATTR, ctypes.c_int(AT_FDCWD), ctypes.c_char_p(b"/"), ctypes.c_uint(AT_RECURSIVE), attributes,
        ctypes.c_size_t(32),
    )  # fmt: skip


def capabilities(kept: int = 0) -> None:
    """Give up capabilities; those kept are also those of programs that this process runs.

    Raises:
        OSError: The kernel refuses, or the machine is of an unknown kind.
    """
    number = CAPSET.get(os.uname().machine)
    if number is None:
        raise OSError(f"no number of capset is known for {os.uname().machine}")
    # _LINUX_CAPABILITY_VERSION_3, this process; effective, permitted and inheritable in two words of 32 bits.
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x2008_0522, 0))
    syscall(number, header, ctypes.create_string_buffer(struct.pack("=6I", kept, kept, kept, 0, 0, 0)))
    for bit in range(32):
        if kept >> bit & 1:
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
