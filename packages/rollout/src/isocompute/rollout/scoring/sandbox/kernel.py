"""Kernel calls that Python has no functions for: namespaces, capabilities, Landlock, system-call filters.

Calls that the kernel refuses or does not know raise an ``OSError``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SIGCHLD = 17
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2

READ_ALL = 1 << 2
"""The capability to read whatever the owner may read (CAP_DAC_READ_SEARCH)."""

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

CAPSET = {"x86_64": 126, "aarch64": 91}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 1 << 14, 1 << 18, 2
MOUNT_ATTR_RDONLY, OPEN_TREE_CLONE, AT_FDCWD, AT_RECURSIVE = 1, 1, -100, 0x8000
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, *values: int) -> None:
    """Change a property of this process."""
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(option, *padded))


def unshare(flags: int) -> None:
    """Give this process new namespaces."""
    _checked(_libc.unshare(flags))


def syscall(number: int, *values: object) -> int:
    """Make a system call by number."""
    return _checked(_libc.syscall(ctypes.c_long(number), *values))


def show_only(readable: Iterable[str]) -> None:
    """Enter a mount namespace that contains only these files and folders, read-only; needs Linux 5.12.

    Paths that do not exist, or lie inside another one, are skipped.
    """
    unshare(CLONE_NEWNS)
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
    trees: dict[Path, int] = {}
    paths = list(readable)
    for path in sorted(map(Path, {*paths, *map(os.path.realpath, paths)})):
        if not trees.keys() & {path, *path.parents}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                name, flags = ctypes.c_char_p(bytes(path)), OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
                trees[path] = syscall(OPEN_TREE, ctypes.c_int(AT_FDCWD), name, ctypes.c_uint(flags))
    # Any folder would do, since its contents are already held open.
    root = Path("/usr")
    options = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _checked(_libc.mount(b"none", bytes(root), b"tmpfs", options, b"mode=755,size=1m"))
    for path, tree in trees.items():
        place = root / path.relative_to("/")
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        target = ctypes.c_char_p(bytes(place))
        syscall(MOVE_MOUNT, ctypes.c_int(tree), ctypes.c_char_p(b""), ctypes.c_int(AT_FDCWD), target, ctypes.c_uint(4))
        os.close(tree)
    os.chdir(root)
    # The old root is now mounted on the new one, and is removed.
    syscall(PIVOT_ROOT[os.uname().machine], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _checked(_libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", MOUNT_ATTR_RDONLY, 0, 0, 0))
    where, recursive = (ctypes.c_int(AT_FDCWD), ctypes.c_char_p(b"/")), ctypes.c_uint(AT_RECURSIVE)
    syscall(MOUNT_SETATTR, *where, recursive, attributes, ctypes.c_size_t(32))


def capabilities(kept: int = 0) -> None:
    """Give up capabilities; programs that this process runs also have those in ``kept``."""
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


# The rights are those of the kernel's documentation (Landlock, userspace API); older kernels know fewer.
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1
FIRST_WITH_TCP, FIRST_WITH_SIGNALS = 4, 6
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_SYMBOLIC_LINK = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 12
RIGHTS_ON_FILES = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""File-system rights that each version knows: bits from 0 up to this one."""
CONNECT_AND_BIND_TCP = 0b11
SIGNALS_AND_ABSTRACT_SOCKETS = 0b11


