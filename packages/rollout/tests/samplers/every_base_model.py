"""What every sampler that loads a model in this process says of one that cannot be loaded; ``kind`` names it."""

import shutil
from pathlib import Path
from typing import Any

import pytest


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


@pytest.mark.parametrize("how", ["missing", "without a config", "corrupted"])
def test_a_base_model_that_cannot_be_loaded_is_one_line(
    kind: str, how: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from isocompute.rollout.cli import main

    model = damaged(tiny, tmp_path, how)
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = [
        "generate",
        "--model",
        str(model),
        "--sampler",
        kind,
        "--problems",
        str(tmp_path / "problems.parquet"),
        "--max-new-tokens",
        "8",
        "--max-prompt-tokens",
        "8",
        "--out",
        str(tmp_path / "rollouts.parquet"),
    ]
    assert main(asked) == 2
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    assert [
        line for line in stderr.splitlines() if line.startswith(f"error: the base model {model} cannot be loaded (")
    ]
    assert not (tmp_path / "rollouts.parquet").exists()
