"""Time ledgers: charging, opening and summing, merging, importing. The figures depend on the machine.

    python benchmarks/budget/ledgers.py [--charges 1000000] [--ledgers 1000]

Charges go to real files; opening and merging are timed in a separate process, polars included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from isocompute.budget import Counts, Ledger, Limits, Meter

OPEN = """
import sys, time
began = time.perf_counter()
from isocompute.budget import Ledger
with Ledger.open(sys.argv[1], run_id="run", resumed_from=int(sys.argv[2])) as ledger:
    used = ledger.totals.used
print(time.perf_counter() - began, time.process_time(), used.rollouts)
"""

TABLE = """
import sys, time
began = time.perf_counter()
from isocompute.budget import account
sums = account(sys.argv[1:2]).by("cohort")
print(time.perf_counter() - began, time.process_time(), int(sums["rollouts"].sum()))
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
            # 1,000 charges a step, the first of which is synced.
            meter.charge(1 + number // 1000, counts)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early
        timed = charges - tenth
        assert meter.used.rollouts == 32 * charges
    print(
        f"charging {wall / timed * 1e6:6.1f} µs per charge ({cpu / timed * 1e6:.1f} of CPU time), "
        f"{charges:,} charges; memory grew by {grown / 1024:.1f} MiB"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charges", type=int, default=1_000_000)
    parser.add_argument("--ledgers", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.ledger"
        charge(path, arguments.charges)
        last = str(1 + (arguments.charges - 1) // 1000)
        for what, code in (("opening, sums by cohort", OPEN), ("table of sums by cohort", TABLE)):
            for _ in range(3):
                seconds, cpu, rollouts = ran(code, str(path), last)
                assert rollouts == 32 * arguments.charges
                print(f"{what} {seconds:6.2f} s ({cpu:.2f} of CPU time, imports included)")
        small = Path(folder) / "small"
        for number in range(arguments.ledgers):
            with Ledger.open(small / f"{number}.ledger", run_id=f"run{number}") as ledger:
                for step in range(1, 101):
                    ledger.charge(step, {"trained": Counts(rollouts=32), "failed": Counts(rollouts=1)})
        for _ in range(2):
            seconds, runs, rollouts = ran(MERGE, str(small))
            assert (runs, rollouts) == (arguments.ledgers, 3300 * arguments.ledgers)
            print(f"merging {seconds:6.2f} s for {arguments.ledgers:,} ledgers of 100 steps")
        print(f"importing {min(ran(IMPORT)[0] for _ in range(5)):6.3f} s, the best of five")


if __name__ == "__main__":
    main()
