"""The ledger under faults at random places; ISOCOMPUTE_FAULTS and ISOCOMPUTE_KILLS ask for more of them."""

import json
import os
import random
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from isocompute.budget import Counts, History, Ledger
from isocompute.budget.contract import tables
from isocompute.budget.ledger import frames, writer

pytestmark = pytest.mark.slow("a campaign of faults and kills")

FAULTS = int(os.environ.get("ISOCOMPUTE_FAULTS", "1000"))
KILLS = int(os.environ.get("ISOCOMPUTE_KILLS", "20"))
POWER_CUTS = FAULTS // 10


class Killed(BaseException):
    """The process dies here."""


class FaultyOs:
    """The os module, until the process dies in one of the calls that change a file."""

    def __init__(self):
        self.source = random.Random(0)
        self.calls_left = -1

    def __getattr__(self, name):
        return getattr(os, name)

    def dies(self):
        self.calls_left -= 1
        return self.calls_left == 0

    def pwrite(self, handle, data, position):
        if self.dies():
            # Anything from nothing to all of the record may have reached the file; the watermark is too small to be
            # written in part.
            whole = position == frames.WATERMARK_AT
            written = self.source.choice((0, len(data))) if whole else self.source.randint(0, len(data))
            os.pwrite(handle, data[:written], position)
            raise Killed
        return os.pwrite(handle, data, position)

    def fsync(self, handle):
        if self.dies():
            raise Killed

    def ftruncate(self, handle, size):
        if self.dies():
            if self.source.random() < 0.5:
                os.ftruncate(handle, size)
            raise Killed
        os.ftruncate(handle, size)


@dataclass
class Known:
    """A driver's knowledge of its ledger: the attempts that began, and the charges that were acknowledged."""

    resumed_from: list = field(default_factory=list)
    charges: list = field(default_factory=list)

    @property
    def survived(self):
        return [c for c in self.charges if all(c[1] <= resumed for resumed in self.resumed_from[c[0] :])]

    @property
    def last_step(self):
        return max((step for _, step, _ in self.survived), default=0)


def sum_of(charges):
    return sum((rollouts for _, _, rollouts in charges), 0)


def live_and_die(path, known, source, faulty):
    """One life of a driver: open, charge, die. Return the charge that was in hand, if any."""
    faulty.calls_left = source.randint(1, 20)
    resumed = source.randint(0, known.last_step)
    ledger = in_hand = None
    try:
        ledger = Ledger.open(path, run_id="run", resumed_from=resumed)
        attempt = ledger.attempt
        known.resumed_from += [resumed] * (attempt - len(known.resumed_from))
        step = resumed
        while True:
            step += 1
            for _ in range(source.randint(1, 3)):
                in_hand = (attempt, step, source.randint(1, 10**6))
                ledger.charge(step, {"trained": Counts(rollouts=in_hand[2])})
                known.charges.append(in_hand)
                in_hand = None
    except Killed:
        if ledger is not None:
            # The kernel closes what a dead process had open, which also lets go of the lock.
            writer.close_handle(ledger._writer._handle)
    return in_hand, resumed


def test_what_was_acknowledged_is_there_wherever_the_process_dies(tmp_path, monkeypatch):
    source = random.Random(20)
    faulty = FaultyOs()
    monkeypatch.setattr(writer, "os", faulty)
    known = Known()
    path = tmp_path / "0.ledger"
    torn = 0
    for fault in range(FAULTS):
        if fault % 25 == 0:
            known, path = Known(), tmp_path / f"{fault}.ledger"
        in_hand, resumed = live_and_die(path, known, source, faulty)
        # It may have died before there was a ledger.
        history = History.read(path) if path.exists() else History.decode(frames.head(), "nothing")
        torn += history.torn_bytes > 0
        # An attempt's own record may have reached the file although the process died before it was told.
        known.resumed_from += [resumed] * (len(history.resumed_from) - len(known.resumed_from))
        assert list(history.resumed_from) == known.resumed_from
        paid = history.totals().paid.rollouts
        if in_hand is not None and paid != sum_of(known.charges):
            known.charges.append(in_hand)
        assert paid == sum_of(known.charges)
        assert history.totals().used.rollouts == sum_of(known.survived)
    assert torn > FAULTS / 20


