"""Runs in MLflow: whose they are, what is in them, and servers that refuse or never answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget.trainers.doctor import ingest
from isocompute.frontier import Frontier
from isocompute.learner import ResponseStatistics, StepRecord
from isocompute.rollout import tracking as rollout_tracking
from isocompute.rollout.contract import tables, tracking
from mlflow import MlflowClient
from mlflow.entities import Metric, ViewType

from experiments import report
from experiments.running import cell_folder, tracker
from experiments.running.cell_folder import Spool, Spooled
from experiments.running.cells import Cell
from experiments.running.tracker import TABLES, Changes, Parcel, Sender, Tracker, log
from experiments.settings import load
from experiments.stages import frontier

from .made import PARAMS, ROOT, cell, evaluated, evaluation_record, finish, keep, spent, step_record

pytestmark = pytest.mark.slow("MLflow stores and servers")


def points(values: list[float], changes: Changes) -> list[Metric]:
    spooled = [
        Spooled(id=i, record=StepRecord(step=i, rollouts=8 * i, sample_seconds=value, update_seconds=0.5), time=i)
        for i, value in enumerate(values, start=1)
    ]
    return [point for each in spooled for point in changes.of(each)]


@given(values=st.lists(st.sampled_from([0.0, 1.0, 2.0]), max_size=30))
def test_lines_between_the_points_show_what_was_measured(values: list[float]) -> None:
    changes = Changes()
    found = points(values, changes)
    # Taken again, as after a rewind, the same steps add nothing.
    assert not points(values, changes)
    assert {point.key for point in found} == ({"perf/sample_seconds"} if len(set(values)) > 1 else set())
    if found:
        steps = 8.0 * np.arange(1, len(values) + 1)
        drawn = np.interp(steps, [point.step for point in found], [point.value for point in found])
        assert drawn.tolist() == values
        # Of what was the same until then, the ends.
        same = values.index(next(value for value in values if value != values[0]))
        assert len(found) == len(values) - same + min(same, 2)


def trained(one: Cell, *records: StepRecord, ended: bool = True) -> Path:
    """A cell that was trained in this folder: two steps, if nothing else is given."""
    folder = cell_folder.folder_of(one)
    folder.mkdir(parents=True)
    for record in records or [step_record(step, reward=0.1 * step) for step in (1, 2)]:
        Spool(folder).write(record)
    if ended:
        Spool(folder).write(evaluation_record(2, 0.25))
        finish(folder, one)
    return folder


def send(experiment: str, *cells: Cell) -> None:
    tracker = Tracker(experiment)
    for one in cells:
        tracker.send(one, finished=True)
    tracker.mean(cells)
    assert not tracker.drain()


def runs(experiment: str) -> list[Any]:
    client = MlflowClient()
    place = client.get_experiment_by_name(experiment).experiment_id
    order = ["attributes.start_time", "attributes.end_time"]
    return list(client.search_runs([place], run_view_type=ViewType.ALL, order_by=order))


def experiment(name: str) -> Any:
    return MlflowClient().get_experiment_by_name(name)


def points_of(run: Any, metric: str) -> list[Any]:
    return list(MlflowClient().get_metric_history(run.info.run_id, metric))


def history(run: Any, metric: str) -> list[tuple[int, float]]:
    return [(m.step, round(m.value, 6)) for m in points_of(run, metric)]


def test_what_another_made_is_neither_deleted_nor_superseded_nor_mixed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users of one preset: the second has one cell more, and then both have other cells."""
    for experiment, alices, bobs in (("sweep", [7], [7, 8]), ("others", [7], [8])):
        for folder, seeds in (("alice", alices), ("bob", bobs)):
            (store.parent / folder).mkdir(exist_ok=True)
            monkeypatch.chdir(store.parent / folder)
            for seed in seeds:
                if not cell_folder.folder_of(cell(seed=seed)).exists():
                    trained(cell(seed=seed))
            send(experiment, *(cell(seed=seed) for seed in seeds))
    found = runs("sweep")
    assert [run.info.lifecycle_stage for run in found] == ["active"] * 3
    assert not [run for run in found if tracking.SUPERSEDED_TAG in run.data.tags]
    assert len({run.data.tags[tracking.OWNER_TAG] for run in found}) == 2
    # What is the same is read once; what is not is asked for by its owner.
    assert len(tables.read("mlflow:sweep", "evals")) == 2
    alice = found[0].data.tags[tracking.OWNER_TAG]
    assert len(tables.read(f"mlflow:sweep?owner={alice}", "evals")) == 1
    said = r"mlflow:others: runs of 2 owners carry different evals .*mlflow:others.owner="
    with pytest.raises(ValueError, match=said):
        tables.read("mlflow:others", "evals")


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
    # One that the user deleted is sent again.
    MlflowClient().delete_run(runs("sweep")[0].info.run_id)
    send("sweep", *cells)
    assert sorted(run.info.lifecycle_stage for run in runs("sweep")) == ["active", "active", "deleted"]


