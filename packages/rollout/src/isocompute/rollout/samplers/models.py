"""Loading a model's tokenizer, and one wording for models that cannot be loaded."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import RolloutError

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Libraries that vLLM asks for and this package does not need: beside the CPU build of torch, registries often give
their CUDA builds, with which importing vLLM and parts of transformers fails."""


def load_tokenizer(model: str) -> Any:
    """Load a model's tokenizer.

    Raises:
        RolloutError: transformers is not installed, or the tokenizer cannot be loaded.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise RolloutError('transformers is not installed: pip install "isocompute-rollout[transformers]"') from None
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise RolloutError(f"the base model {model} cannot be loaded (there is no such folder)")
    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:
        # Libraries raise errors of any class for damaged files.
        raise not_loaded(model, error) from None


def stop_tokens(model: str, tokenizer: Any) -> list[int]:
    """Return the tokens at which a model's responses end: those of its generation config and of its tokenizer."""
    from transformers import GenerationConfig

    stated = {tokenizer.eos_token_id}
    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except (OSError, ValueError):
        # Many models have no generation config.
        ends = None
    stated |= set(ends) if isinstance(ends, list | tuple) else {ends}
    return sorted(token for token in stated if token is not None)


def check_folder(model: str | Path) -> None:
    """Refuse a folder that holds no model; libraries would look for a model of its name on the hub.

    Raises:
        RolloutError: The folder has no ``config.json``.
    """
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise RolloutError(f"the base model {model} cannot be loaded (its folder holds no config.json)")


def not_loaded(model: str, error: BaseException) -> RolloutError:
    """Return what to raise for a model that a library could not load, or for the library that is to blame.

    Args:
        error: What the library raised; the message quotes its first line.
    """
    for name in COMPANIONS:
        if (misfit := _misfit(name)) is not None:
            return RolloutError(
                f"{model} was not loaded, because the installed {name} does not fit this torch ({first_line(misfit)}); "
                f"remove it, since nothing here needs it: pip uninstall --yes {' '.join(COMPANIONS)}"
            )
    return RolloutError(f"the base model {model} cannot be loaded ({first_line(error)})")


def _misfit(name: str) -> BaseException | None:
    """What importing an installed library raises; None where it is not installed, or can be imported."""
    try:
        if find_spec(name) is not None:
            import_module(name)
    except Exception as error:
        # A library of another build raises errors of any class.
        return error
    return None


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