def version() -> int:
    """Return the version of Landlock's interface; 0 if the kernel has none."""
    try:
        return syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def restrict_files(readable: Iterable[str], writable: Iterable[str], *, execute: bool) -> int:
    """Remove this process's file rights except for reading some folders; from version 4 on also TCP.

    From version 6 on it also cannot send signals outside. Paths that do not exist are skipped. ``execute`` says whether
    programs in the readable folders may be run. Returns the version of Landlock's interface.
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
        syscall(LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)


def nest() -> None:
    """Enter a Landlock domain: this process can then neither trace nor, from version 6 on, signal its parent."""
    known = version()
    if not known:
        raise OSError("the kernel has no Landlock")
    # A domain must handle some right; nothing here creates symbolic links.
    words = (
        [MAKE_SYMBOLIC_LINK] if known < FIRST_WITH_SIGNALS else [MAKE_SYMBOLIC_LINK, 0, SIGNALS_AND_ABSTRACT_SOCKETS]
    )
    _enter(_ruleset(words))


def _ruleset(words: list[int]) -> int:
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(words)}Q", *words), 8 * len(words))
    return syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(8 * len(words)), ctypes.c_uint32(0))


def _enter(ruleset: int) -> None:
    try:
        syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


NUMBERS: Mapping[str, tuple[int, int]] = {
    # Reading and writing.
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, -1),
    "dup3": (292, 24), "pipe": (22, -1), "pipe2": (293, 59), "sendfile": (40, 71), "splice": (275, 76),
    "tee": (276, 77), "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, -1), "eventfd2": (290, 19),
    # File metadata.
    "open": (2, -1), "openat": (257, 56), "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439),
    "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "getdents": (78, -1), "getdents64": (217, 61), "readlink": (89, -1),
    "readlinkat": (267, 78), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "fadvise64": (221, 223),
    "readahead": (187, 213), "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10),
    "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13), "umask": (95, 166),
    # Memory.
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "get_mempolicy": (239, 236), "pkey_alloc": (330, 289), "pkey_free": (331, 290),
    "pkey_mprotect": (329, 288), "membarrier": (324, 283),
    # Time.
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103),
    "alarm": (37, -1), "timer_create": (222, 107), "timer_settime": (223, 110), "timer_gettime": (224, 108),
    "timer_getoverrun": (225, 109), "timer_delete": (226, 111), "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "pause": (34, -1),
    # Processes and threads.
    "clone": (56, 220), "fork": (57, -1), "vfork": (58, -1), "exit": (60, 93), "exit_group": (231, 94),
    "wait4": (61, 260), "waitid": (247, 95), "execve": (59, 221), "execveat": (322, 281),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "futex": (202, 98), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getpgrp": (111, -1),
    "getpgid": (121, 155), "getsid": (124, 156), "setpgid": (109, 154), "setsid": (112, 157), "arch_prctl": (158, -1),
    "prctl": (157, 167), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127), "getpriority": (140, 141), "getcpu": (309, 168), "pidfd_open": (434, 434),
    "restart_syscall": (219, 128),
    # Signals.
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "signalfd": (282, -1),
    "signalfd4": (289, 74), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    # Itself and the machine.
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "capget": (125, 90), "uname": (63, 160), "sysinfo": (99, 179),
    "getrusage": (98, 165), "getrlimit": (97, 163), "prlimit64": (302, 261), "getrandom": (318, 278),
    # Private socket pairs.
    "socketpair": (53, 199), "sendto": (44, 206), "recvfrom": (45, 207), "recvmsg": (47, 212), "shutdown": (48, 210),
    "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
    # Descriptors.
    "ioctl": (16, 29), "fcntl": (72, 25),
    # Calls that restrict further.
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}  # fmt: skip
"""Numbers on x86-64 and on 64-bit Arm (``asm/unistd_64.h``, ``asm-generic/unistd.h``); -1 if there is none."""
OWN_PROCESS = 0x7FFF_FFFE
"""Placeholder for the id of the restricted process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values that an argument of a system call may have.

    Attributes:
        argument: Index of the argument, from 0.
        mask: Bits to compare.
        wide: Whether it is a pointer, so that all 64 bits count; of all other arguments here the kernel reads the lower
            32.
    """

    argument: int
    allowed: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    wide: bool = False


Calls = Mapping[str, tuple[Values, ...]]
"""Allowed system calls, each with the values of its arguments."""

_NEW_NAMESPACES_OR_SIBLING = 0x7E02_8000
_SHARED_ANONYMOUS_OR_HUGE = 0x4_0021
# TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Copies of descriptors, their flags and F_GETPIPE_SZ; not file locks, owners or larger pipes.
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
# PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_VMA and calls that only read.
_PRCTL = (2, 3, 15, 16, 21, 23, 30, 38, 39, 40, 0x5356_4D41)
_EVERYWHERE: Calls = {
    "clone": (Values(argument=0, allowed=(0,), mask=_NEW_NAMESPACES_OR_SIBLING),),
    # Memory that no process shows as its own could not be counted.
    "mmap": (Values(argument=3, allowed=(0, 1, 0x20), mask=_SHARED_ANONYMOUS_OR_HUGE),),
    "ioctl": (Values(argument=1, allowed=_IOCTL),),
    "fcntl": (Values(argument=1, allowed=_FCNTL),),
    # A stream pair connects only to itself; a datagram could be sent to another program's socket.
    "socketpair": (Values(argument=0, allowed=(1,)), Values(argument=1, allowed=(1,), mask=0xF)),
    "sendto": (Values(argument=4, allowed=(0,), wide=True),),
}
_PREPARING = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def of_worker(*, execute: bool) -> Calls:
    """Return the calls of the processes that start what executes a response: they may still set limits."""
    prctl = (Values(argument=0, allowed=(*_PRCTL, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER)),)
    refused = () if execute else ("execve", "execveat")
    return {**{name: () for name in NUMBERS if name not in refused}, **_EVERYWHERE, "prctl": prctl}


def of_response(*, signals: bool, groups: bool) -> Calls:
    """Return the calls of a process that executes a response; an earlier filter may allow fewer.

    Args:
        signals: Whether it may signal others; the kernel keeps its signals from all but its children.
        groups: Whether it may leave its process group; all that it starts is then found without the group.
    """
    own = Values(argument=0, allowed=(OWN_PROCESS,))
    refused = {*_PREPARING, *(() if signals else ("tkill",)), *(() if groups else ("setpgid", "setsid"))}
    return {
        **{name: () for name in NUMBERS if name not in refused},
        **_EVERYWHERE,
        "prctl": (Values(argument=0, allowed=_PRCTL),),
        # The limits of any process may be read, but none may be set.
        "prlimit64": (Values(argument=2, allowed=(0,), wide=True),),
        # The timer of its deadline must not be changed.
        "setitimer": (Values(argument=0, allowed=(0, 1)),),
        # Ignoring the end of children would hide their processor time.
        "rt_sigaction": (Values(argument=0, allowed=tuple({*range(1, 65)} - {SIGCHLD})),),
        "kill": () if signals else (own,),
        "tgkill": () if signals else (own,),
    }


ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""The kernel's numbers of the machine types whose calls are known."""
FIRST_RECENT = 424
"""Calls from this number on are missing in older kernels: refused as unknown, so that programs use others instead."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in a filter's data; arguments have eight bytes each, the lower half first."""

