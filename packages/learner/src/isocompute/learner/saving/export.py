"""Saves the trained policy as a Hugging Face folder for transformers and vLLM, and its adapter as a peft folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping

from ..config import AdapterConfig
from ..errors import LearnerError
from .checkpoint import INDEX, WHOLE, file_of, parts, whole_folder

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
)
"""Tokenizer files; a model has some of them."""
CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
Weights = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def save_policy(weights: Weights, base: str | Path, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """Save a policy as a Hugging Face folder, whole or not at all; an existing folder is replaced.

    The configuration, the generation configuration and the tokenizer are the base model's; the tokenizer's files are
    copied unchanged. The weights are safetensors, with tied tensors saved once.

    Args:
        weights: The policy's tensors by their Hugging Face names, from ``Learner.weights`` or ``LearnerGroup.weights``,
            read one after the other; a critic's head is not among them.
        dtype: Type in which to save; None: that of the weights, so nothing is rounded.

    Raises:
        LearnerError: The base model's configuration cannot be read; the weights do not fit such a model; or the folder
            cannot be written, is the base model's own or holds something other than a model.
    """
    final = Path(folder).absolute()
    _check_place(final, base)
    try:
        config = AutoConfig.from_pretrained(str(base))
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LearnerError(f"the configuration of the base model {base} cannot be read ({reason})") from None
    with torch.device("meta"):
        policy: Any = AutoModelForCausalLM.from_config(config)
    given = _checked(weights.items() if isinstance(weights, Mapping) else weights, policy, str(base), dtype)
    with whole_folder(final, what="the policy", error=LearnerError) as aside:
        if get_model_conversion_mapping(policy, add_legacy=False):
            # The model's files hold different tensors than the model; transformers converts them all at once.
            policy.load_state_dict(dict(given), strict=False, assign=True)
            policy.tie_weights()
            # The model's own would be validated, and refused if transformers finds fault with the base model's.
            policy.generation_config = GenerationConfig()
            policy.save_pretrained(aside)
            (aside / GENERATION).unlink(missing_ok=True)
        else:
            _write(given, policy, aside)
        for name in (GENERATION, *TOKENIZER_FILES):
            found = file_of(str(base), name)
            if found is not None:
                shutil.copyfile(found, aside / name)
    return final


def save_adapter(
    state: Mapping[str, torch.Tensor], adapter: AdapterConfig, base: str | Path, folder: str | Path
) -> Path:
    """Save a policy's adapter as a peft folder, whole or not at all; an existing folder is replaced.

    ``state`` holds the tensors of ``Learner.state`` or of a ``Checkpoint``; only the adapter's are saved.
    """
    final = Path(folder).absolute()
    _check_place(final, base, holds=ADAPTER)
    names = [name for name in state if name.startswith("policy.") and (".lora_A." in name or ".lora_B." in name)]
    if not names:
        raise LearnerError("the state to save an adapter of has none: it must be one of a learner with config.adapter")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "inference_mode": True,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.removeprefix("policy.").partition(".lora_")[0] for name in names}),
    }
    with whole_folder(final, what="the adapter", error=LearnerError) as aside:
        # peft leaves out the adapter's name in the model.
        given = {name: f"base_model.model.{name.removeprefix('policy.').replace('.default.', '.')}" for name in names}
        save_file({given[name]: state[name] for name in names}, aside / "adapter_model.safetensors")
        (aside / ADAPTER).write_text(json.dumps(described, indent=2))
    return final


def _checked(
    given: Iterable[tuple[str, torch.Tensor]], policy: Any, base: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights in the requested type, and check that the model has each of them and that none is missing."""
    expected = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    # Tied tensors have several names, of which the weights contain the first.
    left = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())} & expected.keys()
    for name, tensor in given:
        if name not in left or tensor.shape != expected[name]:
            raise _other_weights(base, name)
        left.remove(name)
        tensor = tensor.detach() if dtype is None else tensor.detach().to(dtype)
        policy.config.dtype = tensor.dtype
        yield name, tensor.contiguous()
    if left:
        raise _other_weights(base, min(left))


def _other_weights(base: str, name: str) -> LearnerError:
    return LearnerError(
        f"the weights are not those of {base}: {name} is missing, unknown or of another shape; they must be the "
        "learner's own"
    )


def _write(given: Iterable[tuple[str, torch.Tensor]], policy: Any, folder: Path) -> None:
    """Write configuration and weights in parts, into one file or several with an index."""
    files: list[list[str]] = []
    size = 0
    for part in parts(given):
        save_file(part, folder / f"part-{len(files)}", metadata={"format": "pt"})
        files.append(list(part))
        size += sum(tensor.nbytes for tensor in part.values())
    names = [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
    for number, name in enumerate(names if len(files) > 1 else [WHOLE]):
        (folder / f"part-{number}").rename(folder / name)
    if len(files) > 1:
        places = {tensor: name for name, held in zip(names, files, strict=True) for tensor in held}
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2))
    policy.config.architectures = [type(policy).__name__]
    policy.config.save_pretrained(folder)


def _check_place(folder: Path, base: str | Path, *, holds: str = CONFIG) -> None:
    """Refuse a folder whose contents would be lost; one with the file ``holds`` may be replaced."""
    what, saved = ("model", "policy") if holds == CONFIG else ("adapter", "adapter")
    if folder.resolve() == Path(base).absolute().resolve():
        raise LearnerError(f"{folder} is the base model; the {saved} must be saved somewhere else")
    if folder.is_dir() and not (folder / holds).exists() and any(folder.iterdir()):
        raise LearnerError(
            f"{folder} holds files and no {what}, and saving the {saved} there would delete them: name an empty "
            f"folder, a new one, or one with such a {what} to be replaced"
        )
