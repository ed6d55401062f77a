"""The file of a ledger when the disk, the file system or a person gets in its way."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from isocompute.budget import Counts, History, Ledger, LedgerError, Limits

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


def test_a_sync_that_fails_before_a_checkpoint_is_not_forgiven(tmp_path, monkeypatch):
    ledger = Ledger.open(tmp_path / "a.ledger", run_id="run")
    ledger.charge(1, STEP)
    ledger.charge(1, {"eval": Counts(rollouts=8)})
    with monkeypatch.context() as disk:
        refuse(disk, errno.EIO)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.sync()
    with pytest.raises(LedgerError, match="takes no more charges"):
        ledger.charge(1, STEP)
    ledger.close()
    assert History.read(ledger.path).totals() == ledger.totals


def test_what_lies_past_the_watermark_is_written_again_when_the_file_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    ledger.charge(1, STEP)
    synced = path.stat().st_size
    ledger.charge(1, STEP)
    end = path.stat().st_size
    with monkeypatch.context() as disk:
        refuse(disk, errno.EIO)
        with pytest.raises(LedgerError):
            ledger.sync()
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
def test_a_fork_may_not_charge_and_does_not_keep_the_ledger_locked(tmp_path):
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
        os.write(tell, said.encode())
        os.close(release)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    said = os.read(told, 1000).decode()
    assert f"was opened by process {os.getpid()} and is used by its fork {child}" in said
    ledger.charge(1, STEP)
    assert ledger.used.rollouts == 64
    ledger.close()
    # The fork still has the file open.
    with Ledger.open(path, run_id="run", resumed_from=1) as again:
        assert again.used.rollouts == 64
    os.close(release)
    os.waitpid(child, 0)


ORPHAN = """
import os, signal, sys, time
from isocompute.budget import Counts, Ledger, LedgerError
ledger = Ledger.open(sys.argv[1], run_id="run")
ledger.charge(1, {"trained": Counts(rollouts=32)})
if not os.fork():
    for act in (lambda: ledger.charge(2, {"trained": Counts(rollouts=32)}), ledger.sync):
        try:
            act()
        except LedgerError as error:
            assert "is used by its fork" in str(error), error
        else:
            raise AssertionError("a fork has written")
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
    os._exit(0)
signal.pause()
"""


@pytest.mark.slow
def test_a_fork_does_not_hold_the_ledger_of_an_owner_that_was_killed(tmp_path):
    path = tmp_path / "a.ledger"
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdout=subprocess.PIPE) as owner:
        child = int(owner.stdout.readline())
        try:
            owner.kill()
            owner.wait()
            with Ledger.open(path, run_id="run", resumed_from=1) as again:
                assert again.totals.paid.rollouts == 32
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_a_program_that_was_started_does_not_hold_the_ledger(tmp_path):
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, run_id="run")
    listing = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'))"
    code = f"import os, sys\nif os.path.isdir('/proc/self/fd'): {listing}"
    found = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True, check=True)
    assert "a.ledger" not in found.stdout
    ledger.close()


@pytest.mark.slow
def test_a_fork_that_closes_the_ledger_leaves_it_to_its_owner(tmp_path):
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        child = os.fork()
        if not child:
            ledger.close()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LedgerError, match="another writer"):
            Ledger.open(path, run_id="run")
        ledger.charge(1, STEP)


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


def test_a_torn_end_is_told_when_the_ledger_is_opened(tmp_path, caplog):
    path = tmp_path / "a.ledger"
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
        assert ledger.torn_bytes == 0
    assert not caplog.records
    with path.open("ab") as stream:
        stream.write(bytes(70) + b"more than one record of anything" * 9)
    torn = 70 + 32 * 9
    assert History.read(path).torn_bytes == torn
    with Ledger.open(path, run_id="run", resumed_from=1) as ledger:
        assert ledger.torn_bytes == torn
    assert f"a.ledger: {torn} bytes at its end were torn and are dropped" in caplog.text
    assert History.read(path).torn_bytes == 0


def test_steps_charged_in_turn_cost_a_sync_each_and_not_one_a_charge(tmp_path, monkeypatch):
    syncs = []
    sync = os.fsync
    with Ledger.open(tmp_path / "a.ledger", run_id="run") as ledger:
        monkeypatch.setattr(os, "fsync", lambda handle: syncs.append(handle) or sync(handle))
        for _ in range(20):
            for step in (1, 2, 3):
                ledger.charge(step, STEP)
        assert len(syncs) == 3
    assert History.read(tmp_path / "a.ledger").totals().used.rollouts == 20 * 3 * 32


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
