"""Errors a user can act on."""

from importlib import import_module
from typing import Any

from .contract.errors import InfrastructureError, IsoComputeError


class RolloutError(IsoComputeError):
    """Something asked of the package cannot be done; the message says what and what would be right."""


class ProblemError(RolloutError):
    """No response to a problem can be scored: its fault, and neither that of a response nor that of this machine."""


class EngineError(RolloutError, InfrastructureError):
    """An engine in a process of its own died or timed out; a new sampler may be opened."""


def library(name: str, *, extra: str) -> Any:
    """Import a library that is not always installed, or say which extra brings it."""
    try:
        return import_module(name)
    except ImportError:
        raise RolloutError(f'{name} is not installed: pip install "isocompute-rollout[{extra}]"') from None
