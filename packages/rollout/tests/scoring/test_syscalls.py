"""System calls of what executes a response: settings of limits, modes and shared memory are refused."""

import dataclasses
from collections.abc import Iterator

import pytest
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes, one after another")

OWN = '''
import ctypes, errno, os, resource, signal

libc = ctypes.CDLL(None, use_errno=True)


def called(name, *values):
    """Call a function of the C library; return 0, or the number of its error."""
    ctypes.set_errno(0)
    values = [v if isinstance(v, bytes) else ctypes.c_long(v) for v in values]
    return ctypes.get_errno() if getattr(libc, name)(*values) == -1 else 0


def executes(response, answer, metadata):
    scope = {"called": called, "os": os, "resource": resource, "signal": signal, "errno": errno}
    exec(response, scope)
    return scope.get("answer") == answer

'''
LOWERED = """
import resource
for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_AS):
    for process in (os.getppid(), os.getpid(), 1):
        try: resource.prlimit(process, number, (3, 3))
        except OSError: pass
"""
REFUSED = {
    "setpriority": "0, 0, 5",
    "sched_setaffinity": "0, 8, b'1' * 8",
    "sched_setscheduler": "0, 0, bytes(8)",
    "shmget": "0, 4096, 0o1600",
    "semget": "0, 1, 0o1600",
    "msgget": "0, 0o1600",
    "personality": "0x40000",
    "chmod": "b'/nowhere', 0o777",
    "fchmod": "0, 0o777",
    "chown": "b'/nowhere', 0, 0",
    "fchown": "0, 0, 0",
    "utimensat": "-100, b'/nowhere', 0, 0",
    "futimens": "0, 0",
    "setxattr": "b'/nowhere', b'user.a', b'1', 1, 0",
    "removexattr": "b'/nowhere', b'user.a'",
    "memfd_create": "b'a', 0",
    "socket": "1, 1, 0",
    "socket ": "2, 2, 0",
    "flock": "0, 5",
    "unshare": "0x10000000",
    "mkdir": "b'/nowhere/a', 0o777",
    "unlink": "b'/nowhere/a'",
    "rename": "b'/nowhere/a', b'/nowhere/b'",
    "symlink": "b'a', b'/nowhere/b'",
    "truncate": "b'/nowhere', 0",
    "mlock": "0, 0",
    "ptrace": "0, 0, 0, 0",
    "inotify_init": "",
    "fcntl": "1, 8, 1",
    "fcntl ": "1, 1031, 65536",
    "mmap": "0, 4096, 3, 0x21, -1, 0",
    "prctl": "1, 0, 0, 0, 0",
    "setitimer": "2, b'0' * 32, 0",
}
"""Functions of the C library that a response calls, with values that would otherwise give success or another error."""


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scorer]:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "calling_rules.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scorer = Scorer(ScoringConfig(seconds=2))
        yield scorer
        scorer.close()


def executed(scorer: Scorer, *responses: str, answer: str = "right") -> list[float]:
    """The rewards of responses that are executed."""
    item = Item(verifier="python:calling_rules:executes", response="", answer=answer)
    items = [dataclasses.replace(item, response=response) for response in responses]
    return [verdict.reward for verdict in scorer.submit(items).result(timeout=120)]


def test_a_response_does_not_lower_the_limits_of_its_worker(scorer: Scorer) -> None:
    responses = [LOWERED, "answer = 'right'", LOWERED + "answer = 'right'", "answer = 'right' ", "answer = 'wrong'"]
    assert executed(scorer, *responses) == [0, 1, 1, 1, 0]
    assert executed(scorer, "answer = 'right'  ") == [1]


def test_system_calls_that_no_verifier_needs_are_refused(scorer: Scorer) -> None:
    responses = [
        f"answer = errno.errorcode.get(called({name.strip()!r}, {values}), '0')" for name, values in REFUSED.items()
    ]
    rewards = executed(scorer, *responses, answer="EPERM")
    assert [name for name, reward in zip(REFUSED, rewards, strict=True) if not reward] == []


def test_what_verifiers_use_goes_on_working(scorer: Scorer) -> None:
    responses = [
        "import threading; t = threading.Thread(target=int); t.start(); t.join(); answer = 'right'",
        "import subprocess, sys; answer = subprocess.run([sys.executable, '-c', 'print(\"right\")'], "
        "capture_output=True, text=True).stdout.strip()",
        "import multiprocessing as m; a, b = m.Pipe(); b.send('right'); answer = a.recv()",
        "import asyncio; answer = asyncio.run(asyncio.sleep(0, 'right'))",
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n os.write(w, b'right'); os._exit(0)\n"
        "os.wait(); answer = os.read(r, 9).decode()",
        "import numpy; answer = 'right' * int(numpy.ones((9, 9)).dot(numpy.ones(9)).sum() / 81)",
        "open(os.__file__).read(); os.listdir(os.path.dirname(os.__file__)); open('/dev/null', 'w').close(); "
        "answer = 'right'",
        "import resource, time, random, decimal, tempfile; resource.getrlimit(resource.RLIMIT_AS); "
        "time.sleep(0.01); os.urandom(4); os.cpu_count(); os.sched_getaffinity(0); answer = 'right'",
        "signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.01); "
        "signal.pause(); answer = 'right'",
        "import concurrent.futures as c\nwith c.ThreadPoolExecutor(2) as p: answer = p.submit(str, 'right').result()",
    ]
    assert executed(scorer, *responses) == [1] * len(responses)
