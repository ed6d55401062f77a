"""Cells on real Ray workers: what they share, what happens when one diverges or dies, and who stops whom."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import ray
import torch
from isocompute.learner.config import OptimizerConfig
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell, Generation, Surroundings, problems_hash
from experiments.running.cluster import Stopped
from experiments.running.measure import check_agreement, measure
from experiments.running.schedule import Pool, Schedule, workers
from experiments.running.tracker import Tracker
from experiments.settings import Preset, load

from .made import BASE, SAMPLING, cell, lost, origin_of, smoke, sums

pytestmark = pytest.mark.slow("vLLM and Ray")


@pytest.fixture(scope="module")
def home(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work folder with a base model of a few steps, and an MLflow store."""
    folder = tmp_path_factory.mktemp("scheduled")
    shutil.copytree(BASE, folder / "model")
    smoke(folder, {"sampling": SAMPLING, "resources": {"workers": 2, "sampler": "transformers"}})
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        yield folder


@pytest.fixture(scope="module")
def preset(home: Path) -> Preset:
    return load(home / "params.yaml", "smoke")


@pytest.fixture(scope="module")
def pool(home: Path, preset: Preset) -> Iterator[Pool]:
    with workers(preset, {cell_folder.content_hash(home / "model"): str(home / "model")}) as opened:
        yield opened


@pytest.fixture(scope="module")
def problems() -> pl.DataFrame:
    return sums(12, 8)


@pytest.fixture
def make(home: Path, preset: Preset, problems: pl.DataFrame) -> Any:
    origin = origin_of(
        base=cell_folder.content_hash(home / "model"),
        problems=problems_hash(problems),
        generation=Generation.of(preset),
        surroundings=Surroundings.of(preset.resolved_resources()),
    )
    return lambda **changes: cell(origin=origin, **changes)


