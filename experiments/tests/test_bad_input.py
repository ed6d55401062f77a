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

pytestmark = pytest.mark.slow("stages as processes, which load torch")

ROOT = Path(__file__).parents[2]


def tree(folder: Path, **changes: object) -> Path:
    """A folder with ``smoke``, changed, as its preset."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    smoke = {**params["smoke"], **changes}
    held = {"preset": "smoke", "problem_sets": ["easy", "hard"], "tested_sets": ["easy"], "smoke": smoke}
    (folder / "params.yaml").write_text(yaml.safe_dump(held))
    return folder


def stage(folder: Path, *arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a stage; ``limit`` bounds the size of every file (bytes), as a disk that is nearly full does."""

    def bound() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "experiments", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        # A limit on files would cut off what Python compiles.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1",
             "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=bound,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_dataset_file_is_named(tmp_path: Path) -> None:
    tree(tmp_path, problems=[{"kind": "file", "path": "data/nothing.jsonl"}])
    refused(stage(tmp_path, "prepare"), "data/nothing.jsonl")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("model", ["models/nothing", "broken"])
def test_a_base_model_that_cannot_be_loaded_is_named(tmp_path: Path, model: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    tree(tmp_path, base={"kind": "model", "model": model, "revision": "0" * 40})
    refused(stage(tmp_path, "prepare"), "cannot be loaded")
    assert not (tmp_path / "outputs" / "prepared" / "base").exists()


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path) -> None:
    written = tmp_path / "outputs" / "prepared" / "problems.parquet"
    row = {"problem_id": "a", "prompt": "1+1=", "answer": "2", "verifier": "exact", "source": "s", "split": "train"}
    tables.write(pl.DataFrame([row]), "problems", written)
    before = written.read_bytes()
    refused(stage(tree(tmp_path), "prepare", limit=2048), "cannot be written")
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_a_stage_that_lacks_what_an_earlier_one_makes_says_which(tmp_path: Path) -> None:
    refused(stage(tree(tmp_path), "sweep", "easy"), "easy.parquet: there is no problem set easy; run the stage `prep")
    refused(stage(tmp_path, "frontier", "easy"), "evals.parquet")
    refused(stage(tmp_path, "prescribe", "easy"), "holds no posterior.json")


def test_a_problem_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(stage(tree(tmp_path), "sweep", "medium"), "no sweep of 'medium'; it has easy, hard")
    refused(stage(tmp_path, "prescribe", "medium"), "medium")
    refused(stage(tmp_path, "frontier", "medium"), "medium")
