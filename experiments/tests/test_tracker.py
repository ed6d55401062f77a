"""Runs in MLflow without a server of its own: whose they are, what is in them, and servers that do not answer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.budget.contract import tracking
from isocompute.learner import ResponseStatistics, StepRecord
from isocompute.rollout.contract import tables

from experiments.running import work
from experiments.running.cells import Cell
from experiments.running.tracker import Sender, Tracker
from experiments.running.work import Spool
from experiments.settings import load
from experiments.stages.shared import log

from .made import PARAMS, cell, evaluation_record, finish, step_record
from .servers import Front, silent

pytestmark = pytest.mark.slow("MLflow stores, stages as processes")

ROOT = PARAMS.parent


def trained(one: Cell, *, steps: int = 2) -> Path:
    """A cell that was trained in this folder."""
    folder = work.folder_of(one)
    folder.mkdir(parents=True)
    for step in range(1, steps + 1):
        Spool(folder / "metrics.jsonl").write(step_record(step, reward=0.1 * step))
    Spool(folder / "metrics.jsonl").write(evaluation_record(steps, 0.25))
    finish(folder, one)
    return folder


def send(experiment: str, *cells: Cell) -> None:
    tracker = Tracker(experiment)
    for one in cells:
        tracker.send(one, finished=True)
    tracker.mean(cells)
    assert not tracker.drain()


def runs(experiment: str) -> list[Any]:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient()
    place = client.get_experiment_by_name(experiment).experiment_id
    return list(
        client.search_runs(
            [place], run_view_type=ViewType.ALL, order_by=["attributes.start_time", "attributes.end_time"]
        )
    )


def history(run: Any, metric: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(m.step, round(m.value, 6)) for m in MlflowClient().get_metric_history(run.info.run_id, metric)]


def test_what_another_made_is_neither_deleted_nor_superseded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users of one preset, and the second has one cell more."""
    for folder, cells in (("alice", [cell()]), ("bob", [cell(), cell(seed=8)])):
        (store.parent / folder).mkdir()
        monkeypatch.chdir(store.parent / folder)
        for one in cells:
            trained(one)
        send("sweep", *cells)
    found = runs("sweep")
    assert [run.info.lifecycle_stage for run in found] == ["active"] * 3
    assert not [run for run in found if tracking.SUPERSEDED_TAG in run.data.tags]
    assert len({run.data.tags[tracking.OWNER_TAG] for run in found}) == 2
    # What is the same is read once; what is not is asked for by its owner.
    assert len(tables.read("mlflow:sweep", "evals")) == 2
    alice = found[0].data.tags[tracking.OWNER_TAG]
    assert len(tables.read(f"mlflow:sweep?owner={alice}", "evals")) == 1


def test_results_of_several_owners_are_not_mixed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, seed in (("alice", 7), ("bob", 8)):
        (store.parent / folder).mkdir()
        monkeypatch.chdir(store.parent / folder)
        trained(cell(seed=seed))
        send("sweep", cell(seed=seed))
    with pytest.raises(ValueError, match=r"mlflow:sweep: runs of 2 owners carry different evals .*mlflow:sweep.owner="):
        tables.read("mlflow:sweep", "evals")


def test_an_experiment_means_the_cells_that_were_asked_for_last(store: Path) -> None:
    cells = [cell(seed=seed) for seed in (7, 8)]
    for one in cells:
        trained(one)
    send("sweep", *cells)
    send("sweep", cells[0])
    assert tables.read("mlflow:sweep", "evals")["run_id"].to_list() == [cells[0].run_id]
    # And again, once they are asked for again.
    send("sweep", *cells)
    assert len(tables.read("mlflow:sweep", "evals")) == 2
    assert len(runs("sweep")) == 2


def test_a_run_that_the_user_deleted_is_sent_again(store: Path) -> None:
    from mlflow import MlflowClient

    trained(cell())
    send("sweep", cell())
    (first,) = runs("sweep")
    MlflowClient().delete_run(first.info.run_id)
    send("sweep", cell())
    assert sorted(run.info.lifecycle_stage for run in runs("sweep")) == ["active", "deleted"]


def test_every_run_says_whose_it_is_and_of_what(store: Path) -> None:
    trained(cell())
    send("default-easy-sweep", cell())
    (run,) = runs("default-easy-sweep")
    tags = run.data.tags
    assert tags["isocompute.sweep"] == "default-easy"
    assert tags["mlflow.user"] == run.info.user_id != ""
    assert tags[tracking.OWNER_TAG].startswith(f"{run.info.user_id}-")
    (owner,) = {path.read_text().strip() for path in Path("work").glob("owner")}
    assert tags[tracking.OWNER_TAG].endswith(owner)


