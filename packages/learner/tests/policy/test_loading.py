"""Models that cannot be trained are refused when they are loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy.loading import load_policy, tensors
from isocompute.learner.updates.learner import Learner
from safetensors.torch import load_file, save_file
from tiny_models import tiny_config, tiny_model
from transformers import LlamaForCausalLM


def refusal(folder: Path) -> str:
    with pytest.raises(LearnerError) as caught:
        load_policy(folder, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"the base model {folder} ")
    assert "\n" not in message
    return message


def test_a_tied_tensor_has_one_name_as_in_a_saved_model(tied_model: Path) -> None:
    policy = load_policy(tied_model, device="cpu")
    assert policy.get_output_embeddings().weight is policy.get_input_embeddings().weight
    saved = load_file(tied_model / "model.safetensors")
    found = tensors(policy)
    assert found.keys() == saved.keys()
    assert "lm_head.weight" not in found


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", lambda path: path.write_text("{"), "cannot be loaded"),
        ("config.json", lambda path: put(path, intermediate_size=32), "cannot be loaded"),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:5000]), "cannot be loaded"),
        # Weights that are missing are not made up.
        ("model.safetensors", lambda path: without(path, "lm_head.weight"), "no weights for lm_head.weight"),
    ],
)
def test_a_damaged_model_is_refused(
    file: str, change: Callable[[Path], object], message: str, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    change(folder / file)
    assert message in refusal(folder)
    assert "cannot be loaded" in refusal(tmp_path / "nothing")


def put(path: Path, **settings: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def without(path: Path, name: str) -> None:
    save_file({k: t for k, t in load_file(path).items() if k != name}, path, {"format": "pt"})


def test_a_model_that_scales_or_caps_its_logits_is_refused(tmp_path: Path) -> None:
    tiny_model(tiny_config("granite", logits_scaling=4.0)).save_pretrained(tmp_path)
    assert "scales or caps its logits" in refusal(tmp_path)


def test_of_two_sets_of_files_in_a_folder_the_one_that_is_loaded_is_hashed(model: Path, tmp_path: Path) -> None:
    """A model that was saved whole beside an older one in several files, and one without safetensors."""
    policy = LlamaForCausalLM.from_pretrained(model)
    whole = Learner(model, LearnerConfig(learning_rate=1.0))
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    policy.save_pretrained(tmp_path, max_shard_size="4KB")
    assert Learner(tmp_path, whole.config).base != whole.base
    shutil.copy(model / "model.safetensors", tmp_path)
    both = Learner(tmp_path, whole.config)
    assert both.base == whole.base
    assert dict(both.weights())["lm_head.weight"].equal(dict(whole.weights())["lm_head.weight"])
    for path in tmp_path.glob("model*"):
        path.unlink()
    torch.save(LlamaForCausalLM.from_pretrained(model).state_dict(), tmp_path / "pytorch_model.bin")
    assert Learner(tmp_path, whole.config).base == whole.base
