"""Real processes, really killed."""

import os
import random
import signal
import subprocess
import sys

from isocompute.budget import History
from isocompute.budget.contract import tables

RUN = """
import os, sys
from pathlib import Path
from isocompute.budget import Counts, Ledger
path, saved = Path(sys.argv[1]), Path(sys.argv[1] + ".saved")
done = int(saved.read_text()) if saved.exists() else 0
def save(step):
    Path(f"{saved}.new").write_text(str(step))
    os.replace(f"{saved}.new", saved)
def do(act, *arguments):
    os.read(0, 1)  # until it may
    act(*arguments)
    os.write(1, b".")
with Ledger.open(path, run_id="run", resumed_from=done) as ledger:
    for step in range(done, 61):
        if step > done:
            do(ledger.charge, step, {"trained": Counts(rollouts=32, response_tokens=400 + step)})
        if step % 5 == 0:
            do(ledger.charge, step, {"eval": Counts(rollouts=100, response_tokens=step)})
        if step % 4 == 0:
            do(save, step)
"""


def start(code, path, stdin=subprocess.DEVNULL):
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=stdin, stdout=subprocess.PIPE)


def kill_after(process, size):
    """Kill a process once it has written ``size`` bytes; return everything that it wrote."""
    written = b""
    while len(written) < size and (more := os.read(process.stdout.fileno(), size - len(written))):
        written += more
    process.send_signal(signal.SIGKILL)
    written += process.stdout.read()
    process.wait()
    process.stdout.close()
    return written


def test_a_run_killed_again_and_again_ends_with_the_ledger_of_one_left_alone(tmp_path):
    left_alone, killed = tmp_path / "a.ledger", tmp_path / "b.ledger"
    with start(RUN, left_alone) as process:
        process.stdout.read()
    assert process.returncode == 0
    moments = random.Random(2)
    deaths = 0
    while True:
        process = start(RUN, killed, subprocess.PIPE)
        acts = moments.randrange(1, 40)
        # It dies somewhere in the act after those it is waited for.
        process.stdin.write(b"." * (acts + 1))
        process.stdin.flush()
        kill_after(process, acts)
        process.stdin.close()
        if process.returncode == 0:
            break
        deaths += 1
    assert deaths >= 2
    files = [
        tables.write(History.read(path).table(), "ledger", path.with_suffix(".parquet"))
        for path in (left_alone, killed)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    lost = History.read(killed).lost_work()
    assert History.read(killed).totals().paid.rollouts == 60 * 32 + 13 * 100 + lost["rollouts"].sum()
