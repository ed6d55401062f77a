"""The file of a ledger when the disk, the file system, another program or a person gets in its way."""

import errno
import fcntl
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Timer

import pytest
from isocompute.budget import Counts, History, Ledger, LedgerError
from isocompute.budget.ledger import fold, store

STEP = {"trained": Counts(rollouts=32, response_tokens=480)}
MANY = [(step, STEP) for step in range(1, 400)]
HELD = float(os.environ.get("ISOCOMPUTE_HELD_SECONDS", "0.5"))
CUTS = int(os.environ.get("ISOCOMPUTE_JOURNALS", "50"))


def used(path):
    return History.read(path).totals().used.rollouts


def charged(path):
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
    return path


def test_a_charge_is_synced_without_a_write_ahead_log_and_one_file_is_left(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        asked = [
            ledger._store.read(lambda sql, name=name: sql.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("journal_mode", "synchronous")
        ]
        ledger.charge(1, STEP)
    assert asked == ["truncate", 2]
    assert list(tmp_path.iterdir()) == [path]
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA journal_mode = wal").fetchone() == ("wal",)
    other.execute("SELECT * FROM run").fetchall()
    monkeypatch.setattr(store, "WAIT", 0.1)
    with pytest.raises(LedgerError, match="another program has held a lock on it"):
        Ledger.open(path, run_id="run", resumed_from=1)
    other.close()
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        assert ledger.used.rollouts == 32


def reading(path):
    """Another program in the middle of reading."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN")
    other.execute("SELECT * FROM run").fetchall()
    return other


def test_a_reader_that_holds_its_lock_too_long_is_named_and_nothing_is_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "WAIT", 0.1)
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        other = reading(path)
        with pytest.raises(
            LedgerError, match=r"step 1 is not counted: another program has held a lock .* 0\.1 seconds"
        ):
            ledger.charge(1, STEP)
        assert ledger.used == Counts()
        other.close()
        ledger.charge(1, STEP)
    assert used(path) == 32


@pytest.mark.slow
def test_a_reader_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "WAIT", HELD + 60)
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        other = reading(ledger.path)
        Timer(HELD, other.close).start()
        began = time.monotonic()
        ledger.charge(1, STEP)
        assert time.monotonic() - began >= HELD
        assert ledger.used.rollouts == 32


class Dies(BaseException):
    """The process dies here."""


def crash_points(path, into):
    """Copies of a ledger's files at every 50th statement of a large charge, which SQLite has written in part."""
    copies, statements = [], count()

    def copied(statement):
        if next(statements) % 50:
            return
        copies.append(into / f"{len(copies)}.ledger")
        shutil.copy(path, copies[-1])
        with suppress(FileNotFoundError):
            shutil.copy(f"{path}-journal", f"{copies[-1]}-journal")

    def act(sql):
        sql.execute("PRAGMA cache_size = 1")
        sql.set_trace_callback(copied)
        fold.charge(sql, 1, MANY, 0.0)
        sql.set_trace_callback(None)
        raise Dies

    with Ledger.open(path, run_id="run", resumed_from=0) as ledger, pytest.raises(Dies):
        ledger._store.write("it", act)
    return copies


@pytest.fixture
def hot(tmp_path):
    """A ledger whose writer was killed in the middle of its second charge, when much of it was in the file."""
    copy = crash_points(charged(tmp_path / "a.ledger"), tmp_path)[-1]
    assert copy.stat().st_size > (tmp_path / "a.ledger").stat().st_size
    return copy


def journal_of(path):
    return path.with_name(f"{path.name}-journal")


@pytest.mark.slow
def test_a_charge_that_was_cut_short_anywhere_is_undone_by_whoever_opens_the_file(tmp_path):
    copies = crash_points(charged(tmp_path / "a.ledger"), tmp_path)
    assert len(copies) > 20
    for path in copies:
        assert History.read(path).totals().paid.rollouts == 32
        with Ledger.open(path, run_id="run", resumed_from=0) as ledger:
            ledger.charge(1, STEP)
            assert (ledger.used.rollouts, ledger.lost.rollouts) == (32, 32)
    assert not list(tmp_path.glob("*-*"))


@pytest.mark.slow
def test_a_journal_of_which_a_power_cut_left_a_part_changes_nothing(tmp_path, hot):
    """Before the journal is whole on the disk, SQLite has not touched the file."""
    journal, source = journal_of(hot).read_bytes(), random.Random(3)
    for number in range(CUTS):
        path = tmp_path / f"cut-{number}.ledger"
        shutil.copy(tmp_path / "a.ledger", path)
        blocks = [journal[k : k + 512] for k in range(0, source.randint(0, len(journal)), 512)]
        journal_of(path).write_bytes(b"".join(source.choice((block, bytes(len(block)))) for block in blocks))
        assert used(path) == 0
        assert History.read(path).totals().paid.rollouts == 32


def test_what_is_left_half_done_where_nothing_may_be_written_is_said(hot):
    # Root may write anywhere, and nobody may see what is below a folder of root.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "a.ledger"
        for before, after in ((hot, path), (journal_of(hot), journal_of(path))):
            shutil.copy(before, after)
            after.chmod(0o444)
        folder.chmod(0o555)
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            if not os.getuid():
                os.setuid(65534)
            try:
                History.read(path)
            except LedgerError as error:
                os.write(tell, str(error).encode())
            os._exit(0)
        os.close(tell)
        said = os.read(told, 1000).decode()
        os.close(told)
        os.waitpid(child, 0)
        folder.chmod(0o755)
        assert said.startswith(
            f"{path}: a process was killed while it charged, and what it left half-done, in a.ledger-"
        )
        assert used(path) == 0


@pytest.mark.parametrize("most", [4_096, 32_000, 80_000])
def test_a_full_disk_charges_nothing_and_leaves_the_ledger_whole(tmp_path, most):
    path = charged(tmp_path / "a.ledger")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        # What does not fit into memory is written before the end.
        ledger._store.read(lambda sql: sql.execute("PRAGMA cache_size = 1"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises(LedgerError, match=r"it is not counted: cannot be read or written \(disk I/O error"):
                ledger._store.write("it", partial(fold.charge, attempt=2, parts=MANY * 4, device_seconds=0.0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.used.rollouts == 32
        ledger.charge(2, STEP)
    assert used(path) == 64


@pytest.mark.slow
def test_a_fork_may_not_charge_and_neither_keeps_the_ledger_locked_nor_unlocks_it(tmp_path):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    told, tell = os.pipe()
    wait, release = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            ledger.charge(1, STEP)
        except LedgerError as error:
            said = f"{error} {used(path)}"
        ledger.close()
        os.write(tell, said.encode())
        os.close(release)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    said = os.read(told, 1000).decode()
    assert f"was opened by process {os.getpid()} and is used by its fork {child}" in said
    assert said.endswith(" 32")
    # What the fork closed is still its owner's.
    with pytest.raises(LedgerError, match="another writer"):
        Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    assert ledger.used.rollouts == 64
    ledger.close()
    with Ledger.open(path, run_id="run", resumed_from=1) as again:
        assert again.used.rollouts == 64
    os.close(release)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_fork_in_the_middle_of_another_threads_charge_changes_nothing(tmp_path):
    ledger, charging = Ledger.open(tmp_path / "a.ledger", run_id="run"), True

    def charge():
        step = 0
        while charging:
            step += 1
            ledger.charge(step, STEP)
            # Whoever charges without a pause lets nobody fork.
            time.sleep(0.001)
        return step

    def fork():
        child = os.fork()
        if not child:
            # The end of an interpreter closes what is left of SQLite.
            ledger._store._sql.close()
            os._exit(used(ledger.path) % 32)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ledger, ThreadPoolExecutor(1) as pool:
        charges = pool.submit(charge)
        forks = [fork() for _ in range(10)]
        charging = False
        assert forks == [0] * 10
        assert used(ledger.path) == charges.result() * 32
    with closing(sqlite3.connect(ledger.path)) as sql:
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_noticed(tmp_path, replaced):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    path.unlink()
    if replaced:
        shutil.copy(charged(tmp_path / "b.ledger"), path)
    with pytest.raises(LedgerError, match=r"a\.ledger: was removed or replaced"):
        ledger.charge(2, STEP)
    assert ledger.used.rollouts == 32
    ledger.close()
    with Ledger.open(tmp_path / "c.ledger", run_id="run") as other:
        other.charge(1, STEP)
        other.path.unlink()
        with pytest.raises(LedgerError, match=r"c\.ledger: was removed or replaced"):
            other.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LedgerError, match=r"a\.ledger: .*no locks"):
        Ledger.open(tmp_path / "a.ledger", run_id="run")


STORM = """
import os, signal, sys
from isocompute.budget import Counts, History, Ledger
armed = False
def interrupt(*_):
    if armed:
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
ledger = Ledger.open(sys.argv[1], run_id="run")
made = interrupted = 0
os.write(1, b".")
while interrupted < 100:
    try:
        armed = True
        ledger.charge(1 + made // 50, {"trained": Counts(rollouts=1), "failed": Counts(rollouts=1)})
        armed = False
        made += 1
    except KeyboardInterrupt:
        armed = False
        interrupted += 1
        assert ledger.used == History.read(sys.argv[1]).totals().used
signal.signal(signal.SIGINT, signal.SIG_IGN)
ledger.close()
print(made, interrupted, ledger.used.rollouts)
"""


@pytest.mark.slow
def test_a_storm_of_interrupts_leaves_the_file_readable_and_the_counts_those_of_the_file(tmp_path):
    path = tmp_path / "a.ledger"
    process = subprocess.Popen([sys.executable, "-c", STORM, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(process.stdout.fileno(), 1)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.0005)
    out, error = process.communicate()
    assert process.returncode == 0, error.decode()
    made, interrupted, of_ledger = map(int, out.split())
    # A charge that was interrupted may have been made; one that returned was.
    assert 2 * made <= of_ledger <= 2 * (made + interrupted)
    assert used(path) == of_ledger
    with Ledger.open(path, run_id="run", resumed_from=1) as again:
        assert again.totals.paid.rollouts == of_ledger


def test_a_path_that_holds_no_ledger_is_refused_and_stays(tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    sqlite3.connect(tmp_path / "other").executescript("CREATE TABLE a (b)")
    (tmp_path / "text").write_text("neither a ledger nor a database\n")
    (tmp_path / "torn").write_bytes(charged(tmp_path / "a.ledger").read_bytes()[:-9_000])
    (tmp_path / "a.ledger").unlink()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    for path, said in (
        (tmp_path / "empty", "is empty, which a ledger never is"),
        (tmp_path / "pipe", "special file"),
        (tmp_path / "other", "an SQLite database of something else"),
        (tmp_path / "text", "not a ledger$"),
        (tmp_path / "torn", r"is damaged \(.*sqlite3 torn \.recover"),
        (tmp_path / "empty" / "a.ledger", "Not a directory|File exists"),
        (tmp_path, "it is a folder"),
    ):
        for opened in (partial(Ledger.open, run_id="run"), History.read):
            with pytest.raises(LedgerError, match=said):
                opened(path)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "hardlink_to"), (store, "_connected")])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_ledger_that_dies_in_its_creation_is_not_there_or_whole(tmp_path, monkeypatch, owner, name, moment):
    path = tmp_path / "a.ledger"
    real = getattr(owner, name)

    def die(*arguments, **named):
        if moment == "after":
            real(*arguments, **named)
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(owner, name, die)
        # The dead remove nothing.
        dying.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(Dies):
            Ledger.open(path, run_id="run")
    if path.exists():
        assert not History.read(path).totals().paid
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
    assert used(path) == 32


def test_a_lock_whose_file_was_removed_while_it_was_taken_is_taken_again(tmp_path, monkeypatch):
    path, real = tmp_path / "a.ledger", store._lock
    beside = tmp_path / "a.ledger-lock"

    def ended(handle):
        real(handle)
        monkeypatch.undo()
        beside.unlink()

    monkeypatch.setattr(store, "_lock", ended)
    with Ledger.open(path, run_id="run"), pytest.raises(LedgerError, match="another writer"):
        Ledger.open(path, run_id="run")
    assert list(tmp_path.iterdir()) == [path]