def test_metrics_carry_the_time_at_which_they_were_measured(store: Path) -> None:
    from mlflow import MlflowClient

    folder = trained(cell())
    written = [spooled.time for spooled in Spool(folder / "metrics.jsonl").timed()]
    send("sweep", cell())
    (run,) = runs("sweep")
    points = MlflowClient().get_metric_history(run.info.run_id, "train/reward")
    assert [point.timestamp for point in points] == written[:2]
    assert (run.info.start_time, run.info.end_time) == (written[0], written[-1])


def test_what_does_not_change_is_not_logged_and_what_does_is_logged_where_it_does(store: Path) -> None:
    one = cell()
    folder = work.folder_of(one)
    folder.mkdir(parents=True)
    spool = Spool(folder / "metrics.jsonl")
    for step, length in enumerate((5, 5, 5, 9, 9, 9), start=1):
        responses = ResponseStatistics(
            reward=0.0,
            reward_std=float("nan"),
            zero_variance_share=1 / 3 + step * 1e-12,
            truncated_share=0.0,
            response_length=float(length),
        )
        record = StepRecord(
            step=step, rollouts=8 * step, sample_seconds=0.1 * step, update_seconds=0.5, responses=responses
        )
        spool.write(record)
    finish(folder, one)
    # Sent by several processes, and again by the last one.
    for finished in (False, True, True):
        tracker = Tracker("sweep")
        tracker.send(one, finished=finished)
        assert not tracker.drain()
    (run,) = runs("sweep")
    assert set(run.data.metrics) == {"train/reward", "train/response_length", "perf/sample_seconds"}
    # From the last value before a change, and to the last one of all.
    assert history(run, "train/response_length") == [(8, 5), (24, 5), (32, 9), (48, 9)]
    # A reward that stays at 0 is a result.
    assert history(run, "train/reward") == [(8 * step, 0) for step in range(1, 7)]


def test_the_report_and_figures_are_artifacts_and_the_newest_run_is_meant(store: Path) -> None:
    from mlflow import MlflowClient

    preset = load(PARAMS, "smoke")
    report, figure, ledger = Path("report.html"), Path("curves.svg"), Path("ledger.parquet")
    frame = {"run_id": "a", "step": 1, "cohort": "trained", "rollouts": 8, "prompt_tokens": 1, "response_tokens": 1}
    for text in ("first", "second"):
        for path in (report, figure):
            path.write_text(text)
        tables.write(pl.DataFrame([frame]), "ledger", ledger)
        log(preset, "report", {"report": report, "ledger": ledger}, figures=[figure])
        assert not Sender().drain()
    first, second = runs("smoke-report")
    assert tracking.SUPERSEDED_TAG in first.data.tags
    assert {file.path for file in MlflowClient().list_artifacts(second.info.run_id)} == {
        "report.html",
        "ledger.parquet",
        "figures",
    }
    assert len(tables.read("mlflow:smoke-report", "ledger")) == 1
    assert len(tables.read(f"runs:/{first.info.run_id}", "ledger")) == 1
    # A whole store is a source, too.
    assert len(tables.read(f"sqlite:///{store}", "ledger")) == 1


POLLS = """
from experiments.running import work
from experiments.running.tracker import Tracker
from experiments.tests.made import cell

tracker = Tracker("sweep")
for _ in range(100):
    tracker.send(cell())
tracker.send(cell(), finished=True)
"""


def test_a_server_that_never_answers_holds_nobody_up(store: Path) -> None:
    trained(cell())
    with silent() as address:
        # A process of its own, with which its thread ends: here that would send to the stores of later tests.
        polled = subprocess.run(
            [sys.executable, "-c", POLLS],
            timeout=120,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "MLFLOW_TRACKING_URI": address,
                "MLFLOW_HTTP_REQUEST_TIMEOUT": "3600",
            },
        )
    assert polled.returncode == 0
    assert not Sender().drain()
    assert [run.info.status for run in runs("sweep")] == ["FINISHED"]


def test_mlflows_own_client_makes_first_contact_and_no_message_has_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front()
    address = front.uri.replace("//", "//alice:open%20sesame@")
    with pytest.raises(tracking.TrackingError) as refused:
        tracking.ensure_store(address)
    assert front.asked
    assert all(path.startswith("/api/") for path in front.asked)
    front.stop()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://alice:open%20sesame@127.0.0.1:9")
    for source in (
        "mlflow:sweep",
        "http://alice:open%20sesame@127.0.0.1:9",
        "postgresql://alice:open@sesame@no.where/db",
    ):
        with pytest.raises(ValueError, match=r".") as unread:
            tables.read(source, "evals")
        assert "sesame" not in str(unread.value) + str(refused.value)
