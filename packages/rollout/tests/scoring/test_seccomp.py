"""The filter of system calls, run here as the kernel would run it, for both kinds of machine."""

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout.scoring.sandbox import kernel

ALLOWED, REFUSED, UNKNOWN, KILLED = 0x7FFF_0000, 0x0005_0001, 0x0005_0026, 0x8000_0000
MACHINES = ("x86_64", "aarch64")
LISTS = (
    kernel.of_worker(execute=False),
    kernel.of_worker(execute=True),
    *(kernel.of_response(signals=s, groups=g) for s in (True, False) for g in (True, False)),
)
PROGRAMS = {(i, machine): kernel.compiled(calls, machine) for i, calls in enumerate(LISTS) for machine in MACHINES}


def returned(program: bytes, number: int, values: tuple[int, ...] = (), architecture: int | None = None) -> int:
    """What a filter returns for a call."""
    machine = next(m for (_, m), code in PROGRAMS.items() if code == program)
    kind = kernel.ARCHITECTURES[machine] if architecture is None else architecture
    seen = struct.pack("=IIQ6Q", number, kind, 0, *(*values, *[0] * 6)[:6])
    line, word = 0, 0
    while True:
        code, true, false, constant = struct.unpack_from("=HBBI", program, 8 * line)
        line += 1
        if code == 0x20:
            (word,) = struct.unpack_from("=I", seen, constant)
        elif code == 0x54:
            word &= constant
        elif code == 0x15:
            line += true if word == constant else false
        elif code == 0x35:
            line += true if word >= constant else false
        else:
            assert code == 0x06
            return int(constant)


@pytest.mark.parametrize(("which", "machine"), PROGRAMS)
def test_a_filter_allows_what_is_listed_and_nothing_else(which: int, machine: str) -> None:
    place = MACHINES.index(machine)
    named = {kernel.NUMBERS[name][place]: values for name, values in LISTS[which].items()}
    for number in [*range(600), 0x4000_0000, 0x4000_0001, 0xFFFF_FFFF]:
        found = returned(PROGRAMS[which, machine], number)
        if number in named and all(0 in v.allowed for v in named[number]):
            assert found == ALLOWED, number
        elif number in named:
            assert found == REFUSED, number
        else:
            assert found == (UNKNOWN if number >= kernel.FIRST_RECENT else REFUSED), number
    assert returned(PROGRAMS[which, machine], 0, architecture=0x4000_0003) == KILLED
    assert len(PROGRAMS[which, machine]) < 8 * 4096


@given(
    which=st.sampled_from(sorted(PROGRAMS)),
    name=st.sampled_from(["mmap", "clone", "prlimit64", "sendto", "fcntl"]),
    values=st.lists(st.sampled_from([0, 1, 2, 0x20, 0x21, 0x22, 8, 1 << 17, 1 << 33, 3 << 30]), min_size=6, max_size=6),
)
def test_arguments_are_checked_as_they_are_listed(which: tuple[int, str], name: str, values: list[int]) -> None:
    number = kernel.NUMBERS[name][MACHINES.index(which[1])]
    fits = all(
        values[v.argument] & (v.mask | (0xFFFF_FFFF << 32 if v.wide else 0)) in v.allowed for v in LISTS[which[0]][name]
    )
    assert returned(PROGRAMS[which], number, tuple(values)) == (ALLOWED if fits else REFUSED)


NEVER = """
ptrace 101 117; socket 41 198; connect 42 203; bind 49 200; mount 165 40; unshare 272 97; setns 308 268
bpf 321 280; keyctl 250 219; shmget 29 194; shmat 30 196; semget 64 190; msgget 68 186; mq_open 240 180
chmod 90 -1; fchmod 91 52; fchmodat 268 53; chown 92 -1; fchown 93 55; fchownat 260 54; utimensat 280 88
setxattr 188 5; fsetxattr 190 7; setrlimit 160 164; setpriority 141 140; sched_setaffinity 203 122
sched_setscheduler 144 119; ioprio_set 251 30; memfd_create 319 279; io_uring_setup 425 425; flock 73 32
process_vm_writev 311 271; pidfd_send_signal 424 424; clone3 435 435; unlinkat 263 35; rt_sigqueueinfo 129 138
sendmsg 46 211; seccomp 317 277; personality 135 92; fchmodat2 452 452; truncate 76 45; renameat2 316 276
mlock 149 228
"""


def test_what_must_never_pass_is_on_no_list() -> None:
    rows = (row.split() for row in re.split("[;\n]", NEVER.strip()))
    never = {name: (int(x86), int(arm)) for name, x86, arm in rows}
    assert len(never) > 40
    for (which, machine), program in PROGRAMS.items():
        for name, numbers in never.items():
            number = numbers[MACHINES.index(machine)]
            assert number < 0 or returned(program, number) in {REFUSED, UNKNOWN}, (name, which, machine)


def test_a_response_may_signal_itself_where_nothing_keeps_its_signals_inside() -> None:
    program = PROGRAMS[5, "x86_64"]
    kill = kernel.NUMBERS["kill"][0]
    assert returned(program, kill, (kernel.OWN_PROCESS, 9)) == ALLOWED
    assert returned(program, kill, (1, 9)) == REFUSED
    assert struct.pack("=I", kernel.OWN_PROCESS) in program


def test_a_response_may_handle_every_signal_but_the_end_of_its_children() -> None:
    for (which, machine), program in PROGRAMS.items():
        call = kernel.NUMBERS["rt_sigaction"][MACHINES.index(machine)]
        found = {number for number in range(1, 65) if returned(program, call, (number, 1)) == ALLOWED}
        assert set(range(1, 65)) - found == ({kernel.SIGCHLD} if which > 1 else set())
