"""Errors a user can act on."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .contract.errors import InfrastructureError, IsoComputeError
from .contract.files import reason_of

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Libraries that vLLM requires and this package does not. Registries often pair their CUDA builds with the CPU build of
torch; importing vLLM and parts of transformers then fails."""


class RolloutError(IsoComputeError):
    """The package cannot do what was asked; the message says what is wrong and what would be right."""


class ProblemError(RolloutError):
    """No response to a problem can be scored; the problem is at fault, not a response or this machine."""


class EngineError(RolloutError, InfrastructureError):
    """An engine in its own process died or timed out; a new sampler may be opened."""


def library(name: str, *, extra: str) -> Any:
    """Import an optional library, or name the extra that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise RolloutError(f'{name} is not installed: pip install "isocompute-rollout[{extra}]"') from None


def check_folder(model: str | Path) -> None:
    """Refuse a folder without a model; libraries would look for a model of that name on the hub."""
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise RolloutError(f"the base model {model} cannot be loaded (its folder holds no config.json)")


def not_loaded(model: str, error: BaseException) -> RolloutError:
    """Return the error for a model that a library could not load, or for the library that is to blame."""
    for name in COMPANIONS:
        try:
            if find_spec(name) is not None:
                import_module(name)
        except Exception as misfit:
            # A library of an incompatible build raises errors of any class.
            return RolloutError(
                f"{model} was not loaded, because the installed {name} does not fit this torch ({reason_of(misfit)}); "
                f"remove it, since nothing here needs it: pip uninstall --yes {' '.join(COMPANIONS)}"
            )
    return RolloutError(f"the base model {model} cannot be loaded ({reason_of(error)})")
