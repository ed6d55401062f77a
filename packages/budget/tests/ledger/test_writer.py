"""The file of a ledger when the disk, the file system or a person gets in its way."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from isocompute.budget import Counts, History, Ledger, LedgerError, Limits
from isocompute.budget.ledger import frames

STEP = {"trained": Counts(rollouts=32, response_tokens=480)}


def refuse(monkeypatch, number, *, what="fsync"):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, what, fail)


def test_after_a_failed_sync_nothing_is_charged_and_a_new_writer_counts_the_retry_once(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
        before = path.read_bytes()
        with monkeypatch.context() as disk:
            refuse(disk, errno.EIO)
            with pytest.raises(LedgerError, match=r"step 2 .*not counted"):
                ledger.charge(2, STEP)
        assert path.read_bytes() == before
        assert ledger.used.rollouts == 32
        # The disk works again, but it is not known which earlier charges it lost.
        for again in (lambda: ledger.charge(2, STEP), ledger.sync, lambda: ledger.note_limits(Limits(rollouts=9))):
            with pytest.raises(LedgerError, match=r"no more charges.*synced"):
                again()
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        ledger.charge(2, STEP)
        assert ledger.used.rollouts == ledger.totals.paid.rollouts == 64


def test_what_lies_past_the_watermark_is_written_again_when_the_file_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    synced = path.stat().st_size
    ledger.charge(1, STEP)
    end = path.stat().st_size
    with monkeypatch.context() as disk:
        refuse(disk, errno.EIO)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.sync()
    with pytest.raises(LedgerError, match="takes no more charges"):
        ledger.charge(1, STEP)
    ledger.close()
    written = []

    def spy(handle, data, position, write=os.pwrite):
        written.append((position, position + len(data)))
        return write(handle, data, position)

    monkeypatch.setattr(os, "pwrite", spy)
    with Ledger.open(path, run_id="run", resumed_from=1) as again:
        assert written[0] == (synced, end)
        assert again.used.rollouts == 64


def test_a_record_that_cannot_be_taken_back_is_said_to_be_uncertain(tmp_path, monkeypatch):
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        ledger.charge(1, STEP)
        with monkeypatch.context() as disk:
            refuse(disk, errno.EIO)
            refuse(disk, errno.EIO, what="ftruncate")
            with pytest.raises(LedgerError, match="may be counted or not"):
                ledger.charge(2, STEP)
        with pytest.raises(LedgerError, match="takes no more charges"):
            ledger.charge(2, STEP)


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
            said = str(error)
        ledger.close()
        os.write(tell, said.encode())
        os.close(release)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    said = os.read(told, 1000).decode()
    assert f"was opened by process {os.getpid()} and is used by its fork {child}" in said
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


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_noticed_at_the_next_sync(tmp_path, replaced):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    path.unlink()
    if replaced:
        Ledger.open(path, run_id="run").close()
    with pytest.raises(LedgerError, match=r"a\.ledger: was removed"):
        ledger.charge(2, STEP)
    assert ledger.used.rollouts == 32
    with pytest.raises(LedgerError, match=r"no more charges.*removed"):
        ledger.charge(1, STEP)
    ledger.close()


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
while interrupted < 300:
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
    made, interrupted, used = map(int, out.split())
    # A charge that was interrupted may have been made; one that returned was.
    assert 2 * made <= used <= 2 * (made + interrupted)
    assert History.read(path).totals().used.rollouts == used
    assert History.read(path).torn_bytes == 0
    with Ledger.open(path, run_id="run", resumed_from=1) as again:
        assert again.totals.paid.rollouts == used


def test_a_path_that_holds_no_ledger_is_refused_and_stays(tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "empty", "is empty, which a ledger never is"),
        (tmp_path / "pipe", "special file"),
        (tmp_path / "empty" / "a.ledger", "Not a directory|File exists"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(LedgerError, match=said):
            Ledger.open(path, run_id="run")
    assert not (tmp_path / "empty").stat().st_size
    assert (tmp_path / "pipe").is_fifo()


class Dies(BaseException):
    """The process dies here."""


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "hardlink_to"), (os, "ftruncate"), (os, "pwrite")])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_ledger_that_dies_in_its_creation_is_not_there_or_whole(tmp_path, monkeypatch, owner, name, moment):
    path = tmp_path / "a.ledger"
    real = getattr(owner, name)

    def die(*arguments):
        if moment == "after":
            real(*arguments)
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(owner, name, die)
        # The dead remove nothing.
        dying.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(Dies):
            Ledger.open(path, run_id="run")
    if path.exists():
        assert path.stat().st_size >= frames.HEAD_BYTES
        assert not History.read(path).totals().paid
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
    assert History.read(path).totals().used.rollouts == 32


def test_of_two_who_create_a_ledger_at_once_one_has_it(tmp_path, monkeypatch):
    path, real = tmp_path / "a.ledger", Path.hardlink_to
    first = []

    def second(*arguments):
        monkeypatch.undo()
        first.append(Ledger.open(path, run_id="run"))
        real(*arguments)

    monkeypatch.setattr(Path, "hardlink_to", second)
    with pytest.raises(LedgerError, match="another writer"):
        Ledger.open(path, run_id="run")
    first[0].charge(1, STEP)
    first[0].close()
    assert History.read(path).totals().used.rollouts == 32
    assert list(tmp_path.iterdir()) == [path]
