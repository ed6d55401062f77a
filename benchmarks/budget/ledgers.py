"""Time ledgers: charging, opening and summing, merging, importing. The figures depend on the machine.

    python benchmarks/budget/ledgers.py [--charges 2000] [--inserted 10000000] [--ledgers 1000]

Charges go to real files; opening and merging are timed in a separate process, polars included.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from isocompute.budget import Counts, Ledger, Limits, Meter

OPEN = """
import resource, sys, time
began = time.perf_counter()
from isocompute.budget import Ledger
with Ledger.open(sys.argv[1], run_id="run", resumed_from="last") as ledger:
    used = ledger.totals.used
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - began, time.process_time(), memory, used.rollouts)
"""

TABLE = """
import resource, sys, time
began = time.perf_counter()
from isocompute.budget import account
sums = account(sys.argv[1:2]).by("cohort")
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - began, time.process_time(), memory, int(sums["rollouts"].sum()))
"""

MERGE = """
import sys, time
began = time.perf_counter()
from isocompute.budget import account
found = account(sys.argv[1:])
print(time.perf_counter() - began, found.ledger["run_id"].n_unique(), int(found.by("cohort")["rollouts"].sum()))
"""

IMPORT = """
import time
began = time.perf_counter()
import isocompute.budget
print(time.perf_counter() - began)
"""


def ran(code: str, *arguments: str) -> list[float]:
    """The numbers that a separate process printed."""
    out = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout
    return [float(word) for word in out.split()]


def charge(path: Path, charges: int) -> None:
    """Charge many times, and print how long it took and whether memory grew."""
    counts = {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)}
    with Ledger.open(path, run_id="run") as ledger:
        meter = Meter(ledger, Limits(rollouts=10**12))
        tenth = charges // 10
        for number in range(charges):
            if number == tenth:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                began, cpu = time.perf_counter(), time.process_time()
            meter.charge(1 + number, counts)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early
        timed = charges - tenth
        assert meter.used.rollouts == 32 * charges
    print(
        f"charging {wall / timed * 1e3:6.2f} ms per charge, synced ({cpu / timed * 1e3:.2f} of CPU time), "
        f"{charges:,} charges; memory grew by {grown / 1024:.1f} MiB"
    )


def insert(path: Path, charges: int) -> None:
    """Insert many charges at once, 1,000 to a step: what charging them one by one comes to."""
    Ledger.open(path, run_id="run").close()
    counted = "SUM(rollouts), SUM(prompt_tokens), SUM(response_tokens)"
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute(
            "INSERT INTO charges WITH RECURSIVE n (k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k < ? - 1) "
            "SELECT 1, 1 + k / 1000, 'trained', 32, 320, 480, NULL FROM n",
            (charges,),
        )
        sql.execute(f"INSERT INTO sums SELECT 0, step, cohort, attempt, {counted} FROM charges GROUP BY step")
        sql.execute(f"INSERT INTO totals SELECT 0, cohort, {counted} FROM sums")
        sql.execute("UPDATE run SET last_step = (SELECT MAX(step) FROM sums)")
        sql.execute("UPDATE attempts SET charges = ?", (charges,))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charges", type=int, default=2_000)
    parser.add_argument("--inserted", type=int, default=10_000_000)
    parser.add_argument("--ledgers", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        charge(Path(folder) / "charged.ledger", arguments.charges)
        path = Path(folder) / "large.ledger"
        insert(path, arguments.inserted)
        print(f"a file of {path.stat().st_size / 2**20:,.0f} MiB with {arguments.inserted:,} charges")
        for what, code in (("opening, sums by cohort", OPEN), ("table of sums by cohort", TABLE)):
            for _ in range(3):
                seconds, cpu, memory, rollouts = ran(code, str(path))
                assert rollouts == 32 * arguments.inserted
                print(f"{what} {seconds:6.2f} s ({cpu:.2f} of CPU time, {memory / 1024:.0f} MiB, imports included)")
        small = Path(folder) / "small"
        for number in range(arguments.ledgers):
            with Ledger.open(small / f"{number}.ledger", run_id=f"run{number}") as ledger:
                ledger.charge(1, {"trained": Counts(rollouts=3200), "failed": Counts(rollouts=100)}, shares=(1,) * 100)
        for _ in range(2):
            seconds, runs, rollouts = ran(MERGE, str(small))
            assert (runs, rollouts) == (arguments.ledgers, 3300 * arguments.ledgers)
            print(f"merging {seconds:6.2f} s for {arguments.ledgers:,} ledgers of 100 steps")
        print(f"importing {min(ran(IMPORT)[0] for _ in range(5)):6.3f} s, the best of five")


if __name__ == "__main__":
    main()
