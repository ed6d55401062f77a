"""The trained policy as a plain Hugging Face folder, which transformers and vLLM load like any other model."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import cached_file

from ..errors import LearnerError
from .folders import whole_folder

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "tekken.json",
)  # fmt: skip
"""What a tokenizer is saved as; a model has some of them."""
GENERATION = "generation_config.json"

Weights = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def save_policy(weights: Weights, base: str | Path, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """Save a policy as a Hugging Face folder, whole or not at all: what was there is replaced.

    The configuration is the base model's, and so are the generation configuration and the tokenizer, whose files are
    copied as they are; the weights are safetensors, a tensor that is tied to another saved once.

    Args:
        weights: The policy's tensors by their Hugging Face names, as ``Learner.weights`` and ``LearnerGroup.weights``
            give them; a critic's head is no part of them.
        base: The base model that was trained: a folder or a name.
        folder: Where the policy belongs.
        dtype: Type in which it is saved; None: that of the weights, so that nothing is rounded.

    Returns:
        The folder.

    Raises:
        LearnerError: The base model's configuration cannot be read, the weights are not those of such a model, the
            folder holds something else than a model or is the base model's own, or it cannot be written.
    """
    final = Path(folder).absolute()
    _check_place(final, base)
    given = {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in dict(weights).items()}
    policy = _policy(given, str(base))
    with whole_folder(final, what="the policy", error=LearnerError) as aside:
        policy.save_pretrained(aside)
        (aside / GENERATION).unlink(missing_ok=True)
        for name in (GENERATION, *TOKENIZER_FILES):
            found = _file_of(str(base), name)
            if found is not None:
                shutil.copyfile(found, aside / name)
    return final


def _policy(given: dict[str, torch.Tensor], base: str) -> Any:
    """The base model's architecture with these weights, without a copy of them."""
    try:
        config = AutoConfig.from_pretrained(base)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LearnerError(f"the configuration of the base model {base} cannot be read ({reason})") from None
    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(config)
    expected = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    # Those that are tied to another have one tensor under several names, of which the weights have the first.
    once = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())} & expected.keys()
    if {name: tensor.shape for name, tensor in given.items()} != {name: expected[name] for name in once}:
        wrong = sorted(given.keys() ^ once or {name for name in once if given[name].shape != expected[name]})
        raise LearnerError(
            f"the weights are not those of {base}: {wrong[0]} is missing, unknown or of another shape; they must be "
            "the learner's own"
        )
    policy.load_state_dict(given, strict=False, assign=True)
    policy.tie_weights()
    policy.config.dtype = next(iter(given.values())).dtype
    # Its own would be checked, and refused where transformers finds fault with the base model's.
    policy.generation_config = GenerationConfig()
    return policy


def _check_place(folder: Path, base: str | Path) -> None:
    """Refuse a folder that would lose what it holds.

    Raises:
        LearnerError: It is the base model's, or holds something else than a model.
    """
    if folder.resolve() == Path(base).absolute().resolve():
        raise LearnerError(f"{folder} is the base model; the policy must be saved somewhere else")
    if folder.is_dir() and not (folder / "config.json").exists() and any(folder.iterdir()):
        raise LearnerError(
            f"{folder} holds files and no model, and saving the policy there would delete them: name an empty folder, "
            "a new one, or one with a model to be replaced"
        )


def _file_of(base: str, name: str) -> str | None:
    """A file of the base model, or None where it has no such file."""
    found: str | None = cached_file(
        base,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
