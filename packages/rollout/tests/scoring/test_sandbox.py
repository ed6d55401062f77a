"""Processes that score: deadlines, replacements, threads, forks, their end, what they reach, and what they write."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring import running
from isocompute.rollout.scoring.running import Running, descendants
from isocompute.rollout.scoring.sandbox import layers, limits
from isocompute.rollout.scoring.sandbox.child import in_a_child
from isocompute.rollout.scoring.sandbox.limits import PROCESSES, Limits, Watch, counted_alone
from isocompute.rollout.scoring.sandbox.process import ATTEMPTS, LAYERS, ScoringConfig, report, scoring_from, words
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes, one after another")

PATTERN, ENDLESS = "exact|regex:^(a+)+$", "a" * 60 + "!"
"""A rule of the pool that starts soonest, and a response that keeps it busy for longer than anybody waits."""
EXECUTES = "python:scoring.user_rules:executes"
LIMITS = Limits(seconds=5, wall_seconds=60, contained=False, landlock=0, filter=b"", processes=10**6)


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    """One that is patient by the clock."""
    scorer = Scorer(ScoringConfig(seconds=0.5, wall_factor=1000, workers=2))
    yield scorer
    scorer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that this process runs in, which is not on ``sys.path``, as for a console script."""
    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("rules")
        patch.chdir(made)
        yield made


@pytest.fixture(scope="module")
def executing(folder: Path) -> Iterator[Scorer]:
    scorer = Scorer(ScoringConfig(seconds=2))
    yield scorer
    scorer.close()


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[Scorer]:
    """One with settings of its own."""
    scorer = Scorer(ScoringConfig(**request.param))
    yield scorer
    scorer.close()


def items(*responses: str, name: str = PATTERN, answer: str = "aa", apart: bool = False) -> list[Item]:
    """Responses to one problem, or each to a problem of its own."""
    notes = [f'{{"number": {i}}}' if apart else "" for i in range(len(responses))]
    pairs = zip(responses, notes, strict=True)
    return [Item(verifier=name, response=text, answer=answer, metadata=note) for text, note in pairs]


def rewards(scorer: Scorer, batch: list[Item]) -> list[float]:
    return [verdict.reward for verdict in scorer.submit(batch).result(timeout=120)]


@pytest.mark.parametrize(
    ("name", "right", "endless"),
    [(PATTERN, "aa", ENDLESS), ("math", r"\boxed{1/2}", r"so \boxed{\binom{900000000}{400000000}}")],
)
def test_a_response_that_never_ends_is_wrong_and_the_rest_of_its_batch_is_scored(
    name: str, right: str, endless: str, scorer: Scorer
) -> None:
    pytest.importorskip("math_verify")
    answer = "aa" if name == PATTERN else "0.5"
    batch = items(right, endless, right + " " * (name == "math"), endless + "!", "b", name=name, answer=answer)
    verdicts = scorer.submit(batch).result(timeout=120)
    assert [v.reward for v in verdicts] == [1, 0, 1, 0, 0]
    late = "deadline: more than 0.5 s of processor time"
    assert [v.error for v in verdicts] == [None, late, None, late, None]


def test_an_engine_goes_on_while_responses_are_scored(scorer: Scorer) -> None:
    hanging = scorer.submit(items(ENDLESS + "?"))
    assert not hanging.done()
    assert scorer.submit(items("4 ", name="exact", answer="4")).done()
    assert hanging.result(timeout=60)[0].reward == 0


