import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("an interpreter that is started")

CODE = """
import os, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
if hasattr(os, "fchmod"):
    del os.fchmod
import polars as pl
from isocompute.frontier.contract import store, tables, tracking
from isocompute.frontier.cli import main
rows = [
    {"run_id": f"r{n}", "step": s, "rollouts": s * 8 * n, "tokens": s * 80 * n, "rollouts_per_problem": n,
     "problems_per_batch": 8, "seed": 0, "problem_set": "easy", "split": "validation", "questions": 300, "samples": 4,
     "avg_at_4": 0.3 + 0.4 * (1 - 2.718 ** (-s * n / 400))}
    for n in (4, 16) for s in range(0, 400, 20)
]
tables.write(pl.DataFrame(rows), "evals", "evals.parquet")
assert tables.read("evals.parquet", "evals").height == 40
assert callable(main)
"""


def test_tables_are_read_and_written_without_posix(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