class Disk:
    """A disk that loses power, and leaves of each block that was not synced, the old content or the new."""

    BLOCK = 64

    def __init__(self):
        self.synced = {}

    def fsync(self, handle):
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode):
            # The handle may be for writing only.
            self.synced[found.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def cut(self, path, source):
        new = path.read_bytes()
        old = self.synced[path.stat().st_ino]
        new = new[: source.randint(len(old), len(new))]
        old += bytes(len(new) - len(old))
        blocks = range(0, len(new), self.BLOCK)
        return b"".join(source.choice((old, new))[b : b + self.BLOCK] for b in blocks)


def test_after_a_power_cut_everything_synced_is_there_and_nothing_is_invented(tmp_path, monkeypatch):
    source, disk = random.Random(23), Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    torn = 0
    for cut in range(POWER_CUTS):
        path = tmp_path / f"{cut // 3}.ledger"
        ledger = Ledger.open(path, run_id="run", resumed_from=0)
        torn += ledger.torn_bytes > 0
        sums = [ledger.totals.paid.rollouts]
        for step in range(1, source.randint(2, 6)):
            for charge in range(source.randint(1, 5)):
                ledger.charge(step, {"trained": Counts(rollouts=source.randint(1, 99))})
                sums.append(ledger.totals.paid.rollouts)
                if charge == 0:
                    synced = sums[-1]
        left = disk.cut(path, source)
        ledger.close()
        path.write_bytes(left)
        paid = History.read(path).totals().paid.rollouts
        assert paid in sums
        assert paid >= synced
    assert torn > POWER_CUTS / 8


RESUMED = """
import json, os, random, signal, sys
from pathlib import Path
from isocompute.budget import Counts, Ledger
folder, kills = Path(sys.argv[1]), int(sys.argv[2])

def live(name, tell, last):
    # Charges, evaluates and saves checkpoints, from the last checkpoint to a step; what is about to be charged is told.
    path, saved = folder / f"{name}.ledger", folder / f"{name}.saved"
    done = int(saved.read_text()) if saved.exists() else 0
    ledger = Ledger.open(path, run_id="run", resumed_from=done)

    def charge(step, cohort, rollouts):
        os.write(tell, b"?%d\\n" % rollouts)
        ledger.charge(step, {cohort: Counts(rollouts=rollouts, response_tokens=step)})
        os.write(tell, b"!%d\\n" % rollouts)

    for step in range(done, last + 1):
        if step > done:
            charge(step, "trained", 30 + step % 7)
            charge(step, "failed", 1 + step % 3)
        if step % 5 == 0:
            charge(step, "eval", 100)
        if step % 4 == 0:
            ledger.sync()
            saved.with_suffix(".new").write_text(str(step))
            os.replace(saved.with_suffix(".new"), saved)
    ledger.close()

source, last, paid, in_hand = random.Random(22), 3 * kills, 0, []
for life in range(kills + 1):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        live("killed", tell, last)
        os._exit(0)
    os.close(tell)
    said, wanted = b"", source.randint(1, 60) if life < kills else 10**9
    while said.count(b"\\n") < wanted and (more := os.read(told, 1)):
        said += more
    if life < kills:
        os.kill(child, signal.SIGKILL)
    while more := os.read(told, 65536):
        said += more
    os.close(told)
    status = os.waitpid(child, 0)[1]
    if life == kills:
        assert status == 0, status
    acts = said.decode().splitlines()
    paid += sum(int(act[1:]) for act in acts if act[0] == "!")
    in_hand += [int(acts[-1][1:])] if acts and acts[-1][0] == "?" else []
live("undisturbed", os.open(os.devnull, os.O_WRONLY), last)
print(json.dumps({"acknowledged": paid, "in hand": in_hand}))
"""


def test_a_run_killed_for_real_and_resumed_from_its_checkpoints_has_the_ledger_of_one_left_alone(tmp_path):
    done = subprocess.run([sys.executable, "-c", RESUMED, str(tmp_path), str(KILLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    killed, undisturbed = (History.read(tmp_path / f"{name}.ledger") for name in ("killed", "undisturbed"))
    assert len(killed.resumed_from) > KILLS / 2
    assert max(killed.resumed_from) > 0
    # What was acknowledged is there; of a charge that a kill cut short it is not known.
    paid, acknowledged = killed.totals().paid.rollouts, figures["acknowledged"]
    assert acknowledged <= paid <= acknowledged + sum(figures["in hand"])
    assert paid == killed.table()["rollouts"].sum() + killed.lost_work()["rollouts"].sum()
    files = [
        tables.write(history.table(), "ledger", tmp_path / f"{name}.parquet").read_bytes()
        for name, history in (("killed", killed), ("undisturbed", undisturbed))
    ]
    assert files[0] == files[1]
