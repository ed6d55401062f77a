"""Runs sent to a real MLflow server that goes away and comes back, or answers 503 for a while."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout.contract import tables

from experiments.running import work
from experiments.running.tracker import TABLES, Sender, Tracker
from experiments.running.work import Spool

from .made import cell, evaluation_record, finish, step_record
from .servers import Front, Server

pytestmark = pytest.mark.slow("an MLflow server")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("store"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", running.uri)
    monkeypatch.chdir(tmp_path)
    return running


def runs(experiment: str) -> list[Any]:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient()
    return list(
        client.search_runs([client.get_experiment_by_name(experiment).experiment_id], run_view_type=ViewType.ALL)
    )


def test_what_could_not_be_sent_is_named_and_sent_later(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    from mlflow import MlflowClient

    one, tracker = cell(), Tracker("sweep")
    folder = work.folder_of(one)
    folder.mkdir(parents=True)
    spool = Spool(folder / "metrics.jsonl")
    for step in (1, 2):
        spool.write(step_record(step, reward=0.1 * step))
    tracker.send(one)
    assert not tracker.drain()
    server.kill()
    for step in (3, 4):
        spool.write(step_record(step, reward=0.1 * step))
    spool.write(evaluation_record(4, 0.25))
    finish(folder, one)
    tracker.send(one, finished=True)
    # It would try again, and send to the stores of later tests.
    tracker.close()
    assert Sender().report()
    assert one.name in capsys.readouterr().out
    server.start()
    for _ in range(2):
        assert not Sender().report()
    (run,) = runs("sweep")
    assert run.info.status == "FINISHED"
    history = MlflowClient().get_metric_history(run.info.run_id, "train/reward")
    assert [(m.step, m.value) for m in history] == [(8, 0.1), (16, 0.2), (24, pytest.approx(0.3)), (32, 0.4)]
    assert [m.step for m in MlflowClient().get_metric_history(run.info.run_id, "eval/avg_at_4")] == [32]
    for name in TABLES:
        assert len(tables.read("mlflow:sweep", name)) == 1


def test_answers_of_503_delete_no_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(server.port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", front.uri)
    one = cell()
    folder = work.folder_of(one)
    folder.mkdir(parents=True)
    Spool(folder / "metrics.jsonl").write(step_record(1))
    finish(folder, one)
    first = Tracker("unavailable")
    first.send(one, finished=True)
    assert not first.drain()
    (before,) = runs("unavailable")
    front.refuses = True
    again = Tracker("unavailable")
    again.send(one, finished=True)
    again.drain()
    front.refuses = False
    again.send(one, finished=True)
    again.drain()
    (after,) = runs("unavailable")
    assert (after.info.run_id, after.info.lifecycle_stage) == (before.info.run_id, "active")
    front.stop()