def run(cells: list[Cell], problems: pl.DataFrame, pool: Pool, experiment: str) -> str:
    """Schedule cells, and return what was said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        tracker = Tracker(experiment)
        Schedule(cells, {problems_hash(problems): problems}, pool, tracker, title="cells").finish()
        assert not tracker.drain()
    return said.getvalue()


def mlflow_runs(experiment: str) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def test_one_first_evaluation_serves_all_n_of_a_seed(make: Any, problems: pl.DataFrame, pool: Pool) -> None:
    cells = [make(rollouts_per_problem=n, seed=21, evaluate_every=48) for n in (2, 4)]
    # As the worker leaves it where vLLM is asked, too.
    cell_folder.write_json(cell_folder.baseline_of(cells[0]) / cell_folder.BESIDE_VLLM, {"maximum": 3e-6})
    said = run(cells, problems, pool, "shared")
    assert "2 cells: 0 finished, 0 continued, 2 from the base model" in said
    assert cells[0].baseline_id == cells[1].baseline_id
    evals = [cell_folder.outcome(one).read("evals") for one in cells]
    first = cell_folder.read_baseline(cell_folder.baseline_of(cells[0])).metrics["avg_at_4"]
    assert [table["avg_at_4"][0] for table in evals] == [first, first]
    assert all(table["rollouts"].to_list() == [0, 48, 96] for table in evals)
    # Charged once, to nobody's run.
    assert tables.read(cell_folder.baseline_of(cells[0]) / "ledger.parquet", "ledger")["rollouts"].to_list() == [32]
    for one in cells:
        eval_steps = cell_folder.outcome(one).read("ledger").filter(pl.col("cohort") == "eval")["step"]
        assert 0 not in eval_steps.to_list()
    assert mlflow_runs("shared")["base, seed 21"].data.metrics["health/vllm_maximum"] == 3e-6
    assert "cells: base: vLLM's log-probabilities are those of the sampler, up to 3e-06 nats" in said
    assert "2 cells: 2 finished" in run(cells, problems, pool, "shared")


def test_a_client_without_the_token_is_refused(pool: Pool) -> None:
    join = f"import ray; ray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)"
    with_token = dict(os.environ)
    without = {key: value for key, value in with_token.items() if not key.startswith("RAY_AUTH")}
    joining = [
        subprocess.Popen([sys.executable, "-c", join], env=each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in (without, with_token)
    ]
    refused, joined = (process.wait() for process in joining)
    assert refused != 0
    assert joined == 0


def test_a_cell_that_diverges_is_a_result_and_the_others_go_on(make: Any, problems: pl.DataFrame, pool: Pool) -> None:
    stable = make(purpose="pilot", seed=31)
    wild = make(
        purpose="pilot",
        seed=31,
        learner=replace(stable.learner, learning_rate=1e30, optimizer=OptimizerConfig(warmup_steps=0)),
    )
    run([wild, stable], problems, pool, "wild")
    found = {name: cell_folder.outcome(one) for name, one in (("wild", wild), ("stable", stable))}
    assert found["wild"].diverged
    assert found["wild"].read("evals")["rollouts"].to_list() == [0]
    assert not found["stable"].diverged
    # What was generated for the step that could not be taken is paid for.
    assert found["wild"].read("ledger").filter(pl.col("cohort") == "trained")["rollouts"].sum() > 0
    run_of = mlflow_runs("wild")
    assert run_of[wild.name].data.tags["isocompute.status"] == "diverged"
    assert run_of[wild.name].info.status == "FAILED"
    assert run_of[stable.name].data.tags["isocompute.status"] == "finished"


def test_a_cell_whose_worker_was_killed_goes_on_on_another(make: Any, problems: pl.DataFrame, pool: Pool) -> None:
    one = make(seed=41)
    spool = Spool(cell_folder.folder_of(one))
    processes = [
        loaded.process for loaded in ray.get([slot.actor.open.remote(pool._config) for slot in pool.crew.members])
    ]

    def kill() -> None:
        """Kill the process of the worker that has the cell once that is under way."""
        while len(spool.records()) < 4:
            time.sleep(0.02)
        for slot in pool.running:
            os.kill(processes[slot.index], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    said = run([one], problems, pool, "killed")
    thread.join()
    assert "it continues on another one" in said
    found, done = cell_folder.outcome(one), cell_folder.done(cell_folder.folder_of(one))
    assert found.read("evals")["rollouts"].to_list() == [0, 32, 64, 96]
    assert found.read("ledger").filter(pl.col("cohort") == "trained")["rollouts"].sum() == 96
    assert done is not None
    assert lost(cell_folder.folder_of(one)) > 0


def test_a_cell_saves_its_state_on_a_signal_and_goes_on_from_there(
    make: Any, problems: pl.DataFrame, pool: Pool
) -> None:
    one = make(seed=43, rollouts=1600, evaluate_every=160)
    folder = cell_folder.folder_of(one)
    spool = Spool(folder)

    def end() -> None:
        """Ask this process to end once the cell is under way."""
        while len(spool.records()) < 3:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run([one], problems, pool, "stopped")
    thread.join()
    assert cell_folder.done(folder) is None
    before = int(cell_folder.newest_checkpoint(folder).removeprefix("step-"))
    assert 1 <= before < 200
    said = run([one], problems, pool, "stopped")
    assert "1 cells: 0 finished, 1 continued, 0 from the base model" in said
    found, done = cell_folder.outcome(one), cell_folder.done(folder)
    assert found.read("evals")["rollouts"].to_list() == list(range(0, 1601, 160))
    assert done is not None
    # Nothing was paid for twice.
    assert lost(folder) == 0


def test_engine_and_learner_that_do_not_agree_are_found_before_anything_is_measured(
    problems: pl.DataFrame, pool: Pool, preset: Preset
) -> None:
    check_agreement(pool, preset, problems)
    sweep = preset.sweep["easy"]
    strict = sweep.model_copy(update={"learner": {**sweep.learner, "sync": {"tolerance": 1e-12}}})
    with pytest.raises(ExperimentError, match=r"before anything else was sampled: .*sync.tolerance = 1e-12"):
        check_agreement(pool, preset.model_copy(update={"sweep": {**preset.sweep, "easy": strict}}), problems)


def test_a_measurement_keeps_the_parts_that_were_answered(
    make: Any, problems: pl.DataFrame, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.running.measure.PART", 4)
    asked: dict[str, Any] = {"samples": 2, "seed": 1, "phase": "difficulty", "title": "measured"}
    found = measure(pool, problems, make().origin, **asked)
    assert len(found.rates) == len(problems)
    assert found.ledger["rollouts"].sum() == 2 * len(problems)
    parts = sorted(Path("work/measurements").glob("*/*.json"))
    assert len(parts) == len(problems) / 4
    before = [part.stat().st_mtime_ns for part in parts[1:]]
    parts[0].unlink()
    again = measure(pool, problems, make().origin, **asked)
    assert again.rates.equals(found.rates)
    assert again.ledger.equals(found.ledger)
    assert [part.stat().st_mtime_ns for part in parts[1:]] == before


def test_a_cell_is_extended_and_its_mlflow_run_goes_on(make: Any, problems: pl.DataFrame, pool: Pool) -> None:
    from mlflow import MlflowClient

    short, long = make(seed=51), make(seed=51, rollouts=192)
    run([short], problems, pool, "extended")
    first = mlflow_runs("extended")[short.name].info.run_id
    said = run([long], problems, pool, "extended")
    assert "1 cells: 0 finished, 1 continued, 0 from the base model" in said
    again = mlflow_runs("extended")[short.name]
    assert again.info.run_id == first
    assert again.data.tags["isocompute.budget_rollouts"] == "192"
    history = MlflowClient().get_metric_history(first, "eval/avg_at_4")
    assert [point.step for point in history] == [0, 32, 64, 96, 128, 160, 192]
    rewards = MlflowClient().get_metric_history(first, "train/reward")
    assert [point.step for point in rewards] == list(range(8, 193, 8))
    assert tables.read(f"runs:/{first}", "evals")["rollouts"].max() == 192


def test_a_pruned_checkpoint_means_training_again_and_that_is_said(
    make: Any, problems: pl.DataFrame, pool: Pool
) -> None:
    short, long = make(seed=61), make(seed=61, rollouts=128)
    run([short], problems, pool, "pruned")
    before = cell_folder.outcome(short)
    assert f"{short.run_id}/checkpoints" in cell_folder.prune(0.0)
    said = run([long], problems, pool, "pruned")
    assert f"trained again, since their checkpoints were pruned: {long.name}" in said
    after = cell_folder.outcome(short)
    assert after.read("evals").equals(before.read("evals"))
    assert after.read("ledger").equals(before.read("ledger"))


def test_the_policy_of_a_cell_is_kept_as_a_model_and_saved_again_from_its_checkpoint(
    make: Any, problems: pl.DataFrame, pool: Pool
) -> None:
    """The preset keeps the ``last`` policies: those of a test of the prescription, and of no sweep."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tested, swept = make(seed=71, purpose="prescribe"), make(seed=72)
    run([tested, swept], problems, pool, "kept")
    home = cell_folder.folder_of(tested)
    assert cell_folder.has_policy(home)
    assert not cell_folder.policy_of(cell_folder.folder_of(swept)).exists()
    saved = max((home / "checkpoints").glob("step-*/tensors-00000.safetensors"))
    trained = {k.removeprefix("policy."): v for k, v in load_file(saved).items() if k.startswith("policy.")}
    loaded = AutoModelForCausalLM.from_pretrained(cell_folder.policy_of(home)).state_dict()
    assert trained
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in trained.items())
    assert len(AutoTokenizer.from_pretrained(cell_folder.policy_of(home))) > 0
    shutil.rmtree(cell_folder.policy_of(home))
    before = (home / "ledger.parquet").read_bytes()
    run([tested, swept], problems, pool, "kept")
    again = AutoModelForCausalLM.from_pretrained(cell_folder.policy_of(home)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in loaded.items())
    assert (home / "ledger.parquet").read_bytes() == before
