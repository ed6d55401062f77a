"""Runs in MLflow without a server: what an experiment means, and a server that does not answer."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from isocompute.budget.contract import tracking
from isocompute.rollout.contract import tables


def test_an_experiment_means_its_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    written = tmp_path / "ledger.parquet"
    frame = {"run_id": "a", "step": 1, "cohort": "trained", "rollouts": 8, "prompt_tokens": 1, "response_tokens": 1}
    tables.write(pl.DataFrame([frame]), "ledger", written)
    first = tracking.log_artifacts("results", {"ledger": written}, supersede=True)
    tracking.log_artifacts("results", {"ledger": written}, supersede=True)
    # Twice the same key would be refused: only the newer run is read.
    assert len(tables.read("mlflow:results", "ledger")) == 1
    assert len(tables.read(f"runs:/{first}", "ledger")) == 1
    # A whole store is a source too.
    assert len(tables.read(f"sqlite:///{tmp_path}/mlflow.db", "ledger")) == 1


def test_an_unreachable_server_is_one_clear_error_at_the_start(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "experiments", "repro"], capture_output=True, text=True, check=False,
        env={**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("error: the MLflow server at http://127.0.0.1:9 does not answer")
    assert "Traceback" not in run.stderr
