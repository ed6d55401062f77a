"""A run that is killed for real at random moments; ISOCOMPUTE_KILLS asks for more of them."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest
from isocompute.budget import History
from isocompute.budget.contract import tables

pytestmark = pytest.mark.slow("a campaign of kills")

KILLS = int(os.environ.get("ISOCOMPUTE_KILLS", "20"))

RESUMED = """
import json, os, random, signal, sqlite3, sys, time
from pathlib import Path
from isocompute.budget import Counts, Ledger
folder, kills = Path(sys.argv[1]), int(sys.argv[2])

class Slow(sqlite3.Connection):
    # As on a disk that takes a while: in memory a transaction is too short to be killed in.
    def execute(self, sql, *given):
        time.sleep(0.001 * (sql == "COMMIT"))
        return super().execute(sql, *given)

connect = sqlite3.connect
sqlite3.connect = lambda *where, **given: connect(*where, **given, factory=Slow)

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
            saved.with_suffix(".new").write_text(str(step))
            os.replace(saved.with_suffix(".new"), saved)
    ledger.close()

source, last, paid, in_hand, hot = random.Random(22), 3 * kills, 0, [], 0
journal = folder / "killed.ledger-journal"
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
        time.sleep(source.random() / 200)
        os.kill(child, signal.SIGKILL)
    while more := os.read(told, 65536):
        said += more
    os.close(told)
    status = os.waitpid(child, 0)[1]
    if life == kills:
        assert status == 0, status
    hot += journal.exists() and journal.stat().st_size > 0
    acts = said.decode().splitlines()
    paid += sum(int(act[1:]) for act in acts if act[0] == "!")
    in_hand += [int(acts[-1][1:])] if acts and acts[-1][0] == "?" else []
live("undisturbed", os.open(os.devnull, os.O_WRONLY), last)
print(json.dumps({"acknowledged": paid, "in hand": in_hand, "hot": hot}))
"""


def test_a_run_killed_for_real_and_resumed_from_its_checkpoints_has_the_ledger_of_one_left_alone(tmp_path):
    done = subprocess.run([sys.executable, "-c", RESUMED, str(tmp_path), str(KILLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    killed, undisturbed = (History.read(tmp_path / f"{name}.ledger") for name in ("killed", "undisturbed"))
    assert len(killed.resumed_from) > KILLS / 2
    # Kills in the middle of a transaction, which the next attempt undid.
    assert figures["hot"] > KILLS / 20
    assert max(killed.resumed_from) > 0
    # What was acknowledged is there; of a charge that a kill cut short it is not known.
    paid, acknowledged = killed.totals().paid.rollouts, figures["acknowledged"]
    assert acknowledged <= paid <= acknowledged + sum(figures["in hand"])
    assert paid == killed.table()["rollouts"].sum() + killed.lost_work()["rollouts"].sum()
    (charged,) = sqlite3.connect(tmp_path / "killed.ledger").execute("SELECT SUM(rollouts) FROM charges").fetchone()
    assert paid == charged
    files = [
        tables.write(history.table(), "ledger", tmp_path / f"{name}.parquet").read_bytes()
        for name, history in (("killed", killed), ("undisturbed", undisturbed))
    ]
    assert files[0] == files[1]
