"""What goes wrong outside is one clear message, a non-zero exit, and leaves earlier results as they were."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from isocompute.rollout.contract import tables

from experiments.__main__ import main

from .made import BASE, PARAMS, ROOT

pytestmark = pytest.mark.slow("stages, which load torch")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def preset(**changes: object) -> None:
    """Make ``smoke``, changed, the preset of this folder."""
    smoke = {**yaml.safe_load(PARAMS.read_text())["smoke"], "base": {"kind": "model", "model": str(BASE)}, **changes}
    held = {"preset": "smoke", "problem_sets": ["easy", "hard"], "tested_sets": ["easy"], "smoke": smoke}
    Path("params.yaml").write_text(yaml.safe_dump(held))


def refused(message: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_a_missing_dataset_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset(problems=[{"kind": "file", "path": "data/nothing.jsonl"}])
    refused("data/nothing.jsonl", capsys, "prepare")
    assert not (tmp_path / "outputs" / "prepared" / "problems.parquet").exists()


@pytest.mark.parametrize("model", ["models/nothing", "broken"])
def test_a_base_model_that_cannot_be_loaded_is_named(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    preset(base={"kind": "model", "model": model, "revision": "0" * 40})
    refused("cannot be loaded", capsys, "prepare")
    assert not (tmp_path / "outputs" / "prepared" / "base").exists()


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path) -> None:
    written = tmp_path / "outputs" / "prepared" / "problems.parquet"
    row = {"problem_id": "a", "prompt": "1+1=", "answer": "2", "verifier": "exact", "source": "s", "split": "train"}
    tables.write(pl.DataFrame([row]), "problems", written)
    before = written.read_bytes()
    preset()
    # A limit on the size of files does what a disk does that is nearly full; it would cut off what Python compiles.
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "prepare"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert written.read_bytes() == before
    assert sorted(path.name for path in written.parent.iterdir()) == ["base", "problems.parquet"]


def test_a_stage_that_lacks_what_an_earlier_one_makes_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    preset()
    refused("run the stage `prep", capsys, "sweep", "easy")
    refused("evals.parquet", capsys, "frontier", "easy")
    refused("holds no posterior.json", capsys, "prescribe", "easy")


@pytest.mark.parametrize("stage", ["sweep", "prescribe", "frontier"])
def test_a_problem_set_that_is_not_there_is_named(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    preset()
    refused("no sweep of 'medium'; it has easy, hard", capsys, stage, "medium")
