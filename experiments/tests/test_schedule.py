"""Cells on Ray workers: what they share, what happens when a worker dies, and who stops whom.

The workers have no engine and no learner (``soak/stub.py``); ``test_cell.py`` asks what those do with a cell.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from isocompute.learner import StepRecord
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.running import cell_folder, schedule
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell, Generation, Surroundings, problems_hash
from experiments.running.cluster import Stopped
from experiments.running.measure import check_agreement, measure
from experiments.running.schedule import Pool, Schedule, workers
from experiments.settings import Preset, load

from .made import SAMPLING, cell, origin_of, smoke, sums
from .soak.stub import StubActor

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("cluster")]

PROBLEMS = sums(12, 8)


@pytest.fixture(scope="module")
def home(cluster: None, empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work folder with a base model and an MLflow store."""
    folder = tmp_path_factory.mktemp("scheduled")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "faults.json").write_text(json.dumps({"deaths": 0, "fails": [], "kills": [], "step_seconds": 0.01}))
    shutil.copyfile(empty_store, folder / "mlflow.db")
    smoke(folder, {"sampling": SAMPLING, "resources": {"workers": 2, "sampler": "transformers"}})
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setattr(schedule, "WorkerActor", StubActor)
        # A stub loads nothing that could be compared.
        patch.setattr(schedule, "check", lambda loaded, **expected: None)
        yield folder


@pytest.fixture(scope="module")
def preset(home: Path) -> Preset:
    return load(home / "params.yaml", "smoke")


@pytest.fixture(scope="module")
def pool(home: Path, preset: Preset) -> Iterator[Pool]:
    with workers(preset, {cell_folder.content_hash(home / "model"): str(home / "model")}) as opened:
        yield opened


@pytest.fixture
def make(home: Path, preset: Preset) -> Any:
    origin = origin_of(
        base=cell_folder.content_hash(home / "model"),
        problems=problems_hash(PROBLEMS),
        generation=Generation.of(preset),
        surroundings=Surroundings.of(preset.resolved_resources()),
    )
    return lambda **changes: cell(origin=origin, **changes)