def test_threads_and_forks_share_a_scorer_and_get_their_own_verdicts(scorer: Scorer) -> None:
    verdicts: dict[int, bool] = {}

    def score(i: int) -> None:
        batch = items(f"{i}", name="exact|regex:.+", answer=str(i // 2 * 2))
        verdicts[i] = scorer.submit(batch).result(timeout=60)[0].reward == 1

    threads = [threading.Thread(target=score, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: i % 2 == 0 for i in range(16)}
    forked = os.fork()
    if forked == 0:
        right = rewards(scorer, items("7", "8", name="exact|regex:.+", answer="7"))
        scorer.close()
        os._exit(0 if right == [1, 0] else 1)
    assert rewards(scorer, items("9", "10", name="exact|regex:.+", answer="10")) == [0, 1]
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0


def test_killed_or_closed_processes_are_replaced_and_leave_no_folder(scorer: Scorer) -> None:
    def folders() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("isocompute-*"))

    before = folders()
    scorer.check([PATTERN])
    for process in scorer._pools["exact"]._processes:
        for pid in [*(each.pid for each in descendants(process.pid)), process.pid] if process.pid else []:
            # One may have ended with another.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert rewards(scorer, items("aaa", answer="aaa")) == [1]
    scorer.close()
    assert folders() <= before
    # Closed is not the end: the next item starts others.
    assert rewards(scorer, items("aaaa", answer="aaaa")) == [1]


PROGRAM = f"""
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer
scorer = Scorer(ScoringConfig(seconds=600))
scorer.check([{PATTERN!r}])
scorer.submit([Item(verifier={PATTERN!r}, response={ENDLESS!r}, answer="1")])
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_processes_die_with_the_one_that_started_them(killed: bool) -> None:
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    engine = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    family = [process.pid for process in descendants(engine.pid)]
    assert len(family) >= 3
    # Where memory is short, the kernel ends them before any engine.
    assert {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in family} == {"1000"}
    if killed:
        engine.send_signal(signal.SIGKILL)
    # The interpreter's exit waits for no response.
    engine.communicate(None if killed else "\n", timeout=60)
    for _ in range(100):
        alive = [found for pid in family if (found := running.process(pid)) and not found.ended]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def test_children_that_have_ended_hide_none_that_runs() -> None:
    ended = "import os, time\nfor _ in range(1500): os.fork() or os._exit(0)\n"
    runs = "print(os.fork() or time.sleep(60), flush=True)\ntime.sleep(60)"
    program = [sys.executable, "-c", ended + runs]
    with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True, text=True) as ancestor:
        assert ancestor.stdout is not None
        child = int(ancestor.stdout.readline())
        try:
            assert child in {process.pid for process in descendants(ancestor.pid)}
        finally:
            os.killpg(ancestor.pid, signal.SIGKILL)


def test_a_process_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho first >&2\necho 'libpython3 cannot be loaded' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(RolloutError, match="did not start: libpython3"):
        Scorer().check([PATTERN])


FAILING_FORKS = """
import os
from scoring.user_rules import executes

real, forks = os.fork, 0


def fork():
    # Seen from a worker, the machine has no processes left, once and again.
    global forks
    forks += os.getpid() != 1
    if os.getpid() != 1 and forks >= 4:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()


os.fork = fork
"""


def test_a_failed_fork_replaces_the_worker_and_costs_no_verdict(executing: Scorer, folder: Path) -> None:
    (folder / "forking_rules.py").write_text(FAILING_FORKS)
    batch = items(*(f"answer = 'aa' # {i}" for i in range(9)), name="python:forking_rules:executes")
    verdicts = executing.submit(batch).result(timeout=120)
    assert [(v.reward, v.error) for v in verdicts] == [(1, None)] * 9


RESERVES = """
import mmap
from scoring.user_rules import executes

# As large libraries do: more than a response may have, and hardly any of it used.
reserved = [mmap.mmap(-1, 2**30, mmap.MAP_PRIVATE | 0x4000) for _ in range(3)]
"""


@pytest.mark.parametrize("own", [{"seconds": 2, "memory_bytes": 2**29}], indirect=True)
def test_what_a_library_has_reserved_is_not_taken_from_a_response(own: Scorer, folder: Path) -> None:
    (folder / "reserving_rules.py").write_text(RESERVES)
    responses = [f"kept = bytearray(b'1') * ({size} << 20); answer = 'aa'" for size in (1, 200, 2000)]
    assert rewards(own, items(*responses, name="python:reserving_rules:executes")) == [1, 1, 0]


FATES = st.sampled_from(["runs", "waits to be reaped", "was reaped by the first", "was reaped by the worker"])


@given(
    earlier=st.integers(0, 10**6),
    first=st.integers(0, 999),
    others=st.lists(st.tuples(st.integers(0, 999), FATES), max_size=9),
)
def test_time_counts_once_whoever_has_reaped_a_process_and_never_for_the_next_response(
    earlier: int, first: int, others: list[tuple[int, str]]
) -> None:
    def made(pid: int, parent: int, used: int, reaped: int = 0, *, ended: bool = False) -> Running:
        return Running(pid=pid, parent=parent, group=9, threads=1, start=pid, used=used, reaped=reaped, ended=ended)

    sums = {fate: sum(ticks for ticks, of in others if of == fate) for _, fate in others}
    found = [made(3, 2, first, sums.get("was reaped by the first", 0))]
    for i, (ticks, fate) in enumerate(others, 4):
        if fate in ("runs", "waits to be reaped"):
            # An orphan's parent is the worker.
            found.append(made(i, 2 + i % 2, ticks, ended=fate != "runs"))
    watch, first_of_all = Watch(2**30, 1), found[0]
    with pytest.MonkeyPatch.context() as patch:
        known = {2: made(2, 1, 5, earlier), 3: first_of_all}
        patch.setattr(running, "process", known.get)
        assert watch._first_of(known, found[:1]) == first_of_all
        assert watch._spent(first_of_all, known, found[:1]) == first_of_all.used + first_of_all.reaped
        worker = made(2, 1, 7, earlier + sums.get("was reaped by the worker", 0))
        # The kernel's lists of children that come and go may lack one.
        for seen in (found, found[1:]):
            assert watch._first_of({2: worker}, seen) == first_of_all
            assert watch._spent(first_of_all, {2: worker}, seen) == first + sum(ticks for ticks, _ in others)
        del known[3]
        assert watch._first_of({2: worker}, []) is None


@settings(max_examples=20)
@given(st.sets(st.sampled_from(["cpu", "io", "memory", "pids"])), st.booleans())
def test_a_control_group_is_made_where_its_limits_are_delegated(
    tmp_path_factory: pytest.TempPathFactory, controllers: set[str], beside: bool
) -> None:
    root = tmp_path_factory.mktemp("cgroup")
    own = root / "user" / "engine"
    own.mkdir(parents=True)
    (root / "own").write_text("4:memory:/elsewhere\n0::/user/engine\n")
    above = own.parent if beside else own
    (above / "cgroup.subtree_control").write_text(" ".join(sorted(controllers)))
    (above / "cgroup.procs").touch()
    # Of an engine that is gone; no process has this number.
    (above / f"isocompute-{2**22 + 1}-1").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROOT", root)
        patch.setattr(limits, "OWN", root / "own")
        made = limits.make_group()
        assert bool(made) == ({"memory", "pids"} <= controllers)
        assert [str(path) for path in above.glob("isocompute-*")] == [made] or not made
    if made:
        files = {"memory.current": "5000\n", "memory.max": "max", "memory.swap.max": "max", "pids.max": "max"}
        for name, text in {**files, "cgroup.procs": ""}.items():
            (Path(made) / name).write_text(text)
        group = limits.ControlGroup(made)
        group.enter()
        assert group.limit(2**30, processes=34)
        assert (Path(made) / "memory.max").read_text().startswith(str(2**30 + 5000))
        assert (Path(made) / "pids.max").read_text().startswith("34")
    assert not limits.ControlGroup("").limit(2**30, processes=34)


@pytest.mark.parametrize("own", [{"seconds": 0.2, "wall_factor": 5}], indirect=True)
def test_after_two_responses_that_hang_the_others_of_their_group_wait_less(own: Scorer) -> None:
    own.check([EXECUTES])
    hanging = items(*(f"time.sleep(1000 + {i})" for i in range(4)), name=EXECUTES)
    verdicts = own.submit(hanging).result(timeout=60)
    assert [v.error for v in verdicts] == [f"deadline: more than {s} s by the clock" for s in ("1", "1", "0.2", "0.2")]
    # A verdict that may be another next time is scored again; one that is known starts no process.
    breaks = items("raise ValueError", name=EXECUTES)
    verdict = own.submit(breaks).result(timeout=60)
    own.close()
    assert own.submit(breaks).result(timeout=60) == verdict
    assert not own._pools
    assert own.submit(hanging[:1]).result(timeout=60)[0].error
    assert own._pools


def test_processes_are_limited_where_the_kernel_counts_them_by_themselves(executing: Scorer) -> None:
    name, limit = "python:scoring.user_rules:limited", str(PROCESSES)
    alone = counted_alone(executing._pool("exact")._put(lambda process: process.started()).result())
    assert rewards(executing, items(limit, name=name)) == [alone]
    assert not counted_alone({"user": ""})
    assert not counted_alone({"user": f"uid {layers.NOBODY}"})
    plain = Scorer(ScoringConfig(without=("user",), allow_unisolated=True))
    # With the user's others, but not without end.
    assert rewards(plain, items(limit, "-1", name=name)) == [0, 0]
    plain.close()


def test_rules_that_execute_are_refused_without_isolation_unless_allowed() -> None:
    pytest.importorskip("reasoning_gym")
    without, name = ("network", "files", "seccomp"), "reasoning_gym:countdown"
    scorer = Scorer(ScoringConfig(without=without))
    with pytest.raises(RolloutError, match=f"^the verifier {name} may execute what a response says, .* allow_unisol"):
        scorer.check([name])
    with pytest.raises(RolloutError, match="allow_unisolated"):
        scorer.check([EXECUTES])
    scorer.check(["reasoning_gym:gcd"])
    scorer.close()


def test_what_a_child_writes_is_exactly_one_verdict() -> None:
    wrong = (b"1.0\n" * 2, b"1.0\n1", b"", b"\n", b"2.0\n", b"NaN\n", b"true\n", b"[1.0]\n", b'{"reward": 1}\n', b"1.0")
    for line in wrong:
        found = in_a_child(lambda line=line: line, LIMITS)
        assert "not a verdict" in found["error"], line


@pytest.mark.parametrize("reply", [0, 1])
def test_a_scorer_that_always_says_the_same_stops_the_run(reply: int, executing: Scorer, folder: Path) -> None:
    replaced = 'sys.modules["isocompute.rollout.scoring.sandbox.child"]._reply'
    (folder / f"stuck_rules_{reply}.py").write_text(
        f"import sys\nfrom scoring.user_rules import executes\n{replaced} = lambda *_, **__: b'{reply}.0\\n'\n"
    )
    with pytest.raises(RolloutError, match=r"known to be (right|wrong)"):
        rewards(executing, items("answer = 1", name=f"python:stuck_rules_{reply}:executes"))


# Functions of the C library that a response calls, with values that would otherwise give success or another error.
REFUSED = """
setpriority(0, 0, 5); sched_setaffinity(0, 8, b'1' * 8); sched_setscheduler(0, 0, bytes(8)); shmget(0, 4096, 0o1600)
semget(0, 1, 0o1600); msgget(0, 0o1600); personality(0x40000); chmod(b'/nowhere', 0o777); fchmod(0, 0o777)
chown(b'/nowhere', 0, 0); fchown(0, 0, 0); utimensat(-100, b'/nowhere', 0, 0); futimens(0, 0)
setxattr(b'/nowhere', b'user.a', b'1', 1, 0); removexattr(b'/nowhere', b'user.a'); memfd_create(b'a', 0)
socket(1, 1, 0); socket(2, 2, 0); flock(0, 5); unshare(0x10000000); mkdir(b'/nowhere/a', 0o777)
unlink(b'/nowhere/a'); rename(b'/nowhere/a', b'/nowhere/b'); symlink(b'a', b'/nowhere/b'); truncate(b'/nowhere', 0)
mlock(0, 0); ptrace(0, 0, 0, 0); inotify_init(); fcntl(1, 8, 1); fcntl(1, 1031, 65536)
mmap(0, 4096, 3, 0x21, -1, 0); prctl(1, 0, 0, 0, 0); setitimer(2, b'0' * 32, 0); prlimit(0, 7, bytes(16), 0)
"""
WORKING = (
    "import threading; t = threading.Thread(target=int); t.start(); t.join(); answer = 'aa'",
    "import subprocess, sys; answer = subprocess.run([sys.executable, '-c', 'print(\"aa\")'], "
    "capture_output=True, text=True).stdout.strip()",
    "import multiprocessing as m; a, b = m.Pipe(); b.send('aa'); answer = a.recv()",
    "import asyncio; answer = asyncio.run(asyncio.sleep(0, 'aa'))",
    "r, w = os.pipe()\nif not os.fork():\n os.write(w, b'aa'); os._exit(0)\nos.wait()\nanswer = os.read(r, 2).decode()",
    "import numpy; answer = 'aa' * int(numpy.ones((9, 9)).dot(numpy.ones(9)).sum() / 81)",
    "open(os.__file__).read(); os.listdir(os.path.dirname(os.__file__)); open('/dev/null', 'w').close(); answer = 'aa'",
    "import random, decimal, tempfile; resource.getrlimit(resource.RLIMIT_AS); "
    "time.sleep(0.01); os.urandom(4); os.cpu_count(); os.sched_getaffinity(0); answer = 'aa'",
    "signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.01); "
    "signal.pause(); answer = 'aa'",
    "import concurrent.futures as c\nwith c.ThreadPoolExecutor(2) as p: answer = p.submit(str, 'aa').result()",
)


def test_system_calls_that_no_verifier_needs_are_refused_and_others_go_on_working(executing: Scorer) -> None:
    calls = [call.strip().replace("(", "', ", 1).removesuffix(")") for call in REFUSED.replace("\n", ";").split(";")]
    calls = [call for call in calls if call]
    responses = [f"answer = errno.errorcode.get(called('{call}), '0')" for call in calls]
    found = rewards(executing, items(*responses, name=EXECUTES, answer="EPERM"))
    assert [call for call, reward in zip(calls, found, strict=True) if not reward] == []
    assert rewards(executing, items(*WORKING, name=EXECUTES)) == [1] * len(WORKING)


def test_a_layer_that_did_not_hold_is_not_named() -> None:
    state = {"files": "Landlock 7", "network": "namespace", "seccomp": "set", "processes": "namespace", "user": ""}
    refused = dict.fromkeys(ATTEMPTS, "refused")
    assert words("files", state, refused) == "Landlock 7"
    for attempt, (layer, _) in ATTEMPTS.items():
        line = words(layer, {**state, layer: "claimed"}, {**refused, attempt: "done"})
        assert line == f"not shown: a test process could {attempt}"
    # An attempt that was not made shows nothing.
    assert words("network", state, {}).startswith("not shown: ")
    assert words("seccomp", {**state, "seccomp": ""}, refused) == "missing"


def test_the_report_names_what_was_refused_just_now() -> None:
    def named(lines: list[str]) -> dict[str, str]:
        return {line.split(" ")[0]: line.partition(": ")[2] for line in lines}

    before = set(Path(tempfile.gettempdir()).glob("*isocompute*"))
    full = named(report())
    assert set(full) == {"no_new_privs", "user", "network", "processes", "files", "seccomp", "limits:", "rules"}
    assert not [line for line in full.values() if "not shown" in line or "missing" in line], full
    bare = named(report(ScoringConfig(without=LAYERS)))
    assert bare["seccomp"] == bare["network"] == bare["files"] == "missing"
    assert bare["processes"] == "not shown: a test process could signal the engine"
    assert bare["rules"] == "refused, for lack of isolation"
    if os.geteuid() == 0:
        assert full["user"].startswith("uid ")
        assert bare["user"] == "missing: the engine's own user"
    assert set(Path(tempfile.gettempdir()).glob("*isocompute*")) <= before


def test_settings_are_checked_when_they_are_made() -> None:
    assert scoring_from({"seconds": 2, "without": ["user"]}) == ScoringConfig(seconds=2, without=("user",))
    assert scoring_from({"without": "user,files"}).without == ("user", "files")
    assert scoring_from({"readable": "/usr,/bin"}).readable == ("/usr", "/bin")
    for given_settings, message in (
        ({"second": 1}, "scoring has no setting 'second'.*did you mean 'seconds'"),
        ({"memory_bytes": 1}, "scoring.memory_bytes is 1"),
        ({"readable": "nowhere/at/all"}, "scoring.readable names 'nowhere"),
    ):
        with pytest.raises(RolloutError, match=message):
            scoring_from(given_settings)