def test_every_run_says_whose_it_is_and_of_what_and_when_it_was_measured(store: Path) -> None:
    written = [spooled.time for spooled in Spool(trained(cell())).since()]
    send("default-easy-sweep", cell())
    (run,) = runs("default-easy-sweep")
    tags = run.data.tags
    assert tags["isocompute.sweep"] == "default-easy"
    assert tags[tracking.OWNER_TAG] == f"{run.info.user_id}-{Path('work/owner').read_text().strip()}"
    assert [point.timestamp for point in points_of(run, "train/reward")] == written[:2]
    assert (run.info.start_time, run.info.end_time) == (written[0], written[-1])
    # By which charts are grouped, and what whoever opens the experiment reads.
    assert (tags["n"], run.data.params["rollouts_per_problem"]) == ("4", "4")
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("easy", "p")
    described = experiment("default-easy-sweep").tags
    assert "group the runs by their tag `n`" in described[tracker.NOTE_TAG]
    assert described["mlflow.experimentKind"] == "custom_model_development"
    (shown,) = json.loads(described[tracker.VIEW_TAG])["groupBy"]["groupByKeys"]
    assert run.data.params[shown["groupByData"]] == "4"


@pytest.mark.usefixtures("short_chains")
def test_the_run_of_a_fit_says_its_answer_and_is_sorted_by_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "sections", lambda *_: [])
    rows = []
    for n, gain in ((4, 0.2), (8, 0.4)):
        for seed in (7, 8):
            one = cell(seed=seed, rollouts_per_problem=n)
            scores = ((step, 0.2 + gain * (1 - 0.8**step)) for step in range(0, 96, 32 // n))
            rows += [evaluated(one, step, score, questions=300) for step, score in scores]
    sweep = cell_folder.OUT / "sweep" / "easy"
    keep(sweep, "evals", *rows)
    keep(sweep, "ledger", spent("a", 1), spent("a", 1, cohort="pilot", rollouts=16))
    frontier.run(load(PARAMS, "smoke"), "easy")
    assert not Sender().drain()
    (run,) = runs("smoke-easy-frontier")
    found = run.data.metrics
    assert (found["n_star"], found["spent_rollouts"]) == (8, 24)
    assert found["reward_low"] < found["reward"] < found["reward_high"]
    assert 0 <= found["expected_regret"] < found["probability_best"] <= 1
    note = run.data.tags[tracker.NOTE_TAG]
    assert note == experiment("smoke-easy-frontier").tags[tracker.NOTE_TAG]
    out, hashed = cell_folder.OUT / "frontier" / "easy", run.data.tags[f"{rollout_tracking.INPUT_TAG}evals"]
    for part in (Frontier.load(out).answer().headline(), "- problem set: easy", "- base model: base", "- commit: "):
        assert part in note
    assert hashed[:19] in (out / "report.html").read_text()


def test_what_does_not_change_is_not_logged_and_what_does_is_logged_where_it_does(store: Path) -> None:
    parts = {"reward": 0.0, "reward_std": float("nan"), "truncated_share": 0.0}
    records = []
    for step, length in enumerate((5.0, 5.0, 5.0, 9.0, 9.0, 9.0), start=1):
        said = ResponseStatistics(**parts, response_length=length, zero_variance_share=1 / 3 + step * 1e-12)
        took = {"sample_seconds": 0.1 * step, "update_seconds": 0.5}
        records.append(StepRecord(step=step, rollouts=8 * step, responses=said, **took))
    trained(cell(), *records)
    # Sent by several processes, and again by the last one.
    for finished in (False, True, True):
        tracker = Tracker("sweep")
        tracker.send(cell(), finished=finished)
        assert not tracker.drain()
    (run,) = runs("sweep")
    logged = {"train/reward", "train/response_length", "perf/sample_seconds"}
    assert {name for name in run.data.metrics if not name.startswith(("eval", "perf/evaluate"))} == logged
    # The first and the last value before it changed, and all since.
    assert history(run, "train/response_length") == [(8, 5), (24, 5), (32, 9), (40, 9), (48, 9)]
    # A reward that stays at 0 is a result.
    assert history(run, "train/reward") == [(8 * step, 0) for step in range(1, 7)]


def test_a_run_that_diverged_has_failed(store: Path) -> None:
    folder = trained(cell())
    cell_folder.set_done(folder, cell_folder.Done(rollouts=24, step=2, diverged_at=3))
    send("sweep", cell())
    (run,) = runs("sweep")
    assert (run.info.status, run.data.tags["isocompute.status"]) == ("FAILED", "diverged")


def test_the_report_and_figures_are_artifacts_and_the_newest_run_is_meant(store: Path) -> None:
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
    artifacts = {file.path for file in MlflowClient().list_artifacts(second.info.run_id)}
    assert artifacts == {"report.html", "ledger.parquet", "figures"}
    assert len(tables.read("mlflow:smoke-report", "ledger")) == 1
    assert len(tables.read(f"runs:/{first.info.run_id}", "ledger")) == 1
    # A whole store is a source, too.
    assert len(tables.read(f"sqlite:///{store}", "ledger")) == 1


def test_a_request_that_hangs_does_not_hold_the_end_of_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    answered, sent = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        # So long that the test ends where it would be waited for, too.
        answered.wait(10)
        sent.set()

    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(rollout_tracking, "ensure_store", lambda: None)
    monkeypatch.setattr(tracker.Delivery, "send", hang)
    sender = Sender()
    sender.put(Parcel(experiment="e", key="k", name="uploaded", folder=str(tmp_path), ended=1))
    assert sender.report()
    assert not sent.is_set()
    assert "uploaded" in capsys.readouterr().out
    answered.set()
    assert sent.wait(10)


@contextmanager
def unavailable() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that says 503, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.refuse)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_what_could_not_be_sent_is_named_without_a_password_and_sent_later_to_the_run_that_is_there(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, tracker = cell(), Tracker("sweep")
    folder = trained(one, ended=False)
    tracker.send(one)
    assert not tracker.drain()
    (before,) = runs("sweep")
    for step in (3, 4):
        Spool(folder).write(step_record(step, reward=0.1 * step))
    Spool(folder).write(evaluation_record(4, 0.25))
    finish(folder, one)
    with unavailable() as (address, asked):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//alice:open%20sesame@"))
        refused = Tracker("sweep")
        refused.send(one, finished=True)
        assert refused.report()
    # MLflow's own client makes first contact.
    assert asked
    assert all(path.startswith("/api/") for path in asked)
    messages = [refused.reason, capsys.readouterr().out]
    assert one.name in messages[-1]
    for source in ("http://alice:open%20sesame@127.0.0.1:9", "postgresql://alice:open@sesame@no.where/db"):
        with pytest.raises(ValueError, match=r".") as unread:
            tables.read(source, "evals")
        messages.append(str(unread.value))
    assert "sesame" not in "".join(messages)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    for _ in range(2):
        assert not Sender().report()
    (run,) = runs("sweep")
    assert (run.info.run_id, run.info.lifecycle_stage, run.info.status) == (before.info.run_id, "active", "FINISHED")
    assert history(run, "train/reward") == [(8, 0.1), (16, 0.2), (24, 0.3), (32, 0.4)]
    assert history(run, "eval/avg_at_4") == [(32, 0.25)]
    for name in TABLES:
        assert len(tables.read("mlflow:sweep", name)) == 1


FIXTURES = ROOT / "packages" / "budget" / "tests" / "fixtures"
QUESTIONS = {"questions": "400"}


def test_verl_from_mlflow_is_verl_from_its_file(store: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{store}")
    mlflow.set_experiment("verl")
    config = json.loads((FIXTURES / "verl" / "config.json").read_text())
    with mlflow.start_run():
        # As veRL logs: nested settings joined by slashes, @ written out.
        nested = {f"data/{name}": config["data"][name] for name in ("train_batch_size", "seed")}
        actor = {"rollout/n": 4, "actor/ppo_mini_batch_size": 8}
        mlflow.log_params({**nested, **{f"actor_rollout_ref/{name}": value for name, value in actor.items()}})
        for line in (FIXTURES / "verl" / "run.jsonl").read_text().splitlines():
            entry = json.loads(line)
            metrics = {key.replace("@", "_at_"): value for key, value in entry["data"].items()}
            mlflow.log_metrics(metrics, step=entry["step"])
    logged, _ = ingest("verl", ["mlflow:verl"], constants=QUESTIONS)
    written, _ = ingest(
        "verl", [str(FIXTURES / "verl" / "run.jsonl")], config=FIXTURES / "verl" / "config.json", constants=QUESTIONS
    )
    for column in ("step", "rollouts", "tokens", "seed", "avg_at_4", "best_at_4_biased"):
        assert logged[column].to_list() == written[column].to_list()
