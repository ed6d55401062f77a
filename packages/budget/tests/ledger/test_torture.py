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
from isocompute.budget.ledger import frames, writer
from isocompute.budget.ledger import writer as writer_module

pytestmark = pytest.mark.slow("a campaign of faults and kills")

FAULTS = int(os.environ.get("ISOCOMPUTE_FAULTS", "10000"))
KILLS = int(os.environ.get("ISOCOMPUTE_KILLS", "50"))
POWER_CUTS = FAULTS // 20


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
    """What a driver knows of its ledger: the attempts that began, and the charges that were acknowledged."""

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
    monkeypatch.setattr(writer_module, "os", faulty)
    known = Known()
    path = tmp_path / "0.ledger"
    acknowledged = in_file_unacknowledged = torn = 0
    for fault in range(FAULTS):
        if fault % 25 == 0:
            known, path = Known(), tmp_path / f"{fault}.ledger"
        before = len(known.charges)
        in_hand, resumed = live_and_die(path, known, source, faulty)
        acknowledged += len(known.charges) - before
        # It may have died before there was a ledger.
        history = History.read(path) if path.exists() else History.decode(frames.head(), "nothing")
        torn += history.torn_bytes > 0
        # An attempt's own record may have reached the file although the process died before it was told.
        known.resumed_from += [resumed] * (len(history.resumed_from) - len(known.resumed_from))
        assert list(history.resumed_from) == known.resumed_from
        paid = history.totals().paid.rollouts
        if in_hand is not None and paid != sum_of(known.charges):
            known.charges.append(in_hand)
            in_file_unacknowledged += 1
        assert paid == sum_of(known.charges)
        assert history.totals().used.rollouts == sum_of(known.survived)
    assert torn > FAULTS / 20
    print(
        f"\n{FAULTS:,} faults: {acknowledged:,} charges acknowledged, all there; {torn:,} torn tails dropped; "
        f"{in_file_unacknowledged:,} charges reached the file before they were acknowledged"
    )


class Disk:
    """What a power cut may leave of a file: of each block that was not synced, the old content or the new."""

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


REAL = """
import json, os, random, signal, sys
from isocompute.budget import Counts, History, Ledger
path, kills = sys.argv[1], int(sys.argv[2])
source = random.Random(22)
acknowledged = extra = paid = 0
for kill in range(kills):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        ledger = Ledger.open(path, run_id="run", resumed_from=0)
        for n in range(1, 10**9):
            ledger.charge(1 + n // 50, {"trained": Counts(rollouts=n), "failed": Counts(rollouts=1)})
            os.write(tell, b".")
    os.close(tell)
    count, wanted = 0, source.randint(1, 400)
    while count < wanted:
        count += len(os.read(told, wanted - count))
    os.kill(child, signal.SIGKILL)
    while more := os.read(told, 65536):
        count += len(more)
    os.close(told)
    os.waitpid(child, 0)
    now = History.read(path).totals().paid.rollouts
    expected = [sum(range(1, n + 1)) + n for n in (count, count + 1)]
    assert now - paid in expected, (kill, now - paid, expected)
    extra += now - paid == expected[1]
    acknowledged += count
    paid = now
with Ledger.open(path, run_id="run", resumed_from=0) as ledger:
    assert ledger.totals.paid.rollouts == paid
    assert ledger.attempt == kills + 1
print(json.dumps({"acknowledged": acknowledged, "unacknowledged": extra}))
"""


def test_what_was_acknowledged_is_there_after_real_kills(tmp_path):
    arguments = [sys.executable, "-c", REAL, str(tmp_path / "a.ledger"), str(KILLS)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["acknowledged"] >= KILLS
    print(
        f"\n{KILLS} kills of a writer: {figures['acknowledged']:,} charges acknowledged, all there; "
        f"{figures['unacknowledged']} reached the file before they were acknowledged"
    )
