"""A policy saved as a Hugging Face folder is loaded as what it was; a cell's test has vLLM answer from one."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy.loading import tensors
from isocompute.learner.saving import export
from isocompute.learner.saving.export import save_policy
from safetensors.torch import load_file
from tiny_models import TWO_LAYERS
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

CONFIGS = {
    "untied": LlamaConfig(**TWO_LAYERS, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**TWO_LAYERS, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=12, n_positions=64, n_embd=32, n_layer=2, n_head=2),
}

IDS = torch.tensor([[1, 5, 3, 11, 0, 7]])


def base_model(folder: Path, kind: str, *, seed: int = 0) -> PreTrainedModel:
    """A saved model with a tokenizer of single digits and a way of generating that transformers finds fault with."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(seed)
    policy = AutoModelForCausalLM.from_config(CONFIGS[kind]).eval()
    policy.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    inner = Tokenizer(models.WordLevel({str(i): i for i in range(12)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=inner, chat_template="{{ messages }}").save_pretrained(folder)
    return policy


def weights(policy: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.named_parameters()}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_saved_policy_is_loaded_bit_for_bit(kind: str, tmp_path: Path) -> None:
    base_model(tmp_path / "base", kind)
    trained = base_model(tmp_path / "other", kind, seed=1)
    folder = save_policy(weights(trained).items(), tmp_path / "base", tmp_path / "policy")
    again, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(again.eval()(IDS).logits, trained(IDS).logits)
    base, mine = ((tmp_path / name / "config.json").read_text() for name in ("base", "policy"))
    assert json.loads(mine) == json.loads(base)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tmp_path / "base" / name).read_bytes()


def test_weights_of_another_model_are_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    given = weights(base_model(tmp_path / "base", "untied"))
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    norm = "model.norm.weight"
    for named, changed in (
        (norm, {name: tensor for name, tensor in given.items() if name != norm}),
        ("critic.weight", given | {"critic.weight": torch.zeros(1)}),
        (norm, given | {norm: torch.zeros(5)}),
    ):
        with pytest.raises(LearnerError, match=f"not those of .*: {named} "):
            save_policy(changed, tmp_path / "base", tmp_path / "policy")
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["config.json"]


def test_a_folder_that_would_lose_what_it_holds_is_refused(tmp_path: Path) -> None:
    base, given = tmp_path / "base", weights(base_model(tmp_path / "base", "untied"))
    with pytest.raises(LearnerError, match="files and no model"):
        save_policy(given, base, tmp_path)
    with pytest.raises(LearnerError, match="base is the base model"):
        save_policy(given, base, tmp_path / "other" / ".." / "base")
    assert (tmp_path / "base" / "model.safetensors").exists()


def test_a_policy_that_is_saved_in_several_files_and_another_type_is_rounded_to_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = weights(base_model(tmp_path / "base", "qwen2"))
    changed = {name: tensor + 1 for name, tensor in given.items()}
    monkeypatch.setattr(export, "parts", partial(export.parts, most=2000))
    saved = save_policy(iter(changed.items()), tmp_path / "base", tmp_path / "policy", dtype=torch.bfloat16)
    files = sorted(path.name for path in saved.glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    held = [load_file(saved / name).values() for name in files]
    assert all(sum(tensor.nbytes for tensor in each) <= 2000 or len(each) == 1 for each in held)
    policy = AutoModelForCausalLM.from_pretrained(saved, dtype="auto")
    assert policy.dtype == torch.bfloat16
    assert tensors(policy).keys() == changed.keys()
    assert all(torch.equal(tensor, changed[name].bfloat16()) for name, tensor in tensors(policy).items())
