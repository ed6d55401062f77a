"""The public address of ``planning.compute``: from rollouts to tokens, and from tokens to FLOPs."""

from .planning.compute import (
    SPREAD,
    Lengths,
    Model,
    Work,
    prompt_tokens,
    response_tokens,
    rollouts_for,
    work,
)

__all__ = ["SPREAD", "Lengths", "Model", "Work", "prompt_tokens", "response_tokens", "rollouts_for", "work"]
