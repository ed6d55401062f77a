"""Problems from reasoning-gym's generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import metadata
from ..errors import RolloutError
from ..refused import check_task
from .base import Candidate, ReasoningGymSource

PATIENCE = 400
"""Candidates drawn per problem asked for before the source counts as exhausted."""


def candidates(source: ReasoningGymSource) -> Iterator[Candidate]:
    """Each generated problem.

    ``chain_sum`` asks with its bare expression, ``3+2-4=``, and its scorer needs the answer only; other tasks ask
    with their question, and bring settings, question and metadata along for the scorer.

    Raises:
        RolloutError: The library is not installed, or it refuses the task or a setting, or the task is refused
            here (``refused.REFUSED``).
    """
    check_task(source.task)
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
        answer = "" if entry["answer"] is None else str(entry["answer"])
        if source.task != "chain_sum":
            question = str(entry["question"])
            held = {"settings": source.settings, "question": question, "metadata": entry["metadata"]}
            yield Candidate(prompt=question, answer=answer, verifier=rule, metadata=metadata.written(held))
            continue
        expression = str(entry["metadata"]["expression"]).replace(" ", "")
        if not source.digits or set(expression) <= set(source.digits) | set("+-"):
            yield Candidate(prompt=expression + "=", answer=answer, verifier=rule)
