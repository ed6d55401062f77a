"""The base model that runs start from is the one that was recorded."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from experiments.errors import ExperimentError
from experiments.settings import ModelConfig, Preset, load
from experiments.stages import base
from experiments.tiny import model as tiny_model
from experiments.tiny.config import ChainsModelConfig

PARAMS = Path(__file__).parents[2] / "params.yaml"


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """A preset whose base model is a folder here."""
    monkeypatch.chdir(tmp_path)
    tiny_model.save(
        tiny_model.new_model(ChainsModelConfig(hidden=32, layers=1)), tiny_model.new_tokenizer(), Path("model")
    )
    return load(PARAMS, "smoke").model_copy(update={"base": ModelConfig(model="model")})


def test_a_folder_that_was_trained_again_in_place_is_noticed(preset: Preset) -> None:
    base.make(preset)
    model, before = base.model_of(preset)
    assert Path(model) == Path("model").resolve()
    weights = Path("model") / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights, {"format": "pt"})
    with pytest.raises(ExperimentError, match="has changed since the stage `prepare` recorded it"):
        base.model_of(preset)
    base.make(preset)
    assert base.model_of(preset)[1] != before


def test_another_name_in_the_preset_is_noticed(preset: Preset) -> None:
    base.make(preset)
    shutil.copytree("model", "other")
    with pytest.raises(
        ExperimentError, match=r"records the model model, and the preset names .*other: run `prepare` again"
    ):
        base.model_of(preset.model_copy(update={"base": ModelConfig(model="other")}))


def test_an_embedded_model_is_trained_once_for_its_settings(preset: Preset, capsys: pytest.CaptureFixture[str]) -> None:
    small = ChainsModelConfig(hidden=32, layers=1, steps=3, batch=8)
    tiny = preset.model_copy(update={"base": small})
    base.make(tiny)
    assert "step 3/3" in capsys.readouterr().out
    shutil.rmtree(base.FOLDER)
    base.make(tiny)
    assert "step 3/3" not in capsys.readouterr().out
    first = base.model_of(tiny)[1]
    base.make(preset.model_copy(update={"base": small.model_copy(update={"seed": 1})}))
    assert base.model_of(tiny)[1] != first
