import subprocess
import sys
from importlib import import_module

import pytest


def test_importing_the_package_loads_neither_torch_nor_ray_nor_mlflow_nor_matplotlib() -> None:
    code = (
        "import sys, isocompute.frontier; "
        "print([m for m in ('torch', 'ray', 'mlflow', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("figures", ["all_figures", "curve_panels", "frontier", "n_star", "b_p_star", "trade", "sensitivity_panels"]),
        ("ingest", ["ADAPTERS", "Adapter", "Layout", "Run", "Settings", "ingest"]),
        ("simulation", ["Simulation"]),
        ("tables", ["read", "write", "check"]),
        ("tracking", ["fetch", "log_artifacts", "TrackingError"]),
    ],
)
def test_public_addresses_hold_what_they_are_for(module: str, names: list[str]) -> None:
    found = import_module(f"isocompute.frontier.{module}")
    assert [name for name in names if not hasattr(found, name)] == []
