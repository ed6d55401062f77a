"""Libraries that accompany torch and do not fit it are named, and the model is not blamed."""

import sys

import pytest
from isocompute.rollout.samplers.prompts import not_loaded

CUDA_BUILD = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A torchvision as its CUDA build is beside the CPU build of torch: it is there, and cannot be imported."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(CUDA_BUILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)


def test_a_torchvision_that_does_not_fit_torch_is_named_with_the_command_that_mends_it(broken):
    assert str(not_loaded("some/model", ImportError("cannot import name 'LLM'"))) == (
        "some/model was not loaded, because the installed torchvision does not fit this torch (operator "
        "torchvision::nms does not exist); remove it, since nothing here needs it: "
        "pip uninstall --yes torchvision torchaudio torchcodec"
    )


def test_without_it_a_model_that_cannot_be_loaded_is_named():
    said = "the base model some/model cannot be loaded (no weights)"
    assert str(not_loaded("some/model", ValueError("no weights\nmore"))) == said


def test_vllm_that_does_not_start_for_want_of_it_names_it_too(broken, tmp_path, monkeypatch):
    from isocompute.rollout.samplers.vllm.sampler import engine_class

    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import torchvision\nclass LLM: pass\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Exception, match="pip uninstall --yes"):
        engine_class("some/model")
