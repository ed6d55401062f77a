import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("an interpreter that is started")


def test_importing_the_package_loads_neither_torch_nor_ray_nor_mlflow_nor_matplotlib() -> None:
    code = (
        "import sys, isocompute.frontier; "
        "print([m for m in ('torch', 'ray', 'mlflow', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
