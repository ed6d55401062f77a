"""The base model that runs start from is the one that was recorded."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from experiments.errors import ExperimentError
from experiments.running import work
from experiments.settings import ModelConfig, Preset, load
from experiments.stages import prepare

from .made import BASE, PARAMS


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """A preset whose base model is a folder here."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(BASE, "model")
    return load(PARAMS, "smoke").model_copy(update={"base": ModelConfig(model="model")})


def test_a_folder_that_was_trained_again_in_place_is_noticed(preset: Preset) -> None:
    prepare.record(preset.base)
    model, before = work.model_of(preset)
    assert Path(model) == Path("model").resolve()
    weights = Path("model") / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights, {"format": "pt"})
    with pytest.raises(ExperimentError, match="has changed since the stage `prepare` recorded it"):
        work.model_of(preset)
    prepare.record(preset.base)
    assert work.model_of(preset)[1] != before


def test_another_name_in_the_preset_is_noticed(preset: Preset) -> None:
    prepare.record(preset.base)
    shutil.copytree("model", "other")
    with pytest.raises(
        ExperimentError, match=r"records the model model, and the preset names .*other: run `prepare` again"
    ):
        work.model_of(preset.model_copy(update={"base": ModelConfig(model="other")}))
