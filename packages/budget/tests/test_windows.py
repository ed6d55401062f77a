"""The package on a system that is not POSIX: Windows, or Linux without what Windows lacks."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("an interpreter that is started")

# Windows has no fcntl and not these calls; its locks are those of its C library, for which Linux' own stand in.
AS_ON_WINDOWS = """
# subprocess first: it takes a system with msvcrt for Windows.
import fcntl, os, struct, subprocess, sys, types
real = fcntl
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("pwrite", "pread", "fchmod", "fork", "register_at_fork"):
    delattr(os, name)
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_UNLCK, msvcrt.LK_LOCK, msvcrt.LK_NBLCK = range(3)
def locking(handle, mode, size):
    kind = real.F_UNLCK if mode == msvcrt.LK_UNLCK else real.F_WRLCK
    here = os.lseek(handle, 0, os.SEEK_CUR)
    assert here + size <= 2**31 - 1
    real.fcntl(handle, real.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, here, size, 0))
msvcrt.locking = locking
sys.modules["msvcrt"] = msvcrt
"""

LEDGER = """
import sys
from isocompute.budget import Counts, History, Ledger, LedgerError, Limits, Meter
with Ledger.open("a.ledger", run_id="a") as ledger:
    meter = Meter(ledger, Limits(rollouts=64))
    for step in (1, 2):
        assert meter.admit(step, 32)
        meter.charge(step, {"trained": Counts(rollouts=32)})
    assert not meter.admit(3, 32)
    assert History.read("a.ledger").totals().used.rollouts == 64
    try:
        Ledger.open("a.ledger", run_id="a", resumed_from="last")
    except LedgerError as error:
        assert "another writer has this ledger open" in str(error), error
    else:
        raise AssertionError("two writers")
with Ledger.open("a.ledger", run_id="a", resumed_from=1) as ledger:
    assert ledger.totals.paid.rollouts == 64
# Metering a run loads nothing heavy.
assert not {"polars", "numpy", "torch", "ray", "mlflow"} & set(sys.modules)
from isocompute.budget.cli import main
assert main(["show", "a.ledger"]) == 0
assert main(["plan", "--rollouts", "1e5", "--max-batch", "1024"]) == 0
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="its locks are no stand-in for those of Windows")
def test_ledgers_are_kept_without_posix(tmp_path):
    code = LEDGER if sys.platform == "win32" else AS_ON_WINDOWS + LEDGER
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "paid 64 of 64 rollouts" in done.stdout
