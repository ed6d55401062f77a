"""A policy saved as a Hugging Face folder is loaded as what it was; a cell's test has vLLM answer from one."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from isocompute.learner.errors import LearnerError
from isocompute.learner.policy.loading import load_policy, tensors
from isocompute.learner.saving import export
from isocompute.learner.saving.export import save_policy
from safetensors.torch import load_file
from tiny_models import TWO_LAYERS
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

CONFIGS = {
    "untied": LlamaConfig(**TWO_LAYERS, tie_word_embeddings=False),
    "tied": LlamaConfig(**TWO_LAYERS, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**TWO_LAYERS, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=12, n_positions=64, n_embd=32, n_layer=2, n_head=2),
}

IDS = torch.tensor([[1, 5, 3, 11, 0, 7]])


def base_model(folder: Path, kind: str, *, seed: int = 0) -> PreTrainedModel:
    """A saved model with a tokenizer of single digits and a way of generating of its own."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(seed)
    policy = AutoModelForCausalLM.from_config(CONFIGS[kind]).eval()
    policy.generation_config.top_k = 7
    policy.generation_config.do_sample = True
    policy.save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({str(i): i for i in range(12)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=inner, chat_template="{{ messages }}").save_pretrained(folder)
    return policy


def weights(policy: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Each tensor once, as the learner hands them over."""
    return {name: tensor.detach().clone() for name, tensor in policy.named_parameters()}


def logits(policy: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = policy(IDS).logits
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_saved_policy_is_loaded_bit_for_bit(kind: str, tmp_path: Path) -> None:
    base_model(tmp_path / "base", kind)
    trained = base_model(tmp_path / "other", kind, seed=1)
    folder = save_policy(weights(trained).items(), tmp_path / "base", tmp_path / "policy")
    again, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert torch.equal(logits(again.eval()), logits(trained))
    assert (again.generation_config.top_k, again.generation_config.do_sample) == (7, True)
    base, mine = ((tmp_path / name / "config.json").read_text() for name in ("base", "policy"))
    assert json.loads(mine) == json.loads(base)


def test_the_tokenizer_is_the_base_models_byte_for_byte(tmp_path: Path) -> None:
    trained = base_model(tmp_path / "base", "tied")
    folder = save_policy(weights(trained), tmp_path / "base", tmp_path / "policy")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tmp_path / "base" / name).read_bytes()
    assert AutoTokenizer.from_pretrained(folder)("7")["input_ids"] == [7]


def test_another_type_is_rounded_to_once(tmp_path: Path) -> None:
    trained = base_model(tmp_path / "base", "untied")
    folder = save_policy(weights(trained), tmp_path / "base", tmp_path / "policy", dtype=torch.bfloat16)
    again = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert again.dtype == torch.bfloat16
    for name, tensor in again.named_parameters():
        assert torch.equal(tensor, weights(trained)[name].bfloat16())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda w: w.pop("model.norm.weight"), "model.norm.weight"),
        (lambda w: w.update({"critic.weight": torch.zeros(1)}), "critic.weight"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(5)}), "model.norm.weight"),
    ],
)
def test_weights_of_another_model_are_refused_and_what_was_there_stays(
    changed: Callable[[dict[str, torch.Tensor]], object], named: str, tmp_path: Path
) -> None:
    given = weights(base_model(tmp_path / "base", "untied"))
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    changed(given)
    with pytest.raises(LearnerError, match=f"not those of .*: {named} "):
        save_policy(given, tmp_path / "base", tmp_path / "policy")
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["config.json"]


def test_a_folder_that_would_lose_what_it_holds_is_refused(tmp_path: Path) -> None:
    base, given = tmp_path / "base", weights(base_model(tmp_path / "base", "untied"))
    with pytest.raises(LearnerError, match="files and no model"):
        save_policy(given, base, tmp_path)
    with pytest.raises(LearnerError, match="base is the base model"):
        save_policy(given, base, tmp_path / "other" / ".." / "base")
    assert (tmp_path / "base" / "model.safetensors").exists()


def test_a_generation_configuration_that_transformers_finds_fault_with_is_kept_as_it_is(tmp_path: Path) -> None:
    base, given = tmp_path / "base", weights(base_model(tmp_path / "base", "untied"))
    text = '{"temperature": 0.6, "top_p": 0.9}'
    (base / "generation_config.json").write_text(text)
    saved = save_policy(given, base, tmp_path / "policy")
    assert (saved / "generation_config.json").read_text() == text


def test_a_policy_that_is_saved_in_several_files_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = weights(base_model(tmp_path / "base", "tied"))
    changed = {name: tensor + 1 for name, tensor in given.items()}
    monkeypatch.setattr(export, "parts", partial(export.parts, most=2000))
    saved = save_policy(iter(changed.items()), tmp_path / "base", tmp_path / "policy")
    files = sorted(path.name for path in saved.glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    held = [load_file(saved / name).values() for name in files]
    assert all(sum(tensor.nbytes for tensor in each) <= 2000 or len(each) == 1 for each in held)
    policy = load_policy(saved, device="cpu")
    assert tensors(policy).keys() == changed.keys()
    assert all(torch.equal(tensor, changed[name]) for name, tensor in tensors(policy).items())
