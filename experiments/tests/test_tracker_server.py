"""Runs sent to a real MLflow server that goes away and comes back."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout.contract import tables

from experiments.running import work
from experiments.running.cells import Cell
from experiments.running.spool import Spool
from experiments.running.tracker import TABLES, Tracker

from .made import cell, evaluation_record, step_record


class Server:
    """An MLflow server on one port and one database, started and killed at will."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db",
             "--artifacts-destination", str(self._folder / "artifacts"), "--port", str(self.port), "--workers", "1"],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while True:
            assert self._process.poll() is None
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "store").mkdir()
    running = Server(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", running.uri)
    running.start()
    yield running
    running.kill()


def finish(folder: Path, one: Cell) -> None:
    """Write the tables of a finished cell."""
    rows = {
        "evals": {
            "run_id": one.run_id, "step": 0, "rollouts": 0, "tokens": 0, "rollouts_per_problem": 4,
            "problems_per_batch": 2, "seed": 7, "problem_set": "easy", "split": "validation", "questions": 8,
            "samples": 4, "avg_at_4": 0.25,
        },
        "ledger": {
            "run_id": one.run_id, "step": 1, "cohort": "trained", "rollouts": 8, "prompt_tokens": 32,
            "response_tokens": 40,
        },
        "pass_rates": {"run_id": one.run_id, "step": 0, "problem_id": "p", "successes": 1, "samples": 4},
        "timings": {"run_id": one.run_id, "step": 1, "phase": "sample", "seconds": 0.1, "device_seconds": 0.1},
    }  # fmt: skip
    for name in TABLES:
        tables.write(pl.DataFrame([rows[name]]), name, folder / f"{name}.parquet")
    nothing = {"rollouts": 0, "prompt_tokens": 0, "response_tokens": 0}
    work.set_done(folder, work.Done(rollouts=one.rollouts, step=4, diverged_at=None, paid=nothing, lost=nothing))


def test_what_could_not_be_sent_is_named_and_sent_later(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, folder = cell(), tmp_path / "cell"
    folder.mkdir()
    spool, tracker = Spool(folder / "metrics.jsonl"), Tracker("sweep")
    for step in (1, 2):
        spool.write(step_record(step, reward=0.1 * step))
    tracker.send(one, folder)
    assert not tracker.unsent
    server.kill()
    for step in (3, 4):
        spool.write(step_record(step, reward=0.1 * step))
    spool.write(evaluation_record(4, 0.25))
    finish(folder, one)
    tracker.send(one, folder, finished=True)
    tracker.close([one], {one.run_id: folder})
    assert one.name in capsys.readouterr().out
    server.start()
    again = Tracker("sweep")
    for _ in range(2):
        again.send(one, folder, finished=True, wait=True)
    assert not again.unsent
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(8, 0.1), (16, 0.2), (24, pytest.approx(0.3)), (32, 0.4)]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "avg_at_4")] == [32]
    for name in TABLES:
        assert len(tables.read("mlflow:sweep", name)) == 1
