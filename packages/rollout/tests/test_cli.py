"""The console script, where things go wrong."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.cli import main


def damaged(tiny: Any, folder: Path, how: str) -> Path:
    """A base model that cannot be loaded."""
    model = folder / "model"
    if how == "missing":
        return model
    shutil.copytree(tiny.folder, model)
    if how == "without a config":
        (model / "config.json").unlink()
    else:
        weights = model / "model.safetensors"
        weights.write_bytes(b"\xff" * 100 + weights.read_bytes()[100:])
    return model


@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
@pytest.mark.parametrize("how", ["missing", "without a config", "corrupted"])
def test_a_base_model_that_cannot_be_loaded_is_one_line(
    sampler: str, how: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if sampler == "vllm":
        pytest.importorskip("vllm")
    model = damaged(tiny, tmp_path, how)
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = ["generate", "--model", str(model), "--sampler", sampler, "--problems", str(tmp_path / "problems.parquet"),
             "--out", str(tmp_path / "rollouts.parquet")]  # fmt: skip
    assert main(asked) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith(f"error: the base model {model} cannot be loaded (")]
    assert not (tmp_path / "rollouts.parquet").exists()


def test_a_split_without_any_problem_inside_advises(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tiny.problems.with_columns(pass_rate=pl.lit(0.9), pass_rate_samples=pl.lit(4, dtype=pl.Int32))
    measured.write_parquet(tmp_path / "measured.parquet")
    asked = ["split", str(tmp_path / "measured.parquet"), "--interval", "0.3", "0.6", "--train", "2",
             "--validation", "1", "--out", str(tmp_path / "easy.parquet")]  # fmt: skip
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "0 of 4 measured ones have it (the mean pass rate is 0.90): generate other train problems" in said


def test_flags_of_a_server_go_with_the_openai_sampler(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = ["generate", "--model", str(tiny.folder), "--problems", str(tmp_path / "problems.parquet"),
             "--out", str(tmp_path / "rollouts.parquet")]  # fmt: skip
    assert main([*asked, "--sampler", "openai"]) == 2
    assert "--sampler openai needs --base-url" in capsys.readouterr().err
    assert main([*asked, "--sampler", "transformers", "--base-url", "http://localhost:1/v1"]) == 2
    assert "--base-url goes with --sampler openai" in capsys.readouterr().err
