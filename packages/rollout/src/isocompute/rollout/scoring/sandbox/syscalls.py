"""The system calls that scoring needs, and with which values: all others are refused (``seccomp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import kernel

NUMBERS: Mapping[str, tuple[int, int]] = {
    # Reading and writing.
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, -1),
    "dup3": (292, 24), "pipe": (22, -1), "pipe2": (293, 59), "sendfile": (40, 71), "splice": (275, 76),
    "tee": (276, 77), "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, -1), "eventfd2": (290, 19),
    # Looking at files.
    "open": (2, -1), "openat": (257, 56), "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439),
    "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "getdents": (78, -1), "getdents64": (217, 61),
    "readlink": (89, -1), "readlinkat": (267, 78), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "fadvise64": (221, 223), "readahead": (187, 213), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "umask": (95, 166),
    # Memory.
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "get_mempolicy": (239, 236), "pkey_alloc": (330, 289), "pkey_free": (331, 290),
    "pkey_mprotect": (329, 288), "membarrier": (324, 283),
    # Time.
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "getitimer": (36, 102),
    "setitimer": (38, 103), "alarm": (37, -1), "timer_create": (222, 107), "timer_settime": (223, 110),
    "timer_gettime": (224, 108), "timer_getoverrun": (225, 109), "timer_delete": (226, 111),
    "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "pause": (34, -1),
    # Processes and threads.
    "clone": (56, 220), "fork": (57, -1), "vfork": (58, -1), "exit": (60, 93), "exit_group": (231, 94),
    "wait4": (61, 260), "waitid": (247, 95), "execve": (59, 221), "execveat": (322, 281),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "futex": (202, 98), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getpgrp": (111, -1),
    "getpgid": (121, 155), "getsid": (124, 156), "setpgid": (109, 154), "setsid": (112, 157),
    "arch_prctl": (158, -1), "prctl": (157, 167), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "sched_rr_get_interval": (148, 127), "getpriority": (140, 141),
    "getcpu": (309, 168), "pidfd_open": (434, 434), "restart_syscall": (219, 128),
    # Signals.
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "signalfd": (282, -1),
    "signalfd4": (289, 74), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    # Itself and the machine.
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "capget": (125, 90), "uname": (63, 160), "sysinfo": (99, 179),
    "getrusage": (98, 165), "getrlimit": (97, 163), "prlimit64": (302, 261), "getrandom": (318, 278),
    # Own pairs of sockets.
    "socketpair": (53, 199), "sendto": (44, 206), "recvfrom": (45, 207), "recvmsg": (47, 212), "shutdown": (48, 210),
    "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
    # Descriptors.
    "ioctl": (16, 29), "fcntl": (72, 25),
    # What restricts further.
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}  # fmt: skip
"""Numbers on x86-64 and on 64-bit Arm (``asm/unistd_64.h``, ``asm-generic/unistd.h``); -1 where there is none."""
OWN_PROCESS = 0x7FFF_FFFE
"""Stands for the number of the process that is restricted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What an argument of a system call may be.

    Attributes:
        argument: Which argument, from 0.
        allowed: Its values.
        mask: Bits that are looked at.
        wide: It is a pointer, all 64 bits of which count; the kernel reads the lower 32 of all others here.
    """

    argument: int
    allowed: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    wide: bool = False


Calls = Mapping[str, tuple[Values, ...]]
"""System calls that are allowed, each with what its arguments must be."""

_NEW_NAMESPACES_OR_SIBLING = 0x7E02_8000
_SHARED_ANONYMOUS_OR_HUGE = 0x4_0021
# TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Copies of descriptors, their flags and F_GETPIPE_SZ; neither locks of files nor owners nor larger pipes.
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
# PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_VMA and what only asks.
_PRCTL = (2, 3, 15, 16, 21, 23, 30, 38, 39, 40, 0x5356_4D41)
_EVERYWHERE: Calls = {
    "clone": (Values(argument=0, allowed=(0,), mask=_NEW_NAMESPACES_OR_SIBLING),),
    # Memory that no process shows as its own could not be counted.
    "mmap": (Values(argument=3, allowed=(0, 1, 0x20), mask=_SHARED_ANONYMOUS_OR_HUGE),),
    "ioctl": (Values(argument=1, allowed=_IOCTL),),
    "fcntl": (Values(argument=1, allowed=_FCNTL),),
    # A stream to itself; a datagram could be sent to another program's socket.
    "socketpair": (Values(argument=0, allowed=(1,)), Values(argument=1, allowed=(1,), mask=0xF)),
    "sendto": (Values(argument=4, allowed=(0,), wide=True),),
}
_PREPARING = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def of_worker(*, execute: bool) -> Calls:
    """Return the calls of the processes that start what executes a response: they may still set limits.

    Args:
        execute: Programs may be run.
    """
    prctl = (Values(argument=0, allowed=(*_PRCTL, kernel.PR_SET_PDEATHSIG, kernel.PR_SET_SECCOMP)),)
    refused = () if execute else ("execve", "execveat")
    return {**{name: () for name in NUMBERS if name not in refused}, **_EVERYWHERE, "prctl": prctl}


def of_response(*, signals: bool, groups: bool) -> Calls:
    """Return the calls of a process that executes a response; a filter before this one may allow fewer.

    Args:
        signals: It may signal others: the kernel keeps its signals from what it has not started itself.
        groups: It may leave its group of processes: all that it starts is found without.
    """
    own = Values(argument=0, allowed=(OWN_PROCESS,))
    refused = {*_PREPARING, *(() if signals else ("tkill",)), *(() if groups else ("setpgid", "setsid"))}
    return {
        **{name: () for name in NUMBERS if name not in refused},
        **_EVERYWHERE,
        "prctl": (Values(argument=0, allowed=_PRCTL),),
        # The limits of any process may be read, and none be set.
        "prlimit64": (Values(argument=2, allowed=(0,), wide=True),),
        # The timer of its deadline stays as it is.
        "setitimer": (Values(argument=0, allowed=(0, 1)),),
        "kill": () if signals else (own,),
        "tgkill": () if signals else (own,),
    }  # fmt: skip
