import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("interpreters that are started")


def test_metering_a_run_loads_nothing_heavy(tmp_path):
    code = (
        "import sys; from isocompute.budget import *\n"
        f"meter = Meter(Ledger.open({str(tmp_path / 'a')!r}, run_id='a'), Limits(rollouts=8))\n"
        "meter.admit(1, 8); meter.charge(1, {'trained': Counts(rollouts=8)}); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"polars", "numpy", "torch", "ray", "mlflow"} & set(loaded)