Line = tuple[int, int, int, int]
"""An instruction: code, lines to skip if true, lines to skip if false, constant."""
REFUSED: Line = (_RETURN, 0, 0, _ERROR | errno.EPERM)
UNKNOWN: Line = (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
ALLOWED: Line = (_RETURN, 0, 0, _ALLOW)


def enter_filter(program: bytes) -> None:
    """Enter a filter, with all children; ``no_new_privs`` must be set."""
    own = program.replace(struct.pack("=I", OWN_PROCESS), struct.pack("=I", os.getpid()))
    code = ctypes.create_string_buffer(own, len(own))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(own) // 8, ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(head))


def compiled(calls: Calls, machine: str | None = None) -> bytes:
    """Compile the filter that allows these calls and refuses all others, for a machine as ``uname`` names it."""
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no filter is known for {machine}")
    which = 0 if machine == "x86_64" else 1
    program: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for name, values in calls.items():
        if (number := NUMBERS[name][which]) >= 0:
            checks = _checks(values)
            program += [(_EQUAL, 0, len(checks), number), *checks]
    program += [(_AT_LEAST, 0, 1, FIRST_RECENT), UNKNOWN, REFUSED]
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _checks(values: Sequence[Values]) -> list[Line]:
    """Allow a call if all its arguments have allowed values."""
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