def run(cells: list[Cell], pool: Pool, experiment: str) -> str:
    """Schedule cells, and return what was said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        schedule = Schedule(cells, {problems_hash(PROBLEMS): PROBLEMS}, pool, experiment, title="cells")
        schedule.finish()
        assert not schedule.tracker.drain()
    return said.getvalue()


def noted(one: Cell) -> list[str]:
    """What workers did with a cell and its first evaluation, in order."""
    lines = [line.split() for line in Path("work/attempts").read_text().splitlines()]
    return [what for what, name, _ in lines if name in (one.run_id, one.baseline_id)]


@contextlib.contextmanager
def once_under_way(one: Cell, act: Callable[[], object]) -> Iterator[None]:
    """Do something meanwhile, when a cell has taken a few slow steps."""
    faults = Path("faults.json")
    before = faults.read_text()
    faults.write_text(json.dumps({**json.loads(before), "step_seconds": 0.1}))

    def wait() -> None:
        while len(Spool(cell_folder.folder_of(one)).records()) < 6:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()
    faults.write_text(before)


def mlflow_runs(experiment: str) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def test_one_first_evaluation_serves_all_n_of_a_seed(make: Any, pool: Pool) -> None:
    cells = [make(rollouts_per_problem=n, seed=21) for n in (2, 4)]
    # As the worker leaves it where vLLM is asked, too.
    cell_folder.write_json(cell_folder.baseline_of(cells[0]) / cell_folder.BESIDE_VLLM, {"maximum": 3e-6})
    said = run(cells, pool, "shared")
    assert "2 cells: 0 finished, 0 continued, 2 from the base model" in said
    assert [noted(one) for one in cells] == [["start", "begun", "finished"]] * 2
    assert mlflow_runs("shared")["base, seed 21"].data.metrics["health/vllm_maximum"] == 3e-6
    assert "cells: base: vLLM's log-probabilities are those of the sampler, up to 3e-06 nats" in said
    assert "2 cells: 2 finished" in run(cells, pool, "shared")


def test_a_cell_whose_worker_was_killed_goes_on_on_another(make: Any, pool: Pool) -> None:
    one = make(seed=41)
    opened = {slot.index: slot.actor.open.remote(pool.config) for slot in pool.actors.members if slot.ready}
    processes = {index: process for index, (_, process) in zip(opened, ray.get([*opened.values()]), strict=True)}

    def kill() -> None:
        for slot in pool.running:
            os.kill(processes[slot.index], signal.SIGKILL)

    with once_under_way(one, kill):
        said = run([one], pool, "killed")
    assert "it continues on another one" in said
    assert noted(one) == ["start", "begun", "begun", "finished"]
    # From its checkpoint, each step once.
    records = Spool(cell_folder.folder_of(one)).records()
    assert [record.step for record in records if isinstance(record, StepRecord)] == list(range(1, 13))


def test_a_cell_saves_its_state_on_a_signal_and_goes_on_from_there(make: Any, pool: Pool) -> None:
    one = make(seed=43, rollouts=192)
    folder = cell_folder.folder_of(one)
    with (
        once_under_way(one, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Stopped, match="stopped by SIGTERM"),
    ):
        run([one], pool, "stopped")
    assert cell_folder.done(folder) is None
    before = int(cell_folder.newest_checkpoint(folder).removeprefix("step-"))
    assert 5 <= before < 24
    said = run([one], pool, "stopped")
    assert "1 cells: 0 finished, 1 continued, 0 from the base model" in said
    assert noted(one) == ["start", "begun", "stopped", "begun", "finished"]


def test_engine_and_learner_that_do_not_agree_are_found_before_anything_is_measured(pool: Pool, preset: Preset) -> None:
    check_agreement(pool, preset, PROBLEMS)
    sweep = preset.sweep["easy"]
    strict = sweep.model_copy(update={"learner": {**sweep.learner, "sync": {"tolerance": 1e-12}}})
    with pytest.raises(ExperimentError, match=r"before anything else was sampled: .*does not agree"):
        check_agreement(pool, preset.model_copy(update={"sweep": {**preset.sweep, "easy": strict}}), PROBLEMS)


def test_a_measurement_keeps_the_parts_that_were_answered(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.running.measure.PART", 4)
    asked: dict[str, Any] = {"samples": 2, "seed": 1, "phase": "difficulty", "title": "measured"}
    rates, ledger = measure(pool, PROBLEMS, **asked)
    assert len(rates) == len(PROBLEMS)
    assert ledger["rollouts"].sum() == 2 * len(PROBLEMS)
    parts = sorted(Path("work/measurements").glob("*/*.json"))
    assert len(parts) == len(PROBLEMS) / 4
    before = [part.stat().st_mtime_ns for part in parts[1:]]
    parts[0].unlink()
    for again, before_it in zip(measure(pool, PROBLEMS, **asked), (rates, ledger), strict=True):
        assert again.equals(before_it)
    assert [part.stat().st_mtime_ns for part in parts[1:]] == before


def test_a_cell_is_extended_and_its_mlflow_run_goes_on(make: Any, pool: Pool) -> None:
    from mlflow import MlflowClient

    short, long = make(seed=51), make(seed=51, rollouts=192)
    run([short], pool, "extended")
    first = mlflow_runs("extended")[short.name].info.run_id
    said = run([long], pool, "extended")
    assert "1 cells: 0 finished, 1 continued, 0 from the base model" in said
    again = mlflow_runs("extended")[short.name]
    assert again.info.run_id == first
    assert again.data.tags["isocompute.budget_rollouts"] == "192"
    for name, every in (("eval/avg_at_4", 32), ("train/reward", 8)):
        points = MlflowClient().get_metric_history(first, name)
        assert [point.step for point in points] == list(range(every, 193, every))
    assert tables.read(f"runs:/{first}", "evals")["rollouts"].max() == 192


def test_what_is_not_kept_any_more_is_made_again_which_is_said_of_training(make: Any, pool: Pool) -> None:
    """A pruned checkpoint, and a policy: the preset keeps the ``last`` ones, of tests of the prescription."""
    swept, tested = make(seed=61), make(seed=62, purpose="prescribe")
    run([swept, tested], pool, "kept")
    folders = [cell_folder.folder_of(one) for one in (swept, tested)]
    assert [cell_folder.has_policy(folder) for folder in folders] == [False, True]
    (folders[1] / "policy.json").unlink()
    cell_folder.policy_of(folders[1]).rmdir()
    run([swept, tested], pool, "kept")
    assert cell_folder.has_policy(folders[1])
    assert noted(tested) == ["start", "begun", "finished"]
    assert f"{swept.run_id}/checkpoints" in cell_folder.prune(0.0)
    said = run([make(seed=61, rollouts=128)], pool, "kept")
    assert f"trained again, since their checkpoints were pruned: {swept.name}" in said
