"""Problems from reasoning-gym's generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import RolloutError
from .base import ReasoningGymSource

PATIENCE = 400
"""Candidates drawn per problem asked for before the source counts as exhausted."""


def pairs(source: ReasoningGymSource) -> Iterator[tuple[str, str, str]]:
    """Prompt, answer and verifier of each generated problem.

    ``chain_sum`` asks with its bare expression, ``3+2-4=``; other tasks with their question.

    Raises:
        RolloutError: The library is not installed, or it refuses the task or a setting.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise RolloutError(
            'these problems need reasoning-gym: pip install "isocompute-rollout[reasoning-gym]"'
        ) from None
    size = PATIENCE * (source.train + source.validation)
    try:
        dataset: Any = reasoning_gym.create_dataset(source.task, size=size, seed=source.seed, **dict(source.settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise RolloutError(f"reasoning-gym refuses the task {source.task!r}: {error}") from None
    rule = f"reasoning_gym:{source.task}"
    for index in range(size):
        entry = dataset[index]
        answer = str(entry["answer"])
        if source.task != "chain_sum":
            yield str(entry["question"]), answer, rule
            continue
        expression = str(entry["metadata"]["expression"]).replace(" ", "")
        if not source.digits or set(expression) <= set(source.digits) | set("+-"):
            yield expression + "=", answer, rule
